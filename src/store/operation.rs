//! Operations on the history: each mutation that somebody asked for, with what it takes to undo it.
//!
//! The record of an operation is appended together with the records of what it did, behind them:
//! both are there after a crash, or neither is. It names what it did only as far as the way back
//! needs it. To undo one is an operation too, which names the one that it undoes.

use super::ids::CheckpointId;
use super::record::Actor;

/// What an operation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A checkpoint was made.
    Made {
        /// Which.
        id: CheckpointId,
    },
    /// The tree, or these paths, became what they were; or something was merged into it, which
    /// restores nothing but is undone like it: then the target is the guard.
    Restored {
        /// What was restored.
        target: CheckpointId,
        /// The checkpoint of what was there before.
        guard: CheckpointId,
        /// Only these; empty: the whole tree.
        paths: Vec<Vec<u8>>,
        /// Only these and nothing below them; empty: those were too many to be told here.
        only: bool,
    },
    /// A checkpoint was deleted, or its making undone.
    Deleted {
        /// Which.
        id: CheckpointId,
        /// What only it needed was freed at once.
        freed: bool,
    },
    /// A deleted checkpoint was brought back.
    Revived {
        /// Which.
        id: CheckpointId,
    },
    /// Tags came and went.
    Tagged {
        /// Of which checkpoints, each once.
        changes: Vec<Retagged>,
    },
    /// A checkpoint was pinned or unpinned.
    Pinned {
        /// Which.
        id: CheckpointId,
        /// Why it was pinned before, if it was.
        before: Option<String>,
        /// Why it is now, if it is.
        after: Option<String>,
    },
    /// A branch was dropped, or brought back.
    Branch {
        /// The checkpoint that it is based on.
        base: CheckpointId,
        /// What it is called.
        name: String,
        /// Which store is its: the id as text.
        store: String,
        /// It was dropped.
        dropped: bool,
    },
}

/// [`Operation::undoes`] of a deletion by a retention rule. There is no operation 0, so [`Line`]
/// leaves the deletion out: `undo`, `redo` and `undo --to` do not come to it, and it does not end
/// what can be redone.
pub const BY_RULE: Option<u64> = Some(0);

/// How the tags of a checkpoint changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retagged {
    /// Whose.
    pub id: CheckpointId,
    /// Tags that it lost.
    pub lost: Vec<String>,
    /// Tags that it got.
    pub got: Vec<String>,
}

/// An operation. Their numbers are 1, 2, 3 ... in the order in which they were done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number.
    pub number: u64,
    /// When: wall clock, nanoseconds since 1970.
    pub at_ns: i64,
    /// Who asked for it.
    pub by: Actor,
    /// The operation that it undoes, if it is the undoing of one.
    pub undoes: Option<u64>,
    /// What it did.
    pub deed: Deed,
}

impl Deed {
    /// Something was merged into the tree.
    pub fn is_merge(&self) -> bool {
        matches!(self, Deed::Restored { target, guard, .. } if target == guard)
    }

    /// The checkpoints that it is about; of a restore that is its guard, without which there is no
    /// way back.
    pub fn about(&self) -> Vec<CheckpointId> {
        match self {
            Deed::Made { id }
            | Deed::Deleted { id, .. }
            | Deed::Revived { id }
            | Deed::Pinned { id, .. } => vec![*id],
            Deed::Restored { guard, .. } => vec![*guard],
            Deed::Branch { base, .. } => vec![*base],
            Deed::Tagged { changes } => changes.iter().map(|change| change.id).collect(),
        }
    }
}

/// Which operations can be undone next, and which of those that were undone can be done again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Those that can be undone, newest last.
    pub undo: Vec<u64>,
    /// Those that undid one, newest last.
    pub redo: Vec<u64>,
}

impl Line {
    /// An operation was done. What it ended: what could have been done again until now.
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
            // Something new, or of a line that was left: from here on it is the one.
            self.undo.push(number);
            return std::mem::take(&mut self.redo);
        }
        Vec::new()
    }

    /// Operations that nobody can undo any more are forgotten.
    pub fn forget(&mut self, is_gone: impl Fn(u64) -> bool) {
        [&mut self.undo, &mut self.redo]
            .into_iter()
            .for_each(|stack| stack.retain(|number| !is_gone(*number)));
    }
}
