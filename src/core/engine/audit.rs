//! The audit log, read from the journal. Each frame has the hash of the previous one, so a removed
//! or inserted record is detected.

use super::error;
use ckptfs_api::{Actor, AuditEvent, AuditKind, CheckpointId, Reason, TreePath, VerbResult};
use ckptfs_store::StoreResult;
use ckptfs_store::journal::Journal;
use ckptfs_store::record::{Checkpoint, Record};

/// Returns all requested operations, oldest first.
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
        // The daemon itself hides a mark until its burst is confirmed.
        if actor.is_none() && matches!(record, Record::Hidden { .. }) {
            continue;
        }
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

fn plain(what: AuditKind, at_ns: Option<i64>) -> AuditEvent {
    AuditEvent {
        at: at_ns.and_then(time),
        what,
        by: None,
        checkpoint: None,
        guard: None,
        tags: Vec::new(),
        paths: Vec::new(),
        note: String::new(),
        unserved_since: None,
    }
}

/// Returns the checkpoint whose restore a guard checkpoint precedes.
fn restored(made: &Checkpoint) -> Option<CheckpointId> {
    match made.reason {
        Reason::Guard { restored } => Some(restored).filter(|restored| *restored != made.id),
        Reason::Asked
        | Reason::Directory { .. }
        | Reason::Auto { .. }
        | Reason::Imported { .. } => None,
    }
}

/// Converts a record. `None`: it is not a requested operation.
fn event(record: Record, at_ns: Option<i64>) -> Option<AuditEvent> {
    let of = |what, id| AuditEvent {
        checkpoint: Some(id),
        ..plain(what, at_ns)
    };
    Some(match record {
        Record::Checkpoint(made) => AuditEvent {
            checkpoint: Some(made.id),
            guard: restored(&made),
            tags: made.tags,
            note: made.note,
            ..plain(AuditKind::Checkpoint, Some(made.created_ns))
        },
        Record::Tags { id, tags } => AuditEvent {
            tags,
            ..of(AuditKind::Tag, id)
        },
        Record::Pinned { id, reason } => match reason {
            Some(note) => AuditEvent {
                note,
                ..of(AuditKind::Pin, id)
            },
            None => of(AuditKind::Unpin, id),
        },
        Record::Hidden { id, hidden: true } => of(AuditKind::Delete, id),
        Record::Hidden { id, hidden: false } => of(AuditKind::Undelete, id),
        Record::Deleted { id } => of(AuditKind::Free, id),
        Record::RestoreBegin {
            target,
            guard,
            paths,
        } if target != guard => AuditEvent {
            guard: Some(guard),
            paths: paths.into_iter().map(TreePath).collect(),
            ..of(AuditKind::Restore, target)
        },
        Record::RestoreBegin { guard, .. } => AuditEvent {
            guard: Some(guard),
            ..plain(AuditKind::Merge, at_ns)
        },
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
        | Record::Told { .. } => {
            return None;
        }
    })
}
