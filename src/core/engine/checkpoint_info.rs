//! Conversion of checkpoints of the journal for replies.

use ckptfs_api::CheckpointInfo;
use ckptfs_store::record::CheckpointState;

/// Converts a checkpoint of the journal.
pub fn checkpoint_info(checkpoint: &CheckpointState) -> CheckpointInfo {
    let created = jiff::Timestamp::from_nanosecond(i128::from(checkpoint.state_ns()))
        .map(|time| time.to_string())
        .unwrap_or_default();
    CheckpointInfo {
        id: checkpoint.id,
        changes: None,
        tags: checkpoint.tags.clone(),
        note: checkpoint.note.clone(),
        created,
        atomic: checkpoint.atomic,
        dirty: checkpoint.dirty,
        reason: checkpoint.reason.clone(),
        duration_us: None,
        frozen_us: None,
        slowest_file: None,
        open_files: None,
        unchanged: false,
        open_at_cut: None,
        quiesced: None,
        pinned: checkpoint.pinned.clone(),
        parent: checkpoint.parent,
        by: checkpoint.by.clone(),
        has_dropped: checkpoint.has_dropped,
        dropped: None,
    }
}
