//! Verification of the store.

use serde::{Deserialize, Serialize};

use crate::checkpoint::StateName;
use crate::ids::CheckpointId;
use crate::tree_path::TreePath;
use crate::verb::Verb;
/// Options of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyOptions {
    /// Only verify the content of this checkpoint; defaults to the whole store.
    pub state: Option<StateName>,
    /// Read every byte.
    pub deep: bool,
    /// Continue the verification with this number, from an earlier reply.
    #[serde(default)]
    pub run: Option<u64>,
}

/// Result of a verification, or of a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Number of the verification; repeat the request with it until `finished`.
    pub run: u64,
    /// The verification is complete.
    pub finished: bool,
    /// Progress: bytes for a deep verification, else versions.
    pub done: u64,
    /// Value of `done` at the end.
    pub total: u64,
    /// Number of frames in the journal, all of which were read.
    pub frames: u64,
    /// Number of versions that checkpoints need.
    pub versions: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Number of versions without a hash.
    pub unhashed: u64,
    /// Damage found.
    pub findings: Vec<Damage>,
    /// Files changed directly in the backing directory that count as unchanged because of size and
    /// mtime. Reported for the whole store or a checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<TreePath>,
    /// Message about content that only a remote has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<String>,
}

/// Damage of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// Kind of damage.
    pub kind: DamageKind,
    /// The damaged object, relative to `.ckptfs`.
    pub on: String,
    /// Path of the damaged version's file at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<TreePath>,
    /// Checkpoints that show it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<CheckpointId>,
    /// Description.
    pub detail: String,
    /// The repair that `verify --repair` does or did; absent if no repair is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<String>,
}

impl Verb for VerifyOptions {
    type Answer = Verified;
    const ONLY_ASKS: bool = true;
}

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
}
