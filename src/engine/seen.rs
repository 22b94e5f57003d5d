//! What tells whether something has changed in a tree between two looks.

use crate::live::Live;
use crate::store::ids::Slot;
use crate::sys::{SysResult, Time};

/// See the module.
#[derive(PartialEq, Eq)]
pub(super) struct Seen {
    /// Changes that have begun, opens to write among them.
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
        Ok(Seen {
            changes: live.locks.changes(),
            recordings: live.timeline().epochs.recordings(),
            hot: live.hot.state()?,
        })
    }
}
