//! The locks of the live tree. [`crate::live`] documents their order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::first_change::FirstChange;
use super::stale_names::StaleNames;
use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::{Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of stripes.
const STRIPES: usize = 64;

/// The locks, and the counters of changes.
pub struct Locks {
    /// Precedes lock 1.
    pub first_change: FirstChange,
    /// Lock 1.
    freeze: RwLock<()>,
    /// Lock 1 is held for writing.
    frozen: AtomicBool,
    /// Number of changes begun since the start.
    changes: AtomicU64,
    /// Numbers of those changes, and of records, that resulted from copy-up and do not change the
    /// visible tree.
    copies: [AtomicU64; 2],
    /// Lock 2: held for writing by changes of names, for reading by operations that rely on names.
    pub tree: RwLock<()>,
    /// Below lock 2, a leaf.
    pub stale_names: Arc<StaleNames>,
    /// Number of renames begun plus renames ended: odd while a rename is in progress.
    rename_steps: AtomicU64,
    /// Lock 3.
    stripes: Vec<Mutex<()>>,
}

impl Default for Locks {
    fn default() -> Locks {
        Locks {
            first_change: FirstChange::default(),
            freeze: RwLock::ranked(Rank::Freeze, ()),
            frozen: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            copies: Default::default(),
            tree: RwLock::ranked(Rank::Tree, ()),
            stale_names: Arc::default(),
            rename_steps: AtomicU64::new(0),
            stripes: (0..STRIPES)
                .map(|_| Mutex::ranked(Rank::Stripe, ()))
                .collect(),
        }
    }
}

impl Locks {
    /// Acquires the freeze lock for a change, and counts the change.
    pub(super) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        let changing = self.changing();
        self.count_change();
        changing
    }

    /// Acquires the freeze lock for an operation that changes nothing but must not span a
    /// checkpoint.
    pub(super) fn changing(&self) -> RwLockReadGuard<'_, ()> {
        self.freeze.read()
    }

    /// Counts a change made with the freeze lock held for writing.
    pub fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of changes begun. While the freeze lock is held for writing, none is in
    /// progress.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Counts a change, or a record, made by copy-up. The caller holds the freeze lock.
    pub(super) fn count_copy(&self, record: bool) {
        let [changes, records] = &self.copies;
        let counter = if record { records } else { changes };
        counter.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many of [`Locks::changes`], and of the records, resulted from copy-up. Exact
    /// while the freeze lock is held for writing.
    pub fn copies(&self) -> (u64, u64) {
        let [changes, records] = &self.copies;
        (
            changes.load(Ordering::SeqCst),
            records.load(Ordering::SeqCst),
        )
    }

    /// Acquires the freeze lock for writing. Returns `None` after `limit`.
    pub(super) fn freeze_within(&self, limit: Duration) -> Option<Freeze<'_>> {
        let asked = Instant::now();
        let guard = self.freeze.try_write_for(limit)?;
        self.frozen.store(true, Ordering::SeqCst);
        Some(Freeze {
            locks: self,
            asked,
            _guard: guard,
        })
    }

    /// Returns whether the freeze lock is held for writing. A caller that holds the freeze lock,
    /// for reading or writing, learns whether it has exclusive access to the tree.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// Acquires the lock under which this inode is captured and changed.
    pub(super) fn stripe(&self, slot: Slot) -> MutexGuard<'_, ()> {
        let index = (slot.0 as usize) % self.stripes.len();
        self.stripes[index].lock()
    }

    /// Marks a rename as in progress. The caller holds the tree for writing, so only one exists.
    pub(super) fn begin_rename(&self) -> Renaming<'_> {
        self.rename_steps.fetch_add(1, Ordering::SeqCst);
        Renaming(&self.rename_steps)
    }

    /// Returns a number that grows with each rename. Returns `None` while one is in progress.
    pub(super) fn renames(&self) -> Option<u64> {
        let steps = self.rename_steps.load(Ordering::SeqCst);
        steps.is_multiple_of(2).then_some(steps)
    }
}

/// A rename in progress, from its record until all tables are updated.
pub(super) struct Renaming<'a>(&'a AtomicU64);

impl Drop for Renaming<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The freeze lock, held for writing.
pub struct Freeze<'a> {
    locks: &'a Locks,
    /// Time of the request for the lock: later changes wait since then.
    asked: Instant,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl Freeze<'_> {
    /// Returns how long changes have been blocked.
    pub fn lasted(&self) -> Duration {
        self.asked.elapsed()
    }
}

impl Drop for Freeze<'_> {
    fn drop(&mut self) {
        self.locks.frozen.store(false, Ordering::SeqCst);
    }
}
