//! What a branch begins as: the tree of its parent, as it was at a checkpoint.

use std::fmt;
use std::sync::Arc;

use super::present::Present;
use super::state::State;
use super::timeline::Timeline;
use super::view::View;
use crate::store::ids::{CheckpointId, Slot};
use crate::store::record::Place;
use crate::store::reserve::Reserve;

/// A checkpoint of another tree, which is served by this process and outlives the branch. Whoever
/// makes one sees to it that the checkpoint is neither deleted nor thinned out.
pub struct Base {
    /// The history of the parent.
    pub timeline: Arc<Timeline>,
    /// The live tree of the parent.
    pub present: Arc<dyn Present>,
    /// The checkpoint.
    pub at: CheckpointId,
    /// How many branches deep the branch is: 1 if the parent is none. What is made in it has this
    /// in its number.
    pub level: u64,
}

impl Base {
    /// What the parent keeps for when the filesystem is full.
    pub fn reserve(&self) -> Arc<Reserve> {
        Arc::clone(&self.timeline.store().reserve)
    }

    /// The tree as it was then.
    pub fn view(&self) -> View<'_> {
        View::new(&self.timeline, &*self.present, State::At(self.at))
    }

    /// Where an inode may have been then: a hint, to be verified.
    pub fn place(&self, slot: Slot) -> Option<Place> {
        match self.timeline.lookup.home_at(slot, self.at) {
            Ok(Some(recorded)) => Some(recorded.before),
            // What was not moved since is where it is.
            Ok(None) => self.present.place(slot),
            Err(_) => None,
        }
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint {}", self.at)
    }
}
