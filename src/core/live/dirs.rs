//! Cache of directory descriptors, which are the base of all `*at()` calls.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::Mutex;

/// Maximum number of cached descriptors. The limit of a process is often 20,000, and open files
/// also need descriptors.
const DESCRIPTORS_MAX: usize = 4096;
/// Divisor of the process's descriptor limit for the size of the cache.
const SHARE: u64 = 4;
/// Minimum size of the cache: one path has about as many directories.
const DESCRIPTORS_MIN: usize = 16;

#[derive(Debug)]
struct CachedDir {
    fd: Arc<OwnedFd>,
    /// Value of the clock at the last use.
    used: u64,
    /// The directory is known to have no default ACL.
    plain: bool,
}

#[derive(Debug, Default)]
struct Inner {
    map: HashMap<Slot, CachedDir>,
    clock: u64,
}

/// The cache. Its mutex is a leaf.
#[derive(Debug)]
pub struct Dirs {
    inner: Mutex<Inner>,
    most: usize,
}

impl Dirs {
    /// Creates an empty cache for a process with this descriptor limit.
    pub fn new(descriptors: u64) -> Dirs {
        let share = usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX);
        Dirs {
            inner: Mutex::default(),
            most: share.clamp(DESCRIPTORS_MIN, DESCRIPTORS_MAX),
        }
    }

    /// Returns the cached descriptor of a directory.
    pub fn get(&self, slot: Slot) -> Option<Arc<OwnedFd>> {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let clock = inner.clock;
        let kept = inner.map.get_mut(&slot)?;
        kept.used = clock;
        Some(Arc::clone(&kept.fd))
    }

    /// Caches a descriptor. A full cache evicts its least recently used half.
    pub fn put(&self, slot: Slot, fd: Arc<OwnedFd>) {
        let mut inner = self.inner.lock();
        if inner.map.len() >= self.most {
            let mut uses: Vec<u64> = inner.map.values().map(|kept| kept.used).collect();
            let (_, median, _) = uses.select_nth_unstable(self.most / 2);
            let median = *median;
            inner.map.retain(|_, kept| kept.used > median);
        }
        inner.clock += 1;
        let used = inner.clock;
        inner.map.insert(
            slot,
            CachedDir {
                fd,
                used,
                plain: false,
            },
        );
    }

    /// Returns whether the directory is known to have no default ACL.
    pub fn is_plain(&self, slot: Slot) -> bool {
        self.inner
            .lock()
            .map
            .get(&slot)
            .is_some_and(|kept| kept.plain)
    }

    /// Records whether a directory is known to have no default ACL.
    pub fn set_plain(&self, slot: Slot, plain: bool) {
        if let Some(kept) = self.inner.lock().map.get_mut(&slot) {
            kept.plain = plain;
        }
    }

    /// Removes a directory from the cache.
    pub fn remove(&self, slot: Slot) {
        self.inner.lock().map.remove(&slot);
    }
}
