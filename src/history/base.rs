//! What a tree looks through to where it has nothing of its own: of a branch the tree of its parent,
//! as it was at a checkpoint; of a tree whose content is elsewhere, what is there.

use std::fmt;
use std::sync::Arc;

use super::present::Present;
use super::state::State;
use super::timeline::Timeline;
use super::view::View;
use crate::store::ids::{CheckpointId, Slot};
use crate::store::record::Place;
use crate::store::reserve::Reserve;

/// A tree that never changes, and outlives who looks through to it. Whoever makes one of a checkpoint
/// sees to it that the checkpoint is neither deleted nor thinned out.
pub struct Base {
    timeline: Arc<Timeline>,
    present: Arc<dyn Present>,
    state: State,
    /// How many bases deep the tree is: 1 if the base looks through to nothing itself. What is made
    /// in it has this in its number.
    pub level: u64,
}

impl Base {
    /// A checkpoint of another tree, the parent, which is served by this process: its history, and
    /// its live tree, which is so many bases deep itself.
    pub fn of_parent(
        timeline: Arc<Timeline>,
        present: Arc<dyn Present>,
        at: CheckpointId,
        depth: u64,
    ) -> Base {
        Base {
            timeline,
            present,
            state: State::At(at),
            level: depth + 1,
        }
    }

    /// A tree that never changes, and so has no history. `timeline`: that of the tree that looks
    /// through to it.
    pub fn unchanging(timeline: Arc<Timeline>, present: Arc<dyn Present>) -> Base {
        Base {
            timeline,
            present,
            state: State::Live,
            level: 1,
        }
    }

    /// The history of the parent; `None`: there is no parent.
    pub fn parent(&self) -> Option<&Timeline> {
        self.state.checkpoint().map(|_| &*self.timeline)
    }

    /// What the parent keeps for when the filesystem is full.
    pub fn reserve(&self) -> Arc<Reserve> {
        Arc::clone(&self.timeline.store().reserve)
    }

    /// The tree as it was then.
    pub fn view(&self) -> View<'_> {
        View::new(&self.timeline, &*self.present, self.state)
    }

    /// Where an inode may have been then: a hint, to be verified.
    pub fn place(&self, slot: Slot) -> Option<Place> {
        let recorded = match self.state {
            State::At(at) => self.timeline.lookup.home_at(slot, at),
            State::Live => Ok(None),
        };
        match recorded {
            Ok(Some(recorded)) => Some(recorded.before),
            // What was not moved since is where it is.
            Ok(None) => self.present.place(slot),
            Err(_) => None,
        }
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.state)
    }
}
