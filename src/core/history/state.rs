//! States of the tree, which can be read, selected and compared.

use ckptfs_api::CheckpointId;

/// A state of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TreeState {
    /// The state at a checkpoint.
    At(CheckpointId),
    /// The current state.
    Live,
}

impl TreeState {
    /// Returns the checkpoint; `None` for the live tree.
    pub fn checkpoint(self) -> Option<CheckpointId> {
        match self {
            TreeState::At(id) => Some(id),
            TreeState::Live => None,
        }
    }
}
