//! Context of one change of the live tree, passed from the request or verb down to the journal.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::history::attribution::{Author, NumberedProcess};
use ckptfs_store::ids::Slot;
use ckptfs_sys::Errno;

/// Work to do without any lock before a change is retried.
#[derive(Clone, Copy, Debug)]
pub(super) enum PendingWork {
    /// Capture the file; the flag marks the capture as provisional.
    Capture(Slot, bool),
    /// Probe the lock of the file; the flag allows a short wait for its close.
    Probe(Slot, bool),
}

/// One change, or all changes of one verb: its author and its pending work. The default has no
/// author.
#[derive(Debug, Default)]
pub struct ChangeCtx {
    pub(super) author: Author,
    want: Cell<Option<PendingWork>>,
    /// Files whose lock was found free since the first attempt.
    probed: RefCell<Vec<Slot>>,
}

impl ChangeCtx {
    /// Creates the context of a change made by `process`, if that is known.
    pub fn by(process: Option<Arc<NumberedProcess>>) -> ChangeCtx {
        ChangeCtx {
            author: Author::new(process),
            ..ChangeCtx::default()
        }
    }

    /// Begins the first attempt: discards earlier probes.
    pub(super) fn begin(&self) {
        self.probed.borrow_mut().clear();
    }

    /// Records the work that must precede a retry, and returns LATER.
    pub(super) fn wants(&self, want: PendingWork) -> Errno {
        self.want.set(Some(want));
        Errno::LATER
    }

    /// Returns the work that must precede a retry, and clears it.
    pub(super) fn take_want(&self) -> Option<PendingWork> {
        self.want.take()
    }

    /// Records that the lock of a file was free.
    pub(super) fn note_probed(&self, slot: Slot) {
        self.probed.borrow_mut().push(slot);
    }

    pub(super) fn has_probed(&self, slot: Slot) -> bool {
        self.probed.borrow().contains(&slot)
    }
}
