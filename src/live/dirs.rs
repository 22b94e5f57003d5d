//! Descriptors of directories, kept for as long as there is room: every operation is relative to one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::store::ids::Slot;
use crate::sys::lock::Mutex;

/// Descriptors kept. The limit of a process is often 20,000, and open files need theirs.
const DESCRIPTORS_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Inner {
    map: HashMap<Slot, (Arc<OwnedFd>, u64)>,
    clock: u64,
}

/// The cache. Its mutex is a leaf.
#[derive(Debug, Default)]
pub struct Dirs {
    inner: Mutex<Inner>,
}

impl Dirs {
    /// The descriptor of a directory, if it is kept.
    pub fn get(&self, slot: Slot) -> Option<Arc<OwnedFd>> {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let clock = inner.clock;
        let (fd, used) = inner.map.get_mut(&slot)?;
        *used = clock;
        Some(Arc::clone(fd))
    }

    /// Keeps a descriptor; when there is no room, lets go of the half not used for longest.
    pub fn put(&self, slot: Slot, fd: Arc<OwnedFd>) {
        let mut inner = self.inner.lock();
        if inner.map.len() >= DESCRIPTORS_MAX {
            let mut uses: Vec<u64> = inner.map.values().map(|(_, used)| *used).collect();
            let (_, median, _) = uses.select_nth_unstable(DESCRIPTORS_MAX / 2);
            let median = *median;
            inner.map.retain(|_, (_, used)| *used > median);
        }
        inner.clock += 1;
        let clock = inner.clock;
        inner.map.insert(slot, (fd, clock));
    }

    /// Lets go of a directory that is gone.
    pub fn remove(&self, slot: Slot) {
        self.inner.lock().map.remove(&slot);
    }
}
