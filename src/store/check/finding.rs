//! Kinds of damage to a store.

use crate::error::StoreError;
use crate::ids::ObjectId;
use ckptfs_api::{CheckpointId, DamageKind};

/// One instance of damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind of damage.
    pub kind: DamageKind,
    /// The damaged file or part, relative to `.ckptfs`.
    pub on: String,
    /// The object, if the damage concerns one.
    pub object: Option<ObjectId>,
    /// The path of the file whose version it is.
    pub path: Option<Vec<u8>>,
    /// The kept checkpoints that show it.
    pub checkpoints: Vec<CheckpointId>,
    /// Description of the damage.
    pub detail: String,
}

impl Finding {
    /// Creates a finding about the store as a whole.
    pub fn of_store(kind: DamageKind, on: impl Into<String>, detail: impl Into<String>) -> Finding {
        Finding {
            kind,
            on: on.into(),
            object: None,
            path: None,
            checkpoints: Vec::new(),
            detail: detail.into(),
        }
    }
}

/// Converts a journal error to a finding; `last` is the newest checkpoint before the damage.
pub fn journal_finding(error: &StoreError, last: Option<CheckpointId>) -> Finding {
    let known = match last {
        Some(last) => format!("checkpoints after {last} are not reliable"),
        None => "no checkpoint is reliable".to_owned(),
    };
    let on = match error {
        StoreError::JournalDamaged { segment, .. } => format!("journal/{segment:08}"),
        StoreError::BadRecord { at, .. } => format!("journal/{:08}", at.segment),
        _ => "journal".to_owned(),
    };
    let cause = std::error::Error::source(error)
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    Finding::of_store(
        DamageKind::JournalDamaged,
        on,
        format!("{error}{cause}; {known}"),
    )
}
