//! Invariants after a power cut.

use std::fs as files;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::Value;

use super::disk::ImageHost;
use super::load::{AckedCheckpoint, DurablePromises, found_synced};
use crate::common::tree::{Tree, TreeOpts, compare, tree, try_tree_without};
use crate::common::{Fs, Mount, MountOpts};

/// Counts of the checkpoints found.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoveryCounts {
    /// Compared and exact.
    pub exact: u64,
    /// Acknowledged, not promised, and absent.
    pub absent: u64,
    /// Tagged incomplete in the log.
    pub named: u64,
}

impl std::ops::AddAssign for RecoveryCounts {
    fn add_assign(&mut self, other: RecoveryCounts) {
        self.exact += other.exact;
        self.absent += other.absent;
        self.named += other.named;
    }
}

/// Reports whether a log entry is tagged incomplete.
pub fn is_named(entry: &Value) -> bool {
    entry["tags"].as_array().is_some_and(|tags| {
        tags.iter().any(|tag| {
            tag.as_str()
                .is_some_and(|tag| tag.starts_with("!incomplete"))
        })
    })
}

/// Returns the differences between a view and the expected tree.
pub fn differences(view: &Path, expected: &Tree) -> Vec<String> {
    let shown = try_tree_without(view, &TreeOpts::default().ignore);
    shown.map_or_else(
        |problem| vec![problem],
        |shown| compare(&shown, expected, &TreeOpts::default()),
    )
}

/// Mounts an image left by a power cut and checks it.
///
/// # Errors
/// The violated invariant.
pub fn look(
    host: &ImageHost,
    fs: Fs,
    image: &Path,
    opts: &MountOpts,
    promised: &DurablePromises,
    known: &[AckedCheckpoint],
) -> Result<RecoveryCounts, String> {
    let disk = host.mount(fs, image);
    let dir = disk.path().join("project");
    let found = {
        let mount = Mount::start(&dir, opts);
        check(&mount, promised, known).inspect_err(|_| {
            let log = files::read_to_string(dir.join(".ckptfs/daemon.log")).unwrap_or_default();
            eprintln!("{log}");
        })?
    };
    disk.check();
    Ok(found)
}

fn check(
    mount: &Mount,
    promised: &DurablePromises,
    known: &[AckedCheckpoint],
) -> Result<RecoveryCounts, String> {
    let (log, status) = (mount.log_json(), mount.status_json());
    let entries = log.as_array().expect("the log is a list");
    let mut found = RecoveryCounts::default();
    for known in known {
        let must = promised.checkpoints.contains(&known.id);
        let Some(entry) = entries
            .iter()
            .find(|entry| entry["id"].as_u64() == Some(known.id))
        else {
            if must {
                return Err(format!(
                    "checkpoint {} was acknowledged with --sync, but is gone",
                    known.id
                ));
            }
            found.absent += 1;
            continue;
        };
        if is_named(entry) {
            if must {
                return Err(format!(
                    "checkpoint {} was acknowledged with --sync, but is reported as incomplete",
                    known.id
                ));
            }
            found.named += 1;
            continue;
        }
        let Some(expected) = &known.tree else {
            continue;
        };
        let differences = differences(&mount.view(known.id), expected);
        if !differences.is_empty() {
            return Err(format!(
                "checkpoint {} ({}) is wrong:\n  {}\nstatus: {}",
                known.id,
                if must { "synced" } else { "not synced" },
                differences
                    .iter()
                    .take(4)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join("\n  "),
                status["warnings"]
            ));
        }
        found.exact += 1;
    }
    readable(mount, entries)?;
    verified(mount, entries)?;
    let synced = found_synced(&mount.path().join("app"));
    for (place, (found, promised)) in synced.iter().zip(&promised.synced).enumerate() {
        if found < promised {
            return Err(format!(
                "the application had synced {promised} at place {place}, but {found} was found"
            ));
        }
    }
    goes_on(mount, promised, known)?;
    Ok(found)
}

/// Checks that every view not tagged incomplete can be read, including those of checkpoints made by
/// the daemon.
fn readable(mount: &Mount, entries: &[Value]) -> Result<(), String> {
    for entry in entries.iter().filter(|entry| !is_named(entry)) {
        let id = entry["id"].as_u64().expect("a checkpoint has an id");
        try_tree_without(&mount.view(id), &TreeOpts::default().ignore).map_err(|problem| {
            format!("checkpoint {id} is not reported as incomplete: {problem}")
        })?;
    }
    Ok(())
}

/// Checks that all findings of `verify` concern incomplete checkpoints: tagged in the log, or, if
/// deleted and not yet freed, reported by `verify` itself.
pub fn verified(mount: &Mount, entries: &[Value]) -> Result<(), String> {
    let output = mount.run(&["verify", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("verify: {error}: {output:?}"))?;
    let findings = report["findings"].as_array().expect("a list");
    let is_shown = |id: &Value| entries.iter().any(|entry| entry["id"] == *id);
    let hidden = findings
        .iter()
        .filter(|finding| finding["kind"] == "checkpoint-incomplete")
        .map(|finding| &finding["checkpoints"][0])
        .filter(|id| !is_shown(id));
    let named: Vec<&Value> = entries
        .iter()
        .filter(|entry| is_named(entry))
        .map(|entry| &entry["id"])
        .chain(hidden)
        .collect();
    let concerns_named = |finding: &Value| {
        let of = finding["checkpoints"].as_array().map_or(&[][..], |of| of);
        !of.is_empty() && of.iter().all(|id| named.contains(&id))
    };
    match findings.iter().find(|finding| !concerns_named(finding)) {
        Some(finding) => Err(format!("verify: {finding}")),
        None => Ok(()),
    }
}

/// Appends to every live file in place: no version may share its inode.
fn write_everywhere(root: &Path) {
    for (path, _) in tree(root) {
        if let Ok(file) = files::OpenOptions::new()
            .append(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(root.join(path))
        {
            let _ = (&file).write_all(b"x");
        }
    }
}

/// Checks that history continues: a checkpoint can be made, and the newest promised one can be
/// restored.
fn goes_on(
    mount: &Mount,
    promised: &DurablePromises,
    known: &[AckedCheckpoint],
) -> Result<(), String> {
    write_everywhere(mount.path());
    for known in known
        .iter()
        .filter(|known| promised.checkpoints.contains(&known.id))
    {
        let wrong = known.tree.as_ref().map_or_else(Vec::new, |expected| {
            differences(&mount.view(known.id), expected)
        });
        if !wrong.is_empty() {
            return Err(format!(
                "checkpoint {} is wrong after writes to the live files:\n  {}",
                known.id,
                wrong.join("\n  ")
            ));
        }
    }
    let now = mount.checkpoint();
    let before = tree(mount.path());
    let Some(last) = known
        .iter()
        .rev()
        .find(|known| promised.checkpoints.contains(&known.id) && known.tree.is_some())
    else {
        return Ok(());
    };
    let restored = mount.run(&["restore", &last.id.to_string()]);
    if !restored.status.success() {
        return Err(format!(
            "restore {} failed: {}",
            last.id,
            String::from_utf8_lossy(&restored.stderr)
        ));
    }
    let expected = last.tree.as_ref().expect("chosen because it has one");
    let mut wrong = differences(mount.path(), expected);
    wrong.extend(compare(
        &tree(&mount.view(now)),
        &before,
        &TreeOpts::default(),
    ));
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "after restoring {}:\n  {}",
            last.id,
            wrong.join("\n  ")
        ))
    }
}
