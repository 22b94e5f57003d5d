//! The locks of the live tree. The order in which they are taken is told at the top of
//! [`crate::live`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::first_change::FirstChange;
use super::stale_names::StaleNames;
use crate::store::ids::Slot;
use crate::sys::lock::{Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of locks that captures are spread over.
const STRIPES: usize = 64;

/// The locks, and the counts that go with them.
pub struct Locks {
    /// Before lock 1.
    pub first_change: FirstChange,
    /// Lock 1.
    freeze: RwLock<()>,
    /// It is held for writing.
    frozen: AtomicBool,
    /// Number of changes that have begun, ever.
    changes: AtomicU64,
    /// Number of those, and of records, that came of copying up: they change nothing in the tree.
    copies: [AtomicU64; 2],
    /// Lock 2: held for writing by whatever changes names, for reading by whatever relies on them.
    pub tree: RwLock<()>,
    /// Below lock 2, a leaf.
    pub stale_names: Arc<StaleNames>,
    /// How many renames have begun and how many have ended, together: odd while one is under way.
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
    /// Takes the freeze lock for a change, which is counted.
    pub(super) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        let changing = self.changing();
        self.count_change();
        changing
    }

    /// Takes the freeze lock for what a checkpoint must not come between, and that is no change.
    pub(super) fn changing(&self) -> RwLockReadGuard<'_, ()> {
        self.freeze.read()
    }

    /// Counts a change that is made with the freeze lock held for writing.
    pub fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// How many changes have begun. While the freeze lock is held for writing none is under way.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Counts a change, or a record, that copying up has made. The caller holds the freeze lock.
    pub(super) fn count_copy(&self, record: bool) {
        let [changes, records] = &self.copies;
        let counter = if record { records } else { changes };
        counter.fetch_add(1, Ordering::SeqCst);
    }

    /// How many of [`Locks::changes`], and of the records, have changed nothing in the tree. While
    /// the freeze lock is held for writing this is exact.
    pub fn copies(&self) -> (u64, u64) {
        let [changes, records] = &self.copies;
        (
            changes.load(Ordering::SeqCst),
            records.load(Ordering::SeqCst),
        )
    }

    /// Takes the freeze lock for writing; `None`: it could not be had within `limit`.
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

    /// This thread, which holds the freeze lock, is alone in the tree, and whoever wants to change
    /// something waits for it.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// Takes the lock under which this inode is captured and changed.
    pub(super) fn stripe(&self, slot: Slot) -> MutexGuard<'_, ()> {
        let index = (slot.0 as usize) % self.stripes.len();
        self.stripes[index].lock()
    }

    /// The caller holds the tree for writing: there is one at a time.
    pub(super) fn begin_rename(&self) -> Renaming<'_> {
        self.rename_steps.fetch_add(1, Ordering::SeqCst);
        Renaming(&self.rename_steps)
    }

    /// A number that grows with each rename; `None`: one is under way.
    pub(super) fn renames(&self) -> Option<u64> {
        let steps = self.rename_steps.load(Ordering::SeqCst);
        steps.is_multiple_of(2).then_some(steps)
    }
}

/// A rename is under way, from its record until all tables know of it.
pub(super) struct Renaming<'a>(&'a AtomicU64);

impl Drop for Renaming<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The freeze lock, held for writing.
pub struct Freeze<'a> {
    locks: &'a Locks,
    /// When it was asked for: whoever came since waits.
    asked: Instant,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl Freeze<'_> {
    /// How long changes have waited by now.
    pub fn lasted(&self) -> Duration {
        self.asked.elapsed()
    }
}

impl Drop for Freeze<'_> {
    fn drop(&mut self) {
        self.locks.frozen.store(false, Ordering::SeqCst);
    }
}
