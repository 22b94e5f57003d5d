//! Descriptors of directories, kept for as long as there is room: every operation is relative to
//! one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::store::ids::Slot;
use crate::sys::lock::Mutex;

/// Descriptors kept at most. The limit of a process is often 20,000, and open files need theirs.
const DESCRIPTORS_MAX: usize = 4096;
/// And no more than this part of what the process may have.
const SHARE: u64 = 4;
/// But so many: one path goes through as many directories.
const DESCRIPTORS_MIN: usize = 16;

#[derive(Debug)]
struct Kept {
    fd: Arc<OwnedFd>,
    /// What the clock was when it was last used.
    used: u64,
    /// It is known to have no default ACL.
    plain: bool,
}

#[derive(Debug, Default)]
struct Inner {
    map: HashMap<Slot, Kept>,
    clock: u64,
}

/// The cache. Its mutex is a leaf.
#[derive(Debug)]
pub struct Dirs {
    inner: Mutex<Inner>,
    most: usize,
}

impl Dirs {
    /// An empty cache in a process that may have `descriptors` of them.
    pub fn new(descriptors: u64) -> Dirs {
        let share = usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX);
        Dirs {
            inner: Mutex::default(),
            most: share.clamp(DESCRIPTORS_MIN, DESCRIPTORS_MAX),
        }
    }

    /// The descriptor of a directory, if it is kept.
    pub fn get(&self, slot: Slot) -> Option<Arc<OwnedFd>> {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let clock = inner.clock;
        let kept = inner.map.get_mut(&slot)?;
        kept.used = clock;
        Some(Arc::clone(&kept.fd))
    }

    /// Keeps a descriptor; when there is no room, lets go of the half not used for longest.
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
            Kept {
                fd,
                used,
                plain: false,
            },
        );
    }

    /// The directory is known to have no default ACL.
    pub fn is_plain(&self, slot: Slot) -> bool {
        self.inner
            .lock()
            .map
            .get(&slot)
            .is_some_and(|kept| kept.plain)
    }

    /// Notes whether a directory has no default ACL, as far as is known.
    pub fn set_plain(&self, slot: Slot, plain: bool) {
        if let Some(kept) = self.inner.lock().map.get_mut(&slot) {
            kept.plain = plain;
        }
    }

    /// Lets go of a directory that is gone.
    pub fn remove(&self, slot: Slot) {
        self.inner.lock().map.remove(&slot);
    }
}
