//! What must hold after the power was cut.

use std::fs as files;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::Value;

use super::disk::Host;
use super::load::{Known, Promised, found_synced};
use crate::common::tree::{Tree, TreeOpts, compare, tree, try_tree_without};
use crate::common::{Fs, Mount, MountOpts};

/// What was found, to be counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Checkpoints that were compared and are exact.
    pub exact: u64,
    /// Checkpoints that were acknowledged and are gone, none of them promised.
    pub absent: u64,
    /// Checkpoints that the log names as not whole.
    pub named: u64,
}

impl std::ops::AddAssign for Found {
    fn add_assign(&mut self, other: Found) {
        self.exact += other.exact;
        self.absent += other.absent;
        self.named += other.named;
    }
}

/// A checkpoint as the log shows it is named as not whole.
pub fn is_named(entry: &Value) -> bool {
    entry["tags"].as_array().is_some_and(|tags| {
        tags.iter().any(|tag| {
            tag.as_str()
                .is_some_and(|tag| tag.starts_with("!incomplete"))
        })
    })
}

/// How a view differs from what it must show.
pub fn differences(view: &Path, expected: &Tree) -> Vec<String> {
    let shown = try_tree_without(view, &TreeOpts::default().ignore);
    shown.map_or_else(
        |problem| vec![problem],
        |shown| compare(&shown, expected, &TreeOpts::default()),
    )
}

/// Mounts what a power cut left, and looks at all of it.
///
/// # Errors
/// What is wrong.
pub fn look(
    host: &Host,
    fs: Fs,
    image: &Path,
    opts: &MountOpts,
    promised: &Promised,
    known: &[Known],
) -> Result<Found, String> {
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

fn check(mount: &Mount, promised: &Promised, known: &[Known]) -> Result<Found, String> {
    let (log, status) = (mount.log_json(), mount.status_json());
    let entries = log.as_array().expect("the log is a list");
    let mut found = Found::default();
    for known in known {
        let must = promised.checkpoints.contains(&known.id);
        let Some(entry) = entries
            .iter()
            .find(|entry| entry["id"].as_u64() == Some(known.id))
        else {
            if must {
                return Err(format!(
                    "checkpoint {} was acknowledged with --sync and is gone",
                    known.id
                ));
            }
            found.absent += 1;
            continue;
        };
        if is_named(entry) {
            if must {
                return Err(format!(
                    "checkpoint {} was acknowledged with --sync and is named as not whole",
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
                "the application had synced {promised} at place {place}, and {found} is there"
            ));
        }
    }
    goes_on(mount, promised, known)?;
    Ok(found)
}

/// Every view can be read that the log does not name as not whole, those too that the test did not
/// make itself.
fn readable(mount: &Mount, entries: &[Value]) -> Result<(), String> {
    for entry in entries.iter().filter(|entry| !is_named(entry)) {
        let id = entry["id"].as_u64().expect("a checkpoint has an id");
        try_tree_without(&mount.view(id), &TreeOpts::default().ignore)
            .map_err(|problem| format!("checkpoint {id} is not named as not whole: {problem}"))?;
    }
    Ok(())
}

/// `verify` finds nothing but what concerns checkpoints that the log names as not whole.
pub fn verified(mount: &Mount, entries: &[Value]) -> Result<(), String> {
    let named: Vec<&Value> = entries
        .iter()
        .filter(|entry| is_named(entry))
        .map(|entry| &entry["id"])
        .collect();
    let output = mount.run(&["verify", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("verify: {error}: {output:?}"))?;
    let findings = report["findings"].as_array().expect("a list");
    let concerns_named = |finding: &Value| {
        let of = finding["checkpoints"].as_array().map_or(&[][..], |of| of);
        !of.is_empty() && of.iter().all(|id| named.contains(&id))
    };
    match findings.iter().find(|finding| !concerns_named(finding)) {
        Some(finding) => Err(format!("verify: {finding}")),
        None => Ok(()),
    }
}

/// Every live file is written in place: no past may share its inode.
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

/// History goes on: a checkpoint can be made, and the newest one that was promised be restored.
fn goes_on(mount: &Mount, promised: &Promised, known: &[Known]) -> Result<(), String> {
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
                "checkpoint {} is wrong once the live files were written:\n  {}",
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
    let expected = last.tree.as_ref().expect("it was chosen for that");
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
