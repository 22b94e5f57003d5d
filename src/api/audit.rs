//! Events of `audit`.

use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::ids::CheckpointId;
use crate::tree_path::TreePath;
use crate::verb::Verb;
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

/// Lists audit events, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListAudit;

impl Verb for ListAudit {
    type Answer = Vec<AuditEvent>;
    const ONLY_ASKS: bool = true;
}
