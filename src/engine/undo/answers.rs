//! What `undo`, `redo` and `ops` ask and answer.

use serde::{Deserialize, Serialize};

use crate::engine::api::{Restored, TreePath, VerbError};
use crate::store::ids::CheckpointId;
use crate::store::record::Actor;

/// What kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// A checkpoint was made.
    Checkpoint,
    /// The tree, or paths of it, became what they were.
    Restore,
    /// Something was merged into the tree.
    Merge,
    /// A checkpoint was deleted, or its making undone.
    Delete,
    /// A deleted checkpoint was brought back.
    Revive,
    /// Tags came and went.
    Tag,
    /// A checkpoint was pinned.
    Pin,
    /// A checkpoint was unpinned.
    Unpin,
    /// A branch was dropped.
    DropBranch,
    /// A dropped branch was brought back.
    RestoreBranch,
}

/// How the tags of a checkpoint changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagsChanged {
    /// Whose.
    pub checkpoint: CheckpointId,
    /// Tags that it lost.
    pub lost: Vec<String>,
    /// Tags that it got.
    pub got: Vec<String>,
}

/// An operation, as `ops --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationInfo {
    /// Its number.
    pub number: u64,
    /// When: RFC 3339, UTC.
    pub at: String,
    /// Who asked for it.
    pub by: Actor,
    /// What it was.
    pub what: OperationKind,
    /// The checkpoint that it was about; of a restore: what was restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    /// Of a restore or a merge: the checkpoint of what was there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// Of a restore: only these paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<TreePath>,
    /// Of a deletion: it was for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub freed: bool,
    /// Tags that came and went.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<TagsChanged>,
    /// The branch that it was about; `checkpoint` is its base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Of a pin: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A retention rule deleted the checkpoint, and no user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_rule: bool,
    /// The operation that it undid, if it was the undoing of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<u64>,
    /// The operation that undid it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<u64>,
    /// It was not undone, or was done again.
    pub in_effect: bool,
    /// Why it cannot be undone, if it is in effect and cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// Which way to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UndoWalk {
    /// Undo the newest so many.
    Undo(usize),
    /// Do again the last so many that were undone.
    Redo(usize),
    /// Back to how everything was right after this operation; 0: before the first.
    To(u64),
    /// Undo this operation only.
    Only(u64),
}

/// What is to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoOptions {
    /// Which way, and how far.
    pub walk: UndoWalk,
    /// Leave out what cannot be undone.
    #[serde(default)]
    pub skip: bool,
    /// With [`UndoWalk::Undo`] and [`UndoWalk::Only`]: hide checkpoints that somebody asked for too, and walk although the
    /// tripwire has caught something since.
    #[serde(default)]
    pub force: bool,
    /// Only tell what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// One operation that was undone, or left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoneStep {
    /// Which, as it was before.
    pub operation: OperationInfo,
    /// What it stands for, if it was the undoing or redoing of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<OperationInfo>,
    /// The operation that undid it; `None` in a dry run, and if it was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_operation: Option<u64>,
    /// Of a restore: the checkpoint of what was there before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// Of a restore: how many paths this changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<u64>,
    /// Of a restore: paths that were changed while nothing was mounted; nobody knows what they
    /// were, and they stay as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<TreePath>,
    /// Why it was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// What was undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// In this order.
    pub steps: Vec<UndoneStep>,
    /// How the tree became what it was right after the operation that was named, if it was not so
    /// already and that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Restored>,
    /// Why the rest was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<VerbError>,
    /// It was only asked what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl OperationKind {
    /// A branch was dropped, or brought back.
    pub(super) fn of_branch(dropped: bool) -> OperationKind {
        if dropped {
            OperationKind::DropBranch
        } else {
            OperationKind::RestoreBranch
        }
    }
}
