//! Counts the descriptors of unlinked inodes. A restore can create one for each file, and the
//! kernel forgets the inodes only afterwards.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use ckptfs_sys::lock::Mutex;

/// Divisor of the process's descriptor limit for optional descriptors of unlinked inodes.
const SHARE: u64 = 4;
/// Number of entries checked by each call of [`OrphanCount::are_many`].
const LOOKED_AT: usize = 16;

/// The descriptors, by weak reference. The mutex is a leaf.
#[derive(Debug)]
pub(super) struct OrphanCount {
    held: Mutex<OrphanRefs>,
    most: usize,
}

#[derive(Debug, Default)]
struct OrphanRefs {
    given: Vec<Weak<OwnedFd>>,
    /// Next entry to check.
    at: usize,
}

impl OrphanCount {
    /// Creates an empty counter for a process with this descriptor limit.
    pub(super) fn new(descriptors: u64) -> OrphanCount {
        OrphanCount {
            held: Mutex::default(),
            most: usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX),
        }
    }

    /// Counts one descriptor.
    pub(super) fn note(&self, held: &Arc<OwnedFd>) {
        self.held.lock().given.push(Arc::downgrade(held));
    }

    /// Returns whether `more` descriptors are certainly below the limit. Closed ones are not
    /// subtracted first.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.held.lock().given.len() + more < self.most
    }

    /// Returns whether the limit is reached.
    pub(super) fn are_many(&self) -> bool {
        let held = &mut *self.held.lock();
        // Only a few entries per call: a restore calls this for each file.
        for _ in 0..LOOKED_AT {
            if held.given.len() < self.most.max(1) {
                return false;
            }
            held.at %= held.given.len();
            match held.given.get(held.at) {
                Some(given) if given.strong_count() > 0 => held.at += 1,
                _ => drop(held.given.swap_remove(held.at)),
            }
        }
        held.given.len() >= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_gone_do_not_count() {
        let orphans = OrphanCount::new(8 * SHARE);
        let fd = || {
            Arc::new(OwnedFd::from(
                std::fs::File::open("/dev/null").expect("open"),
            ))
        };
        let kept: Vec<Arc<OwnedFd>> = (0..3)
            .map(|_| fd())
            .inspect(|fd| orphans.note(fd))
            .collect();
        (0..5).for_each(|_| orphans.note(&fd()));
        assert!(!orphans.are_many(), "five of eight are gone");
        let more: Vec<Arc<OwnedFd>> = (0..5)
            .map(|_| fd())
            .inspect(|fd| orphans.note(fd))
            .collect();
        assert!(orphans.are_many());
        drop((kept, more));
        assert!(!orphans.are_many());
    }
}
