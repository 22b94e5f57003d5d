//! Who did what when, as the journal has it. Each frame names the hash of the one before, so
//! nothing can be left out or put in unseen.

use super::api::{AuditEvent, AuditKind, TreePath, VerbResult};
use super::error;
use crate::store::StoreResult;
use crate::store::journal::Journal;
use crate::store::record::{Actor, Reason, Record};

/// Everything that somebody asked for, oldest first.
pub(super) fn events(journal: &Journal) -> VerbResult<Vec<AuditEvent>> {
    read(journal).map_err(|cause| error::journal_unread(cause.errno()))
}

fn read(journal: &Journal) -> StoreResult<Vec<AuditEvent>> {
    let mut events = Vec::new();
    let mut by: Option<(i64, Actor)> = None;
    let mut only = Vec::new();
    for entry in journal.scan(journal.start(), None) {
        let record = match entry?.1 {
            Record::By { at_ns, actor } => {
                by = Some((at_ns, actor));
                continue;
            }
            Record::RestoreOnly { paths } => {
                only.extend(paths);
                continue;
            }
            Record::RestoreBegin { target, guard, .. } if !only.is_empty() => {
                Record::RestoreBegin {
                    target,
                    guard,
                    paths: std::mem::take(&mut only),
                }
            }
            Record::Checkpoint(made) => {
                only.clear();
                Record::Checkpoint(made)
            }
            record => record,
        };
        let (at_ns, actor) = by
            .take()
            .map_or((None, None), |(at_ns, actor)| (Some(at_ns), Some(actor)));
        if let Some(event) = event(record, at_ns) {
            events.push(AuditEvent { by: actor, ..event });
        }
    }
    Ok(events)
}

fn time(at_ns: i64) -> Option<String> {
    jiff::Timestamp::from_nanosecond(i128::from(at_ns))
        .map(|time| time.to_string())
        .ok()
}

/// What a record says; `None`: nothing that anybody asked for.
fn event(record: Record, at_ns: Option<i64>) -> Option<AuditEvent> {
    let plain = |what, at_ns: Option<i64>| AuditEvent {
        at: at_ns.and_then(time),
        what,
        by: None,
        checkpoint: None,
        guard: None,
        tags: Vec::new(),
        paths: Vec::new(),
        note: String::new(),
        unserved_since: None,
    };
    Some(match record {
        Record::Checkpoint(made) => {
            let guard = match made.reason {
                Reason::Guard { restored } => Some(restored),
                Reason::Asked
                | Reason::Directory { .. }
                | Reason::Auto { .. }
                | Reason::Imported { .. } => None,
            };
            let event = plain(AuditKind::Checkpoint, Some(made.created_ns));
            AuditEvent {
                checkpoint: Some(made.id),
                guard,
                tags: made.tags,
                note: made.note,
                ..event
            }
        }
        Record::Tags { id, tags } => AuditEvent {
            checkpoint: Some(id),
            tags,
            ..plain(AuditKind::Tag, at_ns)
        },
        Record::Pinned { id, reason } => {
            let what = if reason.is_some() {
                AuditKind::Pin
            } else {
                AuditKind::Unpin
            };
            AuditEvent {
                checkpoint: Some(id),
                note: reason.unwrap_or_default(),
                ..plain(what, at_ns)
            }
        }
        Record::Hidden { id, hidden } => {
            let what = if hidden {
                AuditKind::Delete
            } else {
                AuditKind::Undelete
            };
            AuditEvent {
                checkpoint: Some(id),
                ..plain(what, at_ns)
            }
        }
        Record::Deleted { id } => AuditEvent {
            checkpoint: Some(id),
            ..plain(AuditKind::Free, at_ns)
        },
        Record::RestoreBegin {
            target,
            guard,
            paths,
        } => {
            let paths = paths.into_iter().map(TreePath).collect();
            AuditEvent {
                checkpoint: Some(target),
                guard: Some(guard),
                paths,
                ..plain(AuditKind::Restore, at_ns)
            }
        }
        Record::RestoreEnd => plain(AuditKind::Restored, at_ns),
        Record::Mounted { at_ns, stopped_ns } => AuditEvent {
            unserved_since: stopped_ns.and_then(time),
            ..plain(AuditKind::Mount, Some(at_ns))
        },
        Record::Unmounted { at_ns } => plain(AuditKind::Unmount, Some(at_ns)),
        Record::Undo { .. }
        | Record::Void { .. }
        | Record::Moved { .. }
        | Record::Replacing { .. }
        | Record::By { .. }
        | Record::Hashes { .. }
        | Record::Operation(_)
        | Record::Touched { .. }
        | Record::OpenAt { .. }
        | Record::RestoreOnly { .. }
        | Record::Dropped { .. }
        | Record::Comparing(_)
        | Record::Told { .. }
        | Record::Ahead { .. } => {
            return None;
        }
    })
}
