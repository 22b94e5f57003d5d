//! A state of the tree: what can be looked at, selected and compared.

use crate::store::ids::CheckpointId;

/// Which state of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// As it was at a checkpoint.
    At(CheckpointId),
    /// As it is.
    Live,
}

impl State {
    /// The checkpoint; `None`: it is the live tree.
    pub fn checkpoint(self) -> Option<CheckpointId> {
        match self {
            State::At(id) => Some(id),
            State::Live => None,
        }
    }
}
