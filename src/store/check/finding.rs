//! Kinds of damage to a store.

use serde::{Deserialize, Serialize};

use crate::store::error::StoreError;
use crate::store::ids::{CheckpointId, ObjectId};

/// A kind of damage, with one variant each. `--json` prints these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamageKind {
    /// The file `format` does not identify a store that this program can read.
    FormatUnreadable,
    /// Part of the journal that had been on disk is missing or changed.
    JournalDamaged,
    /// The end of the journal is torn, as after a power cut. No durable record is lost, and
    /// mounting repairs it.
    JournalTorn,
    /// History exists without an index; mounting rebuilds it.
    IndexMissing,
    /// The index cannot be opened or read; mounting rebuilds it.
    IndexUnreadable,
    /// The index contradicts the journal.
    IndexWrong,
    /// The baseline cannot be read. Without it, changes made while nothing is mounted are reported
    /// less precisely.
    BaselineDamaged,
    /// A version that a checkpoint needs is missing from the store.
    ObjectMissing,
    /// The size of a version has changed.
    ObjectSize,
    /// The content of a version has changed since it was hashed.
    ObjectChanged,
    /// The filesystem cannot read a version.
    ObjectUnreadable,
    /// No record names the object: a daemon was killed between creating and recording it.
    ObjectUnneeded,
    /// A layer contains a file that is not an object.
    ForeignFile,
    /// A checkpoint was not completely on disk at a power cut: its files may be missing or in the
    /// state of another moment.
    CheckpointIncomplete,
    /// A file of the tree was changed without a record, while nothing was mounted or past the
    /// mount. Its earlier content is unknown.
    ChangedUnseen,
}

impl DamageKind {
    /// Returns the name that `--json` prints.
    pub fn name(self) -> &'static str {
        match self {
            DamageKind::FormatUnreadable => "format-unreadable",
            DamageKind::JournalDamaged => "journal-damaged",
            DamageKind::JournalTorn => "journal-torn",
            DamageKind::IndexMissing => "index-missing",
            DamageKind::IndexUnreadable => "index-unreadable",
            DamageKind::IndexWrong => "index-wrong",
            DamageKind::BaselineDamaged => "baseline-damaged",
            DamageKind::ObjectMissing => "object-missing",
            DamageKind::ObjectSize => "object-size",
            DamageKind::ObjectChanged => "object-changed",
            DamageKind::ObjectUnreadable => "object-unreadable",
            DamageKind::ObjectUnneeded => "object-unneeded",
            DamageKind::ForeignFile => "foreign-file",
            DamageKind::CheckpointIncomplete => "checkpoint-incomplete",
            DamageKind::ChangedUnseen => "changed-unseen",
        }
    }

    /// Returns whether history is lost or unreliable; the other kinds need no more than a repair.
    pub fn is_loss(self) -> bool {
        use DamageKind::{
            ChangedUnseen, CheckpointIncomplete, FormatUnreadable, JournalDamaged, ObjectChanged,
            ObjectMissing, ObjectSize, ObjectUnreadable,
        };
        matches!(
            self,
            CheckpointIncomplete
                | FormatUnreadable
                | JournalDamaged
                | ObjectMissing
                | ObjectSize
                | ObjectChanged
                | ObjectUnreadable
                | ChangedUnseen
        )
    }
}

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
