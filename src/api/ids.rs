//! Numbers of checkpoints and epochs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of a checkpoint: 1, 2, 3 ...; never reused in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointId(pub u64);

/// The time between two checkpoints. Epoch N ends with checkpoint N; the first is 1.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns the next epoch.
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }

    /// Returns the checkpoint that closes this epoch.
    pub fn checkpoint(self) -> CheckpointId {
        CheckpointId(self.0)
    }
}

impl CheckpointId {
    /// Returns the epoch that this checkpoint closed.
    pub fn epoch(self) -> Epoch {
        Epoch(self.0)
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
