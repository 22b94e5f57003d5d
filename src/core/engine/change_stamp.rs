//! A stamp of a tree, which differs after any change.

use crate::live::Live;
use ckptfs_store::ids::Slot;
use ckptfs_sys::{SysResult, Time};

/// See the module.
#[derive(PartialEq, Eq)]
pub(super) struct ChangeStamp {
    /// Number of started changes (including opens for writing) and of records, except those of
    /// copy-ups, which change nothing.
    changes: u64,
    recordings: u64,
    /// Files writable without a request: size and times.
    hot: Vec<(Slot, u64, Time, Time)>,
}

impl ChangeStamp {
    /// Returns the current stamp.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(super) fn of(live: &Live) -> SysResult<ChangeStamp> {
        let (changes, recordings) = live.locks.copies();
        Ok(ChangeStamp {
            changes: live.locks.changes().wrapping_sub(changes),
            recordings: (live.timeline().epochs.recordings()).wrapping_sub(recordings),
            hot: live.hot.state()?,
        })
    }
}
