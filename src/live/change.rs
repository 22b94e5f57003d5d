//! What belongs to one change of the live tree, from the request or the verb that asks for it down
//! to the journal.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::history::attribution::{Author, Numbered};
use crate::store::ids::Slot;
use crate::sys::Errno;

/// What must be done with no lock held before a change is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// And whether the content may yet stay as it is.
    Capture(Slot, bool),
    /// And whether a close that is on its way is to be waited for.
    Probe(Slot, bool),
}

/// One change, or those of one verb: for whom it is made, and what it waits for. The default is a
/// change by nobody.
#[derive(Debug, Default)]
pub struct Change {
    pub(super) author: Author,
    want: Cell<Option<Want>>,
    /// Files whose lock was free since it was first tried.
    probed: RefCell<Vec<Slot>>,
}

impl Change {
    /// One that a process asks for, if it is known which.
    pub fn by(process: Option<Arc<Numbered>>) -> Change {
        Change {
            author: Author::new(process),
            ..Change::default()
        }
    }

    /// It is tried for the first time: nothing was probed for it.
    pub(super) fn begin(&self) {
        self.probed.borrow_mut().clear();
    }

    /// It cannot be made before this is done: LATER, for whoever tries.
    pub(super) fn wants(&self, want: Want) -> Errno {
        self.want.set(Some(want));
        Errno::LATER
    }

    /// What must be done before it is tried again.
    pub(super) fn take_want(&self) -> Option<Want> {
        self.want.take()
    }

    /// The lock of a file was free.
    pub(super) fn note_probed(&self, slot: Slot) {
        self.probed.borrow_mut().push(slot);
    }

    pub(super) fn has_probed(&self, slot: Slot) -> bool {
        self.probed.borrow().contains(&slot)
    }
}
