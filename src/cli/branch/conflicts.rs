//! `ckptfs branch conflicts`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use serde::Serialize;

use ckptfs_api::{
    ChangeKind, Clash, Conflict, ListConflicts, Touch, TreePath, WatchConflicts, Watched,
};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Outcome, plain};
use ckptfs_ui::locate;
use ckptfs_ui::output::Out;

const SHELL: &str = "/bin/sh";

/// List the files that several branches have changed, or a branch and this tree
///
/// One line per file: its path in the base, and the trees that changed it. Available at any time,
/// without a merge; a file that was renamed here and edited there is one file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show for each pair the conflicts of a merge, or that it would merge cleanly
    #[arg(long)]
    check: bool,
    /// Keep running, and print each conflict that appears, changes or disappears, as a line of JSON
    #[arg(long, conflicts_with = "check")]
    watch: bool,
    /// With --watch: run CMD in the shell for each conflict that exists, appears or changes,
    /// described by CKPTFS_PATH, CKPTFS_BRANCHES and CKPTFS_KIND
    #[arg(long, value_name = "CMD", requires = "watch")]
    exec: Option<OsString>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if args.watch {
        return watch(args.exec.as_deref(), context);
    }
    context.out.page();
    let mut served = locate::served(context.dir())?;
    let all = served.client.ask(ListConflicts { check: args.check })?;
    context.out.answer(&all, |out| {
        all.iter().try_for_each(|conflict| {
            let line = line(conflict, out);
            out.bytes(&line)
        })
    })
}

/// Formats the path and the trees that changed it, with another path or a deletion there.
fn line(conflict: &Conflict, out: &Out) -> Vec<u8> {
    let mut line = out.name(&conflict.path.0).into_owned();
    let here = conflict.parent.then_some(None);
    let all = conflict.branches.iter().map(Some).chain(here);
    for (number, by) in all.enumerate() {
        line.extend_from_slice(if number == 0 { b"\t" } else { b", " });
        line.extend_from_slice(by.map_or("this tree", String::as_str).as_bytes());
        let did = |touch: &&Touch| touch.by.as_ref() == by;
        let mut touched = conflict.touched.iter().filter(did);
        if let Some(touch) = touched.next() {
            match touch.change {
                ChangeKind::Renamed => {
                    line.extend_from_slice(b" (as ");
                    line.extend_from_slice(&out.name(&touch.path.0));
                    line.push(b')');
                }
                ChangeKind::Deleted => line.extend_from_slice(b" (deleted)"),
                _ => {}
            }
        }
    }
    if let Some(clashes) = &conflict.clashes {
        let told: Vec<String> = clashes.iter().map(clash).collect();
        let told = match &told[..] {
            [] => "merges cleanly".to_owned(),
            told => told.join(", "),
        };
        line.extend_from_slice(format!("\t{told}").as_bytes());
    }
    line.push(b'\n');
    line
}

/// Formats the two sides of a clash, and its kind.
pub fn clash(clash: &Clash) -> String {
    let ours = clash.ours.as_deref().unwrap_or("this tree");
    let what = serde_json::to_value(clash.conflict.what);
    let what = what.ok().and_then(|what| what.as_str().map(str::to_owned));
    format!(
        "{} and {ours} clash ({})",
        clash.theirs,
        what.unwrap_or_default()
    )
}

/// Change of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ConflictChange {
    Appeared,
    /// Other trees changed the file, or no longer do, or a tree made another change.
    Changed,
    Gone,
}

/// A line of `--watch`.
#[derive(Serialize)]
struct Event<'a> {
    kind: ConflictChange,
    #[serde(flatten)]
    conflict: &'a Conflict,
}

/// Conflicts by path and inode.
type ConflictMap = BTreeMap<(TreePath, Option<u64>), Conflict>;

/// Prints the conflicts, and then their changes, until the daemon ends or stdout is closed.
fn watch(exec: Option<&OsStr>, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let (mut known, mut seen) = (ConflictMap::new(), None);
    loop {
        // After a takeover the request is repeated, with the state of the earlier daemon.
        let Watched {
            seen: now,
            conflicts,
        } = served.client.ask(WatchConflicts { seen })?;
        seen = Some(now);
        if sys::is_unread(io::stdout()) {
            return Ok(());
        }
        let Some(conflicts) = conflicts else { continue };
        let key = |conflict: Conflict| ((conflict.path.clone(), conflict.inode), conflict);
        let there: ConflictMap = conflicts.into_iter().map(key).collect();
        let gone = known.iter().filter(|(key, _)| !there.contains_key(key));
        let mut events: Vec<Event<'_>> = gone
            .map(|(_, conflict)| Event {
                kind: ConflictChange::Gone,
                conflict,
            })
            .collect();
        for (key, conflict) in &there {
            let kind = match known.get(key) {
                None => ConflictChange::Appeared,
                Some(before) if before != conflict => ConflictChange::Changed,
                Some(_) => continue,
            };
            events.push(Event { kind, conflict });
        }
        for event in &events {
            context.out.json(event)?;
        }
        context.out.flush()?;
        for event in &events {
            if let Some(command) = exec.filter(|_| event.kind != ConflictChange::Gone) {
                tell(command, event, &context.out);
            }
        }
        known = there;
    }
}

/// Runs the user's command for a conflict, and waits for it; the changes until then are reported
/// together afterwards. The path is passed in a variable, not in the command, because other users
/// may choose it.
fn tell(command: &OsStr, event: &Event<'_>, out: &Out) {
    let conflict = event.conflict;
    let kind = match event.kind {
        ConflictChange::Changed => "changed",
        _ => "appeared",
    };
    let mut shell = Command::new(SHELL);
    shell
        .arg("-c")
        .arg(command)
        .env("CKPTFS_PATH", OsStr::from_bytes(&conflict.path.0))
        .env("CKPTFS_BRANCHES", conflict.branches.join(" "))
        .env("CKPTFS_PARENT", if conflict.parent { "1" } else { "" })
        .env("CKPTFS_KIND", kind)
        .stdin(Stdio::null());
    // stdout is for data.
    let ended = io::stderr()
        .as_fd()
        .try_clone_to_owned()
        .and_then(|stderr| shell.stdout(Stdio::from(stderr)).status());
    match ended {
        Ok(status) if status.success() => {}
        Ok(status) => out.warn(&format!("the command failed: {status}")),
        Err(cause) => out.warn(&format!("the command was not run: {}", plain(&cause))),
    }
}
