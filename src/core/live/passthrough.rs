//! Selection of files for passthrough I/O.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ckptfs_store::ids::Slot;
use ckptfs_sys::{self as sys, RequesterIds};

/// Decides whether a file is opened with passthrough I/O.
pub struct Passthrough {
    on: AtomicBool,
    /// For every user.
    for_all: AtomicBool,
    /// User of the daemon.
    user: u32,
    /// Owner of the root directory.
    owner: AtomicU32,
}

impl Passthrough {
    /// Disabled, for a tree whose root directory has this owner.
    pub(super) fn new(owner: u32) -> Passthrough {
        Passthrough {
            on: AtomicBool::new(false),
            for_all: AtomicBool::new(false),
            user: sys::ids().0,
            owner: AtomicU32::new(owner),
        }
    }

    /// Enables or disables passthrough for later opens. `for_all` extends it to every user: see
    /// [`Passthrough::is_for`].
    pub fn set(&self, on: bool, for_all: bool) {
        self.on.store(on, Ordering::Relaxed);
        self.for_all.store(for_all, Ordering::Relaxed);
    }

    /// Returns whether passthrough is enabled.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Returns whether this user may use passthrough: root, the daemon's user, and the owner of the
    /// root directory. A passthrough call locks the backing inode in the context of a process that
    /// may delay it without limit (see `busy`). I/O of other users goes through the daemon, which
    /// uses private buffers.
    pub fn is_for(&self, asker: Option<RequesterIds>) -> bool {
        self.is_on()
            && (self.for_all.load(Ordering::Relaxed)
                || asker.is_none_or(|asker| {
                    [0, self.user, self.owner.load(Ordering::Relaxed)].contains(&asker.uid)
                }))
    }

    /// Records a new owner of the root directory.
    pub(super) fn note_owner(&self, slot: Slot, uid: u32) {
        if slot == Slot::ROOT {
            self.owner.store(uid, Ordering::Relaxed);
        }
    }
}
