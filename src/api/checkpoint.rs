//! Checkpoints: creation, search, tags, pins, deletion.

use serde::{Deserialize, Serialize};

use crate::actor::{Actor, Reason};
use crate::ids::CheckpointId;
use crate::tree_path::TreePath;
use crate::verb::Verb;
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
    pub open_at_cut: Option<crate::attribution::OpenAtCut>,
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

impl Verb for CheckpointOptions {
    type Answer = CheckpointInfo;
}

/// Lists all checkpoints, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListCheckpoints;

impl Verb for ListCheckpoints {
    type Answer = Vec<CheckpointInfo>;
    const ONLY_ASKS: bool = true;
}

/// Requests one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShowCheckpoint {
    /// The checkpoint.
    pub state: StateName,
}

impl Verb for ShowCheckpoint {
    type Answer = CheckpointInfo;
    const ONLY_ASKS: bool = true;
}

impl Verb for Query {
    type Answer = Vec<CheckpointInfo>;
    const ONLY_ASKS: bool = true;
}

/// Changes the tags of a checkpoint. On reply they survive `kill -9` of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeTags {
    /// The checkpoint.
    pub state: StateName,
    /// Tags to add and remove.
    pub retag: Retag,
}

impl Verb for ChangeTags {
    type Answer = CheckpointInfo;
}

/// Pins or unpins a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinCheckpoint {
    /// The checkpoint.
    pub state: StateName,
    /// The reason, which may be empty; `None`: unpin.
    pub reason: Option<String>,
}

impl Verb for PinCheckpoint {
    type Answer = CheckpointInfo;
}

/// Deletes a checkpoint reversibly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// The checkpoint.
    pub state: StateName,
    /// Delete permanently, even if already deleted, and free the data that only it needs.
    #[serde(default)]
    pub now: bool,
}

impl Verb for Delete {
    type Answer = CheckpointInfo;
}
