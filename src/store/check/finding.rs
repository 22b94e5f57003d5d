//! What can be wrong with a store.

use serde::{Deserialize, Serialize};

use crate::store::error::StoreError;
use crate::store::ids::{CheckpointId, ObjectId};

/// What can be wrong with a store: one kind for each damage. `--json` has these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamageKind {
    /// The file `format` does not say that this is a store that can be read here.
    FormatUnreadable,
    /// Something in the journal is gone or was changed that had been on disk.
    JournalDamaged,
    /// The journal's end is torn, as a power cut tears it: nothing that was promised is lost.
    /// Mounting repairs it.
    JournalTorn,
    /// There is no index although there is history; mounting makes it anew.
    IndexMissing,
    /// The index cannot be opened or read; mounting makes it anew.
    IndexUnreadable,
    /// The index says something else than the journal.
    IndexWrong,
    /// The tree as it was written down last cannot be read; without it what is changed while
    /// nothing is mounted is told worse.
    BaselineDamaged,
    /// A version that a checkpoint needs is not in the store.
    ObjectMissing,
    /// A version has another size than it had.
    ObjectSize,
    /// A version has other bytes than when it was hashed.
    ObjectChanged,
    /// The filesystem cannot read a version.
    ObjectUnreadable,
    /// An object that no record speaks of: a daemon was killed between making and recording it.
    ObjectUnneeded,
    /// A file in a layer that is none of ours.
    ForeignFile,
    /// A checkpoint was not on the disk yet when the power was cut: files in it may be missing, or
    /// of another moment.
    CheckpointIncomplete,
    /// A file of the tree was changed behind our back, while nothing was mounted or past the mount:
    /// what it was is not known.
    ChangedUnseen,
}

impl DamageKind {
    /// Its name, as in `--json`.
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

    /// Something of the past is lost or cannot be trusted; the others cost nothing but care.
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

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of damage.
    pub kind: DamageKind,
    /// What it was found in, relative to `.ckptfs`.
    pub on: String,
    /// The object, if it is one.
    pub object: Option<ObjectId>,
    /// Where the file was that it is a version of.
    pub path: Option<Vec<u8>>,
    /// The kept checkpoints that show it.
    pub checkpoints: Vec<CheckpointId>,
    /// What was found, in words.
    pub detail: String,
}

impl Finding {
    /// About the store as a whole.
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

/// A damaged journal as a finding; `last`: the newest checkpoint before the damage.
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
