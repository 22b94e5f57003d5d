//! How many inodes without a name are held by a descriptor: a restore can make as many as there are
//! files, and the kernel forgets them only after it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use crate::sys::lock::Mutex;

/// Those that are held take no more than this part of the descriptors that the process may have,
/// where they can do without.
const SHARE: u64 = 4;
/// Of those that were given out so many are looked at whenever it is asked whether they are many.
const LOOKED_AT: usize = 16;

/// The descriptors that were given out. Its mutex is a leaf.
#[derive(Debug)]
pub(super) struct Orphans {
    held: Mutex<Held>,
    most: usize,
}

#[derive(Debug, Default)]
struct Held {
    given: Vec<Weak<OwnedFd>>,
    /// The next that is looked at.
    at: usize,
}

impl Orphans {
    /// None, in a process that may have `descriptors`.
    pub(super) fn new(descriptors: u64) -> Orphans {
        Orphans {
            held: Mutex::default(),
            most: usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX),
        }
    }

    /// Counts one more.
    pub(super) fn note(&self, held: &Arc<OwnedFd>) {
        self.held.lock().given.push(Arc::downgrade(held));
    }

    /// There may be so many more, as far as is known without a look at those that were given out.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.held.lock().given.len() + more < self.most
    }

    /// There are as many as there should be.
    pub(super) fn are_many(&self) -> bool {
        let held = &mut *self.held.lock();
        // A few at each time: a restore asks for each file.
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
        let orphans = Orphans::new(8 * SHARE);
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
