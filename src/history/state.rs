//! States of the tree, which can be read, selected and compared.

use crate::store::ids::CheckpointId;

/// A state of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// The state at a checkpoint.
    At(CheckpointId),
    /// The current state.
    Live,
}

impl State {
    /// Returns the checkpoint; `None` for the live tree.
    pub fn checkpoint(self) -> Option<CheckpointId> {
        match self {
            State::At(id) => Some(id),
            State::Live => None,
        }
    }
}
