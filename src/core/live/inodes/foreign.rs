//! Names in the tree that lead to another filesystem: mount points below the mount, and other
//! subvolumes. They are not part of the history.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::place;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Place;
use ckptfs_sys::lock::Mutex;

/// The names found so far. The mutex is a leaf.
#[derive(Default)]
pub(super) struct ForeignNames {
    count: AtomicUsize,
    names: Mutex<HashSet<Place>>,
}

impl ForeignNames {
    /// Records whether a name leads to another filesystem.
    pub(super) fn note(&self, dir: Slot, name: &Name, is_foreign: bool) {
        if !is_foreign && self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut names = self.names.lock();
        match is_foreign {
            true => names.insert(place(dir, name)),
            false => names.remove(&place(dir, name)),
        };
        self.count.store(names.len(), Ordering::Relaxed);
    }

    /// Returns whether a name was found to lead to another filesystem.
    pub(super) fn has(&self, dir: Slot, name: &Name) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.names.lock().contains(&place(dir, name))
    }
}
