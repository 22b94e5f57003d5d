//! What a person or a program can ask of a mounted tree: the verbs, in plain types that `control/`
//! carries over the socket and `--json` prints.

use serde::{Deserialize, Serialize};

use crate::store::ids::CheckpointId;
use crate::store::record::{Actor, Kept, Reason};

pub use self::status::{
    AbsenceInfo, DaemonInfo, MeasuredInfo, OriginInfo, PushInfo, SealerInfo, Stats, Status,
    UpkeepInfo,
};
pub use self::tree_path::{TreePath, host_path, is_among};
pub use super::branches::radar::{Clash, Conflict, ListConflicts, Touch, WatchConflicts, Watched};
pub use super::branches::verbs::{
    BranchInfo, CreateBranch, DiffBranch, DropBranch, DroppedBranch, FreeBranch, ListBranches,
    MountBranch, ReviveBranch,
};
pub use super::dedup::{DedupOptions, DedupReport};
pub use super::du::{DuOne, DuOptions, DuReport};
pub use super::error::{Code, VerbError, VerbResult, error, hinted, io_error, not_exact, plain};
pub use super::gc::{GcGone, GcKept, GcOptions, GcReport, GcTier, GcWhy};
pub use super::glance::{Glance, Glanced};
pub use super::merge::{
    ConflictKind, Merge, MergeAnswer, MergeBase, MergeConflict, MergePolicy, MergeSide,
    MergeVersion, MergeVersions, Merged, UpdateBranch,
};
pub use super::retention::{Retention, Rule};
pub use super::room::NotePush;
pub use super::tiers::Tier;
pub use super::undo::{OperationInfo, OperationKind, UndoOptions, UndoWalk, Undone, UndoneStep};
pub use super::unmount::Unmount;
pub use super::upkeep::push_pin;
#[cfg(debug_assertions)]
pub use super::verbs::Fault;
pub use super::verbs::{
    Cancel, ChangeTags, Compare, CompareByProcess, Delete, GetStats, GetStatus, ListAudit,
    ListCheckpoints, ListOperations, ListVersions, PinCheckpoint, ShowCheckpoint,
};
pub use crate::store::check::DamageKind;

pub mod attribution;
mod status;
mod tree_path;

/// Which state of the tree is meant, as a person writes it: a number, a tag, `latest`, or `live`
/// (the tree as it is now).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateName(pub String);

/// How to make a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOptions {
    /// A note; may be empty.
    pub note: String,
    /// Tags to give it.
    pub tags: Vec<String>,
    /// Sync the tree and the store before answering, so that it survives a power cut.
    pub sync: bool,
    /// Make none if nothing differs from the newest one; the answer is that one then.
    #[serde(default)]
    pub if_changed: bool,
    /// Wait so long, in milliseconds, for an instant at which nothing is being changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce_ms: Option<u64>,
    /// When the state was there, nanoseconds since 1970, if it is imported from another history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_ns: Option<i64>,
}

/// Which checkpoints to find: those for which everything holds that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// They have a tag like this one; `*` stands for any characters, also none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Their note contains this text, in whatever case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Their note has these lines `KEY: VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<(String, String)>,
    /// Made at this time or later, as a person writes it (`10min ago`, RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Made at this time or before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Something at or below this path is another than in the kept checkpoint before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<TreePath>,
    /// At most so many, the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Older than this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<CheckpointId>,
    /// They are pinned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// They were deleted, and not freed yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// This user asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Tell of each how many paths `diff` tells.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
}

/// Other tags for a checkpoint; all or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retag {
    /// Tags to give it.
    pub add: Vec<String>,
    /// Tags to take from it, which it must have.
    pub remove: Vec<String>,
    /// Take what is added from whichever checkpoint has it.
    pub force: bool,
}

/// How one version of a path differs from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VersionKind {
    /// The path came to be.
    #[serde(rename = "A")]
    Added,
    /// It changed; of a directory: something below it did.
    #[serde(rename = "M")]
    Modified,
    /// It is gone.
    #[serde(rename = "D")]
    Deleted,
    /// It is of another kind.
    #[serde(rename = "T")]
    TypeChanged,
    /// It was changed while nothing was mounted, and nobody knows how.
    #[serde(rename = "?")]
    Unknown,
}

/// One version of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionInfo {
    /// The first checkpoint that has it; `None`: only the live tree does.
    pub checkpoint: Option<CheckpointInfo>,
    /// How it differs from the version before.
    pub change: VersionKind,
    /// What it is; `None` where it is gone or not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<crate::sys::Kind>,
    /// Its size in bytes, if it is a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// When its content last changed: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
}

/// A checkpoint, as `checkpoint --json`, `log --json` and `show --json` print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Number.
    pub id: CheckpointId,
    /// How many paths differ from its parent, if that was asked for and did not take too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<u64>,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// Note; may be empty.
    pub note: String,
    /// When it was made: RFC 3339, UTC, nanoseconds.
    pub created: String,
    /// All files held open for writing were captured at one instant.
    pub atomic: bool,
    /// Number of changes recorded since the checkpoint before.
    pub dirty: u64,
    /// Why it was made.
    pub reason: Reason,
    /// From request to acknowledgement in the daemon, microseconds; only in the answer to
    /// `checkpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// How long changes had to wait of that, microseconds; only in the answer to `checkpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_us: Option<u64>,
    /// The file that took longest to capture; only in the answer to `checkpoint`, and absent if
    /// none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest_file: Option<Box<SlowFile>>,
    /// Files that were open or mapped for writing and of which the checkpoint had to see to it
    /// itself that they are captured; only in the answer to `checkpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Nothing had changed, and so none was made: this is the newest there was; only in the answer
    /// to `checkpoint --if-changed`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// What was open for writing when it was made; only in the answer to `show`, and absent if
    /// nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_at_cut: Option<attribution::OpenAtCut>,
    /// Nothing was being changed when it was made; only in the answer to `checkpoint --quiesce`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesced: Option<bool>,
    /// It is pinned: not to be deleted, for this reason, which may be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// The kept checkpoint that the tree came from.
    #[serde(default)]
    pub parent: Option<CheckpointId>,
    /// Who asked for it, if that was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Actor>,
    /// A tier has dropped the content of something that it shows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_dropped: bool,
    /// What that is; only in the answer of a daemon to `show`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Box<DroppedInfo>>,
}

/// A time as answers have it: whole microseconds.
pub fn microseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A file, open for writing, that a checkpoint had to capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowFile {
    /// Where it is.
    pub path: TreePath,
    /// How long it took, before the freeze and in it, microseconds.
    pub duration_us: u64,
}

/// What tiers have dropped of a checkpoint: names, sizes and attributes are there still, the
/// content is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedInfo {
    /// The topmost paths that a tier's pattern matches and that something was dropped of, sorted.
    pub paths: Vec<TreePath>,
    /// Files whose content is not kept.
    pub files: u64,
    /// What they held.
    pub bytes: u64,
}

impl CheckpointInfo {
    /// The journal's checkpoint as people see it.
    pub fn new(checkpoint: &Kept) -> CheckpointInfo {
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
}

/// What happened to a path between two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChangeKind {
    /// It did not exist.
    #[serde(rename = "A")]
    Added,
    /// Its content, attributes or extended attributes differ.
    #[serde(rename = "M")]
    Modified,
    /// It is gone.
    #[serde(rename = "D")]
    Deleted,
    /// It had another path.
    #[serde(rename = "R")]
    Renamed,
    /// It is of another kind.
    #[serde(rename = "T")]
    TypeChanged,
    /// It cannot be told.
    #[serde(rename = "?")]
    Unknown,
}

/// Why it cannot be told what a path was, or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// It was changed while nothing was mounted, or past the mount.
    ChangedUnseen,
    /// It cannot be read: a version is lost or damaged.
    Unreadable,
}

impl Why {
    /// As people are told.
    pub fn words(self) -> &'static str {
        match self {
            Why::ChangedUnseen => "it was changed while nothing was mounted, or behind the mount",
            Why::Unreadable => "it cannot be read: a version of it is lost or damaged",
        }
    }
}

impl ChangeKind {
    /// The letter.
    pub fn letter(self) -> char {
        match self {
            ChangeKind::Added => 'A',
            ChangeKind::Modified => 'M',
            ChangeKind::Deleted => 'D',
            ChangeKind::Renamed => 'R',
            ChangeKind::TypeChanged => 'T',
            ChangeKind::Unknown => '?',
        }
    }
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its path in the newer state; in the older one if it was deleted.
    pub path: TreePath,
    /// What happened.
    pub change: ChangeKind,
    /// For a rename: the path it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<TreePath>,
    /// What it is in the newer state (in the older one if deleted): `file`, `dir`, ...
    pub kind: crate::sys::Kind,
    /// Size in the older state, in bytes, where that was asked for and it was a file there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_size: Option<u64>,
    /// Size in the newer state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Of what cannot be told: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
}

impl Change {
    /// A path that changed so.
    pub fn new(path: Vec<u8>, change: ChangeKind, kind: crate::sys::Kind) -> Change {
        Change {
            path: TreePath(path),
            change,
            from: None,
            kind,
            old_size: None,
            size: None,
            why: None,
        }
    }

    /// A path of which nobody knows how it changed.
    pub fn unknown(path: Vec<u8>, kind: crate::sys::Kind, why: Why) -> Change {
        Change {
            why: Some(why),
            ..Change::new(path, ChangeKind::Unknown, kind)
        }
    }
}

/// Which time a restore gives to files that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Times {
    /// The one that they had.
    Kept,
    /// That of the restore: whatever is made from them is older, and is made again.
    Now,
}

impl Times {
    /// What is meant where nothing was said: outputs come back with the whole tree, and stay with
    /// some paths of it.
    pub fn or_default(said: Option<Times>, paths: bool) -> Times {
        said.unwrap_or(if paths { Times::Now } else { Times::Kept })
    }
}

/// What a restore is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreOptions {
    /// What to restore.
    pub to: StateName,
    /// Only these paths and what is below them; empty: the whole tree.
    pub paths: Vec<TreePath>,
    /// Only tell what would change.
    pub dry_run: bool,
    /// Which time files get; [`Times::Now`] with paths and [`Times::Kept`] without, if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
}

/// What a restore did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// What was restored.
    pub restored: CheckpointId,
    /// The checkpoint of what was there before; `None` in a dry run, and if everything was so
    /// already.
    pub guard: Option<CheckpointId>,
    /// What changed in the live tree, sorted by path.
    pub changes: Vec<Change>,
    /// Paths that were changed while nothing was mounted: the checkpoint does not know what they
    /// were, and they stay as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<TreePath>,
    /// Paths of which a tier dropped something that the checkpoint had: they stay as they are, with
    /// all below them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<TreePath>,
    /// Mount points, and directories on the way to one, that the checkpoint has elsewhere or not at
    /// all, or whose content it has otherwise: they stay as they are, with all below them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounted: Vec<TreePath>,
    /// Paths that were one file with others that were not to be restored, and are files of their
    /// own now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<TreePath>,
    /// It was only asked what would change.
    pub dry_run: bool,
    /// Time in the daemon, microseconds.
    pub duration_us: u64,
}

/// What is to be verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyOptions {
    /// Only what this checkpoint shows; everything if not given.
    pub state: Option<StateName>,
    /// Read every byte.
    pub deep: bool,
    /// Go on with the verification of this number, which an answer gave.
    #[serde(default)]
    pub run: Option<u64>,
}

/// What a verification has found, or a part of one has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Its number: ask again with it until `finished`.
    pub run: u64,
    /// Nothing is left to look at.
    pub finished: bool,
    /// How much was looked at: bytes if it is deep, else versions.
    pub done: u64,
    /// How much there is.
    pub total: u64,
    /// Frames of the journal, all of them read.
    pub frames: u64,
    /// Versions that checkpoints need.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that have no hash yet.
    pub unhashed: u64,
    /// What is wrong.
    pub findings: Vec<Damage>,
    /// Files that were changed behind our back, and count as unchanged: by size and time of
    /// modification they are. Looked for where all of the tree is, or a checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<TreePath>,
    /// What is in a remote alone, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<String>,
}

/// One thing that is wrong with a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// What kind.
    pub kind: DamageKind,
    /// What it was found in, relative to `.ckptfs`.
    pub on: String,
    /// The file that it is a version of, where it was then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<TreePath>,
    /// The checkpoints that show it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<CheckpointId>,
    /// What was found, in words.
    pub detail: String,
    /// What `fsck --repair` does about it, or has done; not given: nothing can be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<String>,
}

/// What happened, for `audit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditKind {
    /// A checkpoint was made.
    Checkpoint,
    /// A restore began.
    Restore,
    /// The restore, or the merge, that began last is complete.
    Restored,
    /// A merge began.
    Merge,
    /// What a checkpoint needed was freed: it cannot be brought back.
    Free,
    /// A checkpoint's tags were changed.
    Tag,
    /// A checkpoint was pinned.
    Pin,
    /// A checkpoint was unpinned.
    Unpin,
    /// A checkpoint was deleted so that it can be brought back, or its making undone.
    Delete,
    /// A deleted checkpoint was brought back.
    Undelete,
    /// A daemon began to serve the tree.
    Mount,
    /// A daemon ended in an orderly way.
    Unmount,
}

/// Who did what when: one line of `audit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// When: RFC 3339, UTC; not known of what an older program recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// What happened.
    pub what: AuditKind,
    /// Who asked for it, if that was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Actor>,
    /// The checkpoint that was made, deleted, tagged or restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    /// Of a restore: the checkpoint of what was there before; of a checkpoint that is one: what was
    /// about to be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// Tags that the checkpoint has from then on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Of a restore: only these paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<TreePath>,
    /// Note of the checkpoint.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Of a mount: since when nobody had served the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unserved_since: Option<String>,
}

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    /// One more.
    pub fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Those of another too.
    pub fn join(&mut self, other: Count) {
        self.files += other.files;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}
