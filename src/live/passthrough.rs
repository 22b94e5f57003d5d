//! For whom the kernel does the I/O.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::store::ids::Slot;
use crate::sys::{self, Asker};

/// Whether files are opened for the kernel to do their I/O, and for whom.
pub struct Passthrough {
    on: AtomicBool,
    /// Of every user's files.
    for_all: AtomicBool,
    /// Whose process this is.
    user: u32,
    /// Whose the top directory is.
    owner: AtomicU32,
}

impl Passthrough {
    /// Off, in a tree whose top directory is this user's.
    pub(super) fn new(owner: u32) -> Passthrough {
        Passthrough {
            on: AtomicBool::new(false),
            for_all: AtomicBool::new(false),
            user: sys::ids().0,
            owner: AtomicU32::new(owner),
        }
    }

    /// From now on files are opened for the kernel to do their I/O, or no longer.
    /// `for_all`: for every user, see [`Passthrough::is_for`].
    pub fn set(&self, on: bool, for_all: bool) {
        self.on.store(on, Ordering::Relaxed);
        self.for_all.store(for_all, Ordering::Relaxed);
    }

    /// The kernel does the I/O of files opened from now on.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The kernel may do the I/O of this user: root, the daemon's user, and the owner of the top
    /// directory. While it does, the backing file is locked by a process that may wait for as long
    /// as it likes (see `busy`); any other user's I/O passes the daemon, which has buffers of its
    /// own.
    pub fn is_for(&self, asker: Option<Asker>) -> bool {
        self.is_on()
            && (self.for_all.load(Ordering::Relaxed)
                || asker.is_none_or(|asker| {
                    [0, self.user, self.owner.load(Ordering::Relaxed)].contains(&asker.uid)
                }))
    }

    /// The top directory may have another owner.
    pub(super) fn note_owner(&self, slot: Slot, uid: u32) {
        if slot == Slot::ROOT {
            self.owner.store(uid, Ordering::Relaxed);
        }
    }
}
