//! What tells whether something has changed in a tree between two looks.

use crate::live::Live;
use crate::store::ids::Slot;
use crate::sys::{SysResult, Time};

/// See the module.
#[derive(PartialEq, Eq)]
pub(super) struct Seen {
    /// Changes that have begun, opens to write among them, and records: but for those of copying up,
    /// which changes nothing.
    changes: u64,
    recordings: u64,
    /// Files that may be written to without a request: size and times.
    hot: Vec<(Slot, u64, Time, Time)>,
}

impl Seen {
    /// What can be seen now.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(super) fn of(live: &Live) -> SysResult<Seen> {
        let (changes, recordings) = live.locks.copies();
        Ok(Seen {
            changes: live.locks.changes().wrapping_sub(changes),
            recordings: (live.timeline().epochs.recordings()).wrapping_sub(recordings),
            hot: live.hot.state()?,
        })
    }
}
