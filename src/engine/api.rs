//! The API of a mounted tree: plain types for the verbs, which `control/` transports over the
//! socket and `--json` prints.

use serde::{Deserialize, Serialize};

use crate::store::ids::CheckpointId;
use crate::store::record::{Actor, CheckpointState, Reason};

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
pub use super::gc::{GcKept, GcOptions, GcReason, GcRemoved, GcReport, GcTier};
pub use super::glance::{PromptQuery, PromptStatus};
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

/// A state of the tree as named by the user: a number, a tag, `latest`, or `live` (the current
/// tree).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateName(pub String);

/// Options of a new checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOptions {
    /// Note; may be empty.
    pub note: String,
    /// Tags to add.
    pub tags: Vec<String>,
    /// Sync the tree and the store before the reply, so that the checkpoint survives a power cut.
    pub sync: bool,
    /// Make no checkpoint if nothing differs from the base; the reply is then the base.
    #[serde(default)]
    pub if_changed: bool,
    /// Time to wait for an instant without changes, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce_ms: Option<u64>,
    /// Time of the state, nanoseconds since the epoch, if it is imported from another history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_ns: Option<i64>,
}

/// A search for checkpoints that meet all given conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// A tag matches this pattern; `*` matches any characters, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The note contains this text, ignoring case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The note has these `KEY: VALUE` lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<(String, String)>,
    /// Made at or after this time, in the user's notation (`10min ago`, RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Made at or before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// A path at or below this one differs from the previous kept checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<TreePath>,
    /// Up to this number of checkpoints, newest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Older than this checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<CheckpointId>,
    /// Pinned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// Deleted but not freed yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// Requested by this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Count the paths that `diff` would list for each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
}

/// A change of a checkpoint's tags; all or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retag {
    /// Tags to add.
    pub add: Vec<String>,
    /// Tags to remove, all of which must exist.
    pub remove: Vec<String>,
    /// Move an added tag from another checkpoint.
    pub force: bool,
}

/// The difference between a version of a path and the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VersionKind {
    /// The path was created.
    #[serde(rename = "A")]
    Added,
    /// The path changed; for a directory, a path below it did.
    #[serde(rename = "M")]
    Modified,
    /// The path was deleted.
    #[serde(rename = "D")]
    Deleted,
    /// The path has another file type.
    #[serde(rename = "T")]
    TypeChanged,
    /// The path was changed while nothing was mounted; details are unknown.
    #[serde(rename = "?")]
    Unknown,
}

/// A version of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionInfo {
    /// The first checkpoint with this version; `None`: only the live tree has it.
    pub checkpoint: Option<CheckpointInfo>,
    /// The difference from the previous version.
    pub change: VersionKind,
    /// File type; `None` if the path is missing or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<crate::sys::Kind>,
    /// Size of a regular file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Time of the last modification of its content: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
}

/// A checkpoint, as `checkpoint --json`, `log --json` and `show --json` print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Number.
    pub id: CheckpointId,
    /// Number of paths that differ from the parent, if requested and counted within the time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<u64>,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// Note; may be empty.
    pub note: String,
    /// Time of creation: RFC 3339, UTC, nanoseconds.
    pub created: String,
    /// All files open for writing were captured at one instant.
    pub atomic: bool,
    /// Number of changes recorded since the previous checkpoint.
    pub dirty: u64,
    /// Reason for the checkpoint.
    pub reason: Reason,
    /// Time from request to acknowledgement in the daemon, microseconds; only in the reply to
    /// `checkpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// Part of `duration_us` during which changes were blocked, microseconds; only in the reply to
    /// `checkpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_us: Option<u64>,
    /// The file whose capture took longest; only in the reply to `checkpoint`, and absent if no
    /// file was captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest_file: Option<Box<SlowFile>>,
    /// Number of files open or mapped for writing that the checkpoint itself had to capture; only
    /// in the reply to `checkpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Nothing had changed, so no checkpoint was made: this is the base; only in the reply to
    /// `checkpoint --if-changed`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// Files open for writing when it was made; only in the reply to `show`, and absent if no file
    /// was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_at_cut: Option<attribution::OpenAtCut>,
    /// Nothing was being changed when it was made; only in the reply to `checkpoint --quiesce`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesced: Option<bool>,
    /// The reason of its pin, which may be empty; a pinned checkpoint cannot be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// The kept checkpoint that the tree descended from.
    #[serde(default)]
    pub parent: Option<CheckpointId>,
    /// The requester, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Actor>,
    /// A tier has dropped content that it shows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_dropped: bool,
    /// The dropped content; only in a daemon's reply to `show`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Box<DroppedInfo>>,
}

/// Returns a duration in whole microseconds, as in replies.
pub fn microseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A file open for writing that a checkpoint had to capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowFile {
    /// Its path.
    pub path: TreePath,
    /// Duration of its capture, before and during the freeze, microseconds.
    pub duration_us: u64,
}

/// Content of a checkpoint that tiers have dropped. Names, sizes and attributes remain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedInfo {
    /// The topmost paths that match a tier's pattern and have lost content, sorted.
    pub paths: Vec<TreePath>,
    /// Number of files without content.
    pub files: u64,
    /// Their former size in bytes.
    pub bytes: u64,
}

impl CheckpointInfo {
    /// Converts a checkpoint of the journal.
    pub fn new(checkpoint: &CheckpointState) -> CheckpointInfo {
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

/// The change of a path between two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The path did not exist.
    #[serde(rename = "A")]
    Added,
    /// The content, attributes or extended attributes differ.
    #[serde(rename = "M")]
    Modified,
    /// The path no longer exists.
    #[serde(rename = "D")]
    Deleted,
    /// The path was renamed.
    #[serde(rename = "R")]
    Renamed,
    /// The path has another file type.
    #[serde(rename = "T")]
    TypeChanged,
    /// The change is unknown.
    #[serde(rename = "?")]
    Unknown,
}

/// Reason why a former or current state of a path is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Changed while nothing was mounted, or directly in the backing directory.
    ChangedUnseen,
    /// Unreadable: a version is lost or damaged.
    Unreadable,
}

impl Why {
    /// Returns the text for messages.
    pub fn words(self) -> &'static str {
        match self {
            Why::ChangedUnseen => "it was changed while nothing was mounted, or behind the mount",
            Why::Unreadable => "it cannot be read: a version of it is lost or damaged",
        }
    }
}

impl ChangeKind {
    /// Returns the status letter.
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

/// A path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Path in the newer state; in the older one if it was deleted.
    pub path: TreePath,
    /// Kind of change.
    pub change: ChangeKind,
    /// For a rename: the former path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<TreePath>,
    /// File type in the newer state (in the older one if deleted): `file`, `dir`, ...
    pub kind: crate::sys::Kind,
    /// Size of a regular file in the older state, in bytes, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_size: Option<u64>,
    /// Size in the newer state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// For an unknown change: the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
}

impl Change {
    /// Returns a change without sizes.
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

    /// Returns an unknown change.
    pub fn unknown(path: Vec<u8>, kind: crate::sys::Kind, why: Why) -> Change {
        Change {
            why: Some(why),
            ..Change::new(path, ChangeKind::Unknown, kind)
        }
    }
}

/// The modification time of files that a restore changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Times {
    /// The recorded time.
    Kept,
    /// The time of the restore: build outputs are then older than their sources and are rebuilt.
    Now,
}

impl Times {
    /// Returns the default for `None`: a restore of the whole tree also restores build outputs; one
    /// of some paths does not.
    pub fn or_default(said: Option<Times>, paths: bool) -> Times {
        said.unwrap_or(if paths { Times::Now } else { Times::Kept })
    }
}

/// Options of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreOptions {
    /// State to restore.
    pub to: StateName,
    /// Restrict the restore to these paths and everything below; empty: the whole tree.
    pub paths: Vec<TreePath>,
    /// Only report the changes.
    pub dry_run: bool,
    /// Modification times; defaults to [`Times::Now`] with paths and to [`Times::Kept`] without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
}

/// Result of a restore or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The restored checkpoint.
    pub restored: CheckpointId,
    /// The guard checkpoint; `None` in a dry run, and if the tree was already in that state.
    pub guard: Option<CheckpointId>,
    /// Changes of the live tree, sorted by path.
    pub changes: Vec<Change>,
    /// Paths changed while nothing was mounted: the checkpoint has no state of them, and they were
    /// not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<TreePath>,
    /// Paths whose content a tier has dropped: they and everything below were not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<TreePath>,
    /// Mount points, and directories above them, that the checkpoint has at another path, not at
    /// all, or with other content: they and everything below were not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounted: Vec<TreePath>,
    /// Paths that were hard links of others outside the restore, and are separate files now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<TreePath>,
    /// This was a dry run.
    pub dry_run: bool,
    /// Time in the daemon, microseconds.
    pub duration_us: u64,
}

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

/// Kind of event in `audit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditKind {
    /// A checkpoint was made.
    Checkpoint,
    /// A restore began.
    Restore,
    /// The last restore or merge is complete.
    Restored,
    /// A merge began.
    Merge,
    /// Data of a checkpoint was freed: it cannot be restored any more.
    Free,
    /// A checkpoint's tags were changed.
    Tag,
    /// A checkpoint was pinned.
    Pin,
    /// A checkpoint was unpinned.
    Unpin,
    /// A checkpoint was deleted reversibly, or its creation undone.
    Delete,
    /// A deleted checkpoint was restored to the list.
    Undelete,
    /// A daemon began to serve the tree.
    Mount,
    /// A daemon exited cleanly.
    Unmount,
}

/// An event of `audit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// Time: RFC 3339, UTC; absent for records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Kind of event.
    pub what: AuditKind,
    /// The requester, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Actor>,
    /// The checkpoint that was made, deleted, tagged or restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    /// For a restore, its guard checkpoint; for a guard checkpoint, the state about to be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// The checkpoint's tags from then on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// For a restore: only these paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<TreePath>,
    /// Note of the checkpoint.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// For a mount: the end of the previous service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unserved_since: Option<String>,
}

/// A number of files and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Number of files.
    pub files: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Count {
    /// Adds one file.
    pub fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds another count.
    pub fn join(&mut self, other: Count) {
        self.files += other.files;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}
