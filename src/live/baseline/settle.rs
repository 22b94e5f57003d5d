//! Inodes that were changed while the clock was ahead: see [`crate::history::absence`].

use std::sync::Arc;

use super::super::attrs::NewAttrs;
use super::super::change::Change;
use super::Baselines;
use crate::history::absence::is_ahead;
use crate::history::present::Trail;
use crate::sys::{self, SetTime, Stat};

impl Baselines {
    /// Gives an inode whose ctime is later than now a ctime of now, so that checkpoints from here on
    /// are later than its last change. It is recorded like any change of attributes; the access time
    /// stays what it is. `settles`: nobody changes the tree past the mount, which this record would
    /// hide from views of older checkpoints. Best effort: a daemon that is not root may not change the
    /// inodes of other users.
    pub(super) fn settle(&self, settles: bool, trail: impl Fn() -> Arc<Trail>, stat: &Stat) {
        if !settles || !is_ahead(stat.ctime) {
            return;
        }
        let (trail, change) = (trail(), Change::default());
        let same = NewAttrs {
            atime: Some(SetTime::At(stat.atime)),
            ..NewAttrs::default()
        };
        let set = || self.attrs.set_attr(&change, &trail, None, &same);
        if let Err(errno) = sys::awake(set) {
            tracing::debug!(%errno, slot = trail.slot.0, "a time of change stays later than now");
        }
    }
}
