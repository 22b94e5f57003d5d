//! The details of a checkpoint, as `ckptfs show` prints them.

use std::io;

use crate::changes_by_process;
use crate::output::{Out, Role};
use crate::time;
use ckptfs_api::display::{bytes, count};
use ckptfs_api::{CheckpointInfo, Reason};

/// Describes the reason for a checkpoint.
pub fn reason(checkpoint: &CheckpointInfo) -> String {
    match &checkpoint.reason {
        Reason::Directory { name } => format!("mkdir .snapshots/{name}"),
        Reason::Auto { trigger } => format!("auto:{}", trigger.name()),
        Reason::Asked => "asked for".to_owned(),
        Reason::Imported { .. } => "imported".to_owned(),
        Reason::Guard { restored } if *restored == checkpoint.id => {
            "made before a merge".to_owned()
        }
        Reason::Guard { restored } => format!("made before the restore of {restored}"),
    }
}

/// Returns the labels and values that every checkpoint has.
fn lines(out: &Out, checkpoint: &CheckpointInfo) -> [(&'static str, String); 9] {
    let reason = reason(checkpoint);
    let atomic = if checkpoint.atomic {
        "yes"
    } else {
        "no: files that were being written were captured one after the other"
    };
    let pinned = match checkpoint.pinned.as_deref() {
        None => "no".to_owned(),
        Some("") => "yes".to_owned(),
        Some(reason) => format!("yes: {}", out.text(reason)),
    };
    let by = checkpoint.by.as_ref().map_or_else(
        || "not recorded".to_owned(),
        |by| format!("uid {} pid {} {}", by.uid, by.pid, out.text(&by.process)),
    );
    let parent = checkpoint
        .parent
        .map_or("none".to_owned(), |parent| parent.to_string());
    let tags = checkpoint.tags.join(", ");
    [
        (
            "checkpoint",
            out.paint(Role::Id, &checkpoint.id.to_string()),
        ),
        ("created", time::local(&checkpoint.created)),
        ("tags", out.paint(Role::Tag, &out.text(&tags))),
        ("changes", checkpoint.dirty.to_string()),
        ("atomic", atomic.to_owned()),
        ("reason", reason),
        ("parent", parent),
        ("pinned", pinned),
        ("by", by.trim_end().to_owned()),
    ]
}

/// Prints a checkpoint with all its details.
pub fn print(out: &mut Out, checkpoint: &CheckpointInfo) -> io::Result<()> {
    for (label, value) in lines(out, checkpoint) {
        let label = out.paint(Role::Faint, &format!("{label:<10}"));
        out.line(format!("{label} {value}").trim_end())?;
    }
    if let Some(dropped) = &checkpoint.dropped {
        let line = format!(
            "{} content of {} ({}), by a retention rule, in",
            out.paint(Role::Faint, "dropped   "),
            count(dropped.files, "file"),
            bytes(dropped.bytes)
        );
        out.line(&line)?;
        for path in &dropped.paths {
            let line = [b"    ", out.name(&path.0).as_ref(), b"\n"].concat();
            out.bytes(&line)?;
        }
    }
    if let Some(open) = &checkpoint.open_at_cut {
        changes_by_process::print_open(out, open)?;
    }
    if !checkpoint.note.is_empty() {
        out.line("")?;
        for line in checkpoint.note.lines() {
            out.text_line(&format!("    {line}"))?;
        }
    }
    Ok(())
}
