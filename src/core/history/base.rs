//! The base of a tree, to which inherited names resolve. For a branch it is a checkpoint of the
//! parent's tree; for a tree mounted from a remote it is the remote checkpoint.

use std::fmt;
use std::sync::Arc;

use super::present::LiveTree;
use super::state::TreeState;
use super::timeline::Timeline;
use super::view::View;
use ckptfs_api::CheckpointId;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::Place;
use ckptfs_store::reserve::Reserve;

/// An immutable tree that outlives the trees that use it as a base. The creator of a base made of a
/// checkpoint ensures that this checkpoint is not deleted or thinned out.
pub struct Base {
    timeline: Arc<Timeline>,
    present: Arc<dyn LiveTree>,
    state: TreeState,
    /// Number of bases below the tree, this one included. Inodes created in the tree have this
    /// level in their number.
    pub level: u64,
}

impl Base {
    /// A checkpoint of the parent, a tree served by this process. `depth` is the number of bases
    /// below the parent.
    pub fn of_parent(
        timeline: Arc<Timeline>,
        present: Arc<dyn LiveTree>,
        at: CheckpointId,
        depth: u64,
    ) -> Base {
        Base {
            timeline,
            present,
            state: TreeState::At(at),
            level: depth + 1,
        }
    }

    /// An immutable tree without a history. `timeline` is that of the tree that uses it as a base.
    pub fn unchanging(timeline: Arc<Timeline>, present: Arc<dyn LiveTree>) -> Base {
        Base {
            timeline,
            present,
            state: TreeState::Live,
            level: 1,
        }
    }

    /// Returns the parent's history; `None` without a parent.
    pub fn parent(&self) -> Option<&Timeline> {
        self.state.checkpoint().map(|_| &*self.timeline)
    }

    /// Returns the parent's reserve for a full filesystem.
    pub fn reserve(&self) -> Arc<Reserve> {
        Arc::clone(&self.timeline.store().reserve)
    }

    /// Returns the view of the base.
    pub fn view(&self) -> View<'_> {
        View::new(&self.timeline, &*self.present, self.state)
    }

    /// Returns the possible place of an inode in the base. It is a hint, to be verified.
    pub fn place(&self, slot: Slot) -> Option<Place> {
        let recorded = match self.state {
            TreeState::At(at) => self.timeline.lookup.home_at(slot, at),
            TreeState::Live => Ok(None),
        };
        match recorded {
            Ok(Some(recorded)) => Some(recorded.before),
            // An inode not moved since is still at its place.
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
