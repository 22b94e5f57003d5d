//! Operations on the history: each requested mutation, with the data needed to undo it.
//!
//! The record of an operation follows the records of its effects in the same append: after a crash
//! both exist or neither does. It describes the effects only as far as undo requires. An undo is
//! itself an operation that names the one it undoes.

use ckptfs_api::{Actor, CheckpointId};
/// The effect of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationEffect {
    /// A checkpoint was created.
    Made {
        /// The checkpoint.
        id: CheckpointId,
    },
    /// The tree, or these paths, were restored. A merge, which restores nothing, is recorded and
    /// undone in the same way, with the guard as target.
    Restored {
        /// The restored checkpoint.
        target: CheckpointId,
        /// The checkpoint of the state before.
        guard: CheckpointId,
        /// Only these paths; empty: the whole tree.
        paths: Vec<Vec<u8>>,
        /// Only these paths and nothing below them; if empty, the paths were too many to record.
        only: bool,
    },
    /// A checkpoint was deleted, or its creation undone.
    Deleted {
        /// The checkpoint.
        id: CheckpointId,
        /// The versions that only it needed were freed at once.
        freed: bool,
    },
    /// A deleted checkpoint was brought back.
    Revived {
        /// The checkpoint.
        id: CheckpointId,
    },
    /// Tags were added and removed.
    Tagged {
        /// The changes of each checkpoint, each once.
        changes: Vec<TagChange>,
    },
    /// A checkpoint was pinned or unpinned.
    Pinned {
        /// The checkpoint.
        id: CheckpointId,
        /// The reason of the earlier pin, if any.
        before: Option<String>,
        /// The reason of the new pin, if any.
        after: Option<String>,
    },
    /// A branch was dropped, or brought back.
    Branch {
        /// The checkpoint on which it is based.
        base: CheckpointId,
        /// Its name.
        name: String,
        /// The id of its store, as text.
        store: String,
        /// Whether it was dropped.
        dropped: bool,
    },
}

/// [`Operation::undoes`] of a deletion by a retention rule. Operation 0 does not exist, so
/// [`UndoStacks`] ignores the deletion: `undo`, `redo` and `undo --to` skip it, and it does not end
/// the redo line.
pub const BY_RULE: Option<u64> = Some(0);

/// The change of a checkpoint's tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagChange {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Removed tags.
    pub lost: Vec<String>,
    /// Added tags.
    pub got: Vec<String>,
}

/// An operation. They are numbered 1, 2, 3 ... in order of execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number.
    pub number: u64,
    /// Wall-clock time in nanoseconds since 1970.
    pub at_ns: i64,
    /// The actor that requested it.
    pub by: Actor,
    /// The operation that it undoes, if any.
    pub undoes: Option<u64>,
    /// Its effect.
    pub deed: OperationEffect,
}

impl OperationEffect {
    /// Returns whether this was a merge into the tree.
    pub fn is_merge(&self) -> bool {
        matches!(self, OperationEffect::Restored { target, guard, .. } if target == guard)
    }

    /// Returns the checkpoints involved; for a restore its guard, without which it cannot be
    /// undone.
    pub fn about(&self) -> Vec<CheckpointId> {
        match self {
            OperationEffect::Made { id }
            | OperationEffect::Deleted { id, .. }
            | OperationEffect::Revived { id }
            | OperationEffect::Pinned { id, .. } => vec![*id],
            OperationEffect::Restored { guard, .. } => vec![*guard],
            OperationEffect::Branch { base, .. } => vec![*base],
            OperationEffect::Tagged { changes } => changes.iter().map(|change| change.id).collect(),
        }
    }
}

/// The undo and redo stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndoStacks {
    /// Operations that can be undone, newest last.
    pub undo: Vec<u64>,
    /// Undo operations that can be redone, newest last.
    pub redo: Vec<u64>,
}

impl UndoStacks {
    /// Adds an operation. Returns the entries of the redo stack that it discarded.
    pub fn note(&mut self, number: u64, undoes: Option<u64>) -> Vec<u64> {
        let place_in = |stack: &[u64]| {
            undoes.and_then(|undone| stack.iter().rposition(|known| *known == undone))
        };
        if let Some(place) = place_in(&self.undo) {
            self.undo.remove(place);
            self.redo.push(number);
        } else if let Some(place) = place_in(&self.redo) {
            self.redo.remove(place);
            self.undo.push(number);
        } else {
            // A new operation, or one of an abandoned line, starts a new line.
            self.undo.push(number);
            return std::mem::take(&mut self.redo);
        }
        Vec::new()
    }

    /// Removes operations that can no longer be undone.
    pub fn forget(&mut self, is_gone: impl Fn(u64) -> bool) {
        [&mut self.undo, &mut self.redo]
            .into_iter()
            .for_each(|stack| stack.retain(|number| !is_gone(*number)));
    }
}
