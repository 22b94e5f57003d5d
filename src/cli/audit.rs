//! `ckptfs ops --all`.

use std::io::{self, Write};

use crate::executor;
use ckptfs_api::{AuditEvent, AuditKind, ListAudit};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::output::{Out, Role};
use ckptfs_ui::time;

/// Lists checkpoints, restores, deletions, tags, pins and mounts, oldest first, with their authors.
pub fn run(context: &mut Context) -> Outcome {
    let events = executor::history(context.dir())?.ask(ListAudit)?;
    context.out.answer(&events, |out| {
        events.iter().try_for_each(|event| {
            let line = line(out, event)?;
            out.bytes(&line)
        })
    })
}

fn line(out: &Out, event: &AuditEvent) -> io::Result<Vec<u8>> {
    let at = event
        .at
        .as_deref()
        .map_or_else(|| "-".to_owned(), time::local);
    let by = match &event.by {
        Some(by) => format!("uid {} pid {} {}", by.uid, by.pid, out.text(&by.process)),
        None => String::new(),
    };
    let what = match event.what {
        AuditKind::Checkpoint => "checkpoint",
        AuditKind::Restore => "restore",
        AuditKind::Restored => "restored",
        AuditKind::Merge => "merge",
        AuditKind::Free => "free",
        AuditKind::Tag => "tag",
        AuditKind::Pin => "pin",
        AuditKind::Unpin => "unpin",
        AuditKind::Delete => "delete",
        AuditKind::Undelete => "undelete",
        AuditKind::Mount => "mount",
        AuditKind::Unmount => "unmount",
    };
    let id = event
        .checkpoint
        .map(|id| format!(" {}", out.paint(Role::Id, &id.to_string())))
        .unwrap_or_default();
    let mut line = format!("{at}  {what}{id}").into_bytes();
    if !event.tags.is_empty() {
        write!(
            line,
            "  {}",
            out.paint(
                Role::Tag,
                &format!("[{}]", out.text(&event.tags.join(", ")))
            )
        )?;
    }
    match (event.what, event.guard) {
        (AuditKind::Restore | AuditKind::Merge, Some(guard)) => {
            write!(line, "  (before: {guard})")?
        }
        (_, Some(restored)) => write!(line, "  (before the restore of {restored})")?,
        _ => {}
    }
    for path in &event.paths {
        line.extend_from_slice(b"  ");
        line.extend_from_slice(&out.name(&path.0));
    }
    if let Some(since) = &event.unserved_since {
        write!(line, "  (not served since {})", time::local(since))?;
    }
    if !by.is_empty() {
        write!(
            line,
            "{}",
            out.paint(Role::Faint, &format!("  by {}", by.trim_end()))
        )?;
    }
    if let Some(first) = event.note.lines().next() {
        write!(line, "  {}", out.text(first))?;
    }
    line.push(b'\n');
    Ok(line)
}
