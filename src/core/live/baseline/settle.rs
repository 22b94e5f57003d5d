//! Inodes with a ctime in the future: see [`crate::history::absence`].

use std::sync::Arc;

use super::super::attrs::AttrChange;
use super::super::change::ChangeCtx;
use super::BaselineUpdate;
use crate::history::absence::is_ahead;
use crate::history::present::Trail;
use ckptfs_sys::{self as sys, SetTime, Stat};

impl BaselineUpdate {
    /// Updates a ctime that is later than now, so that later checkpoints are newer than the last
    /// change of the inode. The update is recorded like any change of attributes; the access time
    /// stays the same. `settles`: no process changes the backing directory directly. The record
    /// would hide such a change from views of older checkpoints. Best effort: a daemon that is not
    /// root may not change the inodes of other users.
    pub(super) fn settle(&self, settles: bool, trail: impl Fn() -> Arc<Trail>, stat: &Stat) {
        if !settles || !is_ahead(stat.ctime) {
            return;
        }
        let (trail, change) = (trail(), ChangeCtx::default());
        let same = AttrChange {
            atime: Some(SetTime::At(stat.atime)),
            ..AttrChange::default()
        };
        let set = || self.attrs.set_attr(&change, &trail, None, &same);
        if let Err(errno) = sys::awake(set) {
            tracing::debug!(%errno, slot = trail.slot.0, "a time of change stays later than now");
        }
    }
}
