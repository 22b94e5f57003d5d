//! Requests and answers of `undo`, `redo` and `ops`.

use crate::actor::Actor;
use crate::error::VerbError;
use crate::ids::CheckpointId;
use crate::restore::Restored;
use crate::tree_path::TreePath;
use crate::verb::Verb;
use serde::{Deserialize, Serialize};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// A checkpoint was created.
    Checkpoint,
    /// The tree, or paths of it, were restored.
    Restore,
    /// A branch or checkpoint was merged into the tree.
    Merge,
    /// A checkpoint was deleted, or its creation undone.
    Delete,
    /// A deleted checkpoint was restored.
    Revive,
    /// Tags were added or removed.
    Tag,
    /// A checkpoint was pinned.
    Pin,
    /// A checkpoint was unpinned.
    Unpin,
    /// A branch was dropped.
    DropBranch,
    /// A dropped branch was restored.
    RestoreBranch,
}

/// The changed tags of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagsChanged {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Removed tags.
    pub lost: Vec<String>,
    /// Added tags.
    pub got: Vec<String>,
}

/// An operation, as `ops --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationInfo {
    /// Its number.
    pub number: u64,
    /// Its time: RFC 3339, UTC.
    pub at: String,
    /// The actor that requested it.
    pub by: Actor,
    /// Its kind.
    pub what: OperationKind,
    /// The checkpoint that it affected; of a restore, its target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    /// Of a restore or a merge: the guard checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// Of a restore: the restored paths; empty for the whole tree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<TreePath>,
    /// Of a deletion: it is permanent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub freed: bool,
    /// Tags added or removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<TagsChanged>,
    /// The branch that it affected; `checkpoint` is its base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Of a pin: the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A retention rule, not a user, deleted the checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_rule: bool,
    /// The operation that it undid, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<u64>,
    /// The operation that undid it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<u64>,
    /// It was not undone, or was redone.
    pub in_effect: bool,
    /// Why it cannot be undone, if it is in effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// The direction of an undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UndoWalk {
    /// Undo the newest N operations.
    Undo(usize),
    /// Redo the last N operations that were undone.
    Redo(usize),
    /// Go back to the state right after this operation; 0: before the first.
    To(u64),
    /// Undo this operation only.
    Only(u64),
}

/// A request to undo or redo operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoOptions {
    /// Direction and distance.
    pub walk: UndoWalk,
    /// Skip operations that cannot be undone.
    #[serde(default)]
    pub skip: bool,
    /// With [`UndoWalk::Undo`] and [`UndoWalk::Only`]: also hide checkpoints that a user requested.
    /// With the former, also undo if the tripwire has confirmed a burst since.
    #[serde(default)]
    pub force: bool,
    /// Only report the effect.
    #[serde(default)]
    pub dry_run: bool,
}

/// An operation that was undone or skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoneStep {
    /// The operation, as it was before.
    pub operation: OperationInfo,
    /// The original operation, if this one was an undo or a redo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<OperationInfo>,
    /// The operation that undid it; `None` in a dry run or if it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_operation: Option<u64>,
    /// Of a restore: the guard checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// Of a restore: the number of changed paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<u64>,
    /// Of a restore: paths that changed while nothing was mounted. Their past is unknown, and they
    /// are left unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<TreePath>,
    /// Why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// The result of an undo or redo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// The steps, in order.
    pub steps: Vec<UndoneStep>,
    /// The restore of the tree to the state right after the named operation, if that state is known
    /// and differed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Restored>,
    /// Why the remaining operations were not undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<VerbError>,
    /// The request was a dry run.
    #[serde(default)]
    pub dry_run: bool,
}

impl OperationKind {
    /// Returns the kind for a branch that was dropped or restored.
    pub fn of_branch(dropped: bool) -> OperationKind {
        if dropped {
            OperationKind::DropBranch
        } else {
            OperationKind::RestoreBranch
        }
    }
}

/// Lists operations, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListOperations {
    /// Only operations before this one; defaults to all.
    #[serde(default)]
    pub before: Option<u64>,
    /// Limit of operations.
    pub limit: usize,
}

impl Verb for ListOperations {
    type Answer = Vec<OperationInfo>;
    const ONLY_ASKS: bool = true;
}

impl Verb for UndoOptions {
    type Answer = Undone;
    fn only_asks(&self) -> bool {
        self.dry_run
    }
}
