//! Locks with a rank: those of `parking_lot`, with the acquisition order of [`Rank`] checked in
//! debug builds.
//!
//! **Lock order.** A thread acquires locks only in the order in which [`Rank`] lists them, and
//! never two of one rank, so no deadlock cycle can form. This includes readers: in `parking_lot` a
//! reader waits behind a waiting writer, so a lock read twice by one thread can hang. A debug build
//! panics on each acquisition out of order, not only when two threads collide. A release build
//! contains no trace of the check. A lock is a [`Rank::Leaf`] by default: no lock except the
//! ledger's is acquired while a leaf is held.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The position of a lock in the acquisition order, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A checkpoint requested through the kernel (`engine`). A second such request is refused
    /// instead of waiting.
    Asked,
    /// The user's hook commands run around a checkpoint or a restore (`engine`), and the operation
    /// between them.
    Hooked,
    /// One operation on the history at a time (`engine`): checkpoint, restore, deletion, tags,
    /// pins, undo.
    Checkpointing,
    /// `live`: the preparation before the first change of a tree.
    FirstChange,
    /// `live`: the freeze lock. Every change holds it for reading, a freeze for writing.
    Freeze,
    /// `live`: names.
    Tree,
    /// `live`: capture and change of one inode. Never two stripes: two inodes may share one.
    Stripe,
    /// `live`: the table of inodes that the kernel references.
    Nodes,
    /// `live`: hot files, which the kernel may be writing to.
    Hot,
    /// `store::index`: one batch at a time.
    Applying,
    /// `store::index`: the database, which a rebuild replaces while it reads the journal.
    Database,
    /// `history`: the open and the closed epochs. Closing an epoch holds it and appends to the
    /// journal.
    Timeline,
    /// `history`: the catalogue of checkpoints.
    Catalogue,
    /// `history`: records owed to the journal, which precede the next append.
    Owed,
    /// `store::journal`: replacement of a segment by its pack, or several scans that need one
    /// state.
    Packing,
    /// `store::journal`: one sync at a time.
    Syncing,
    /// `store::journal`: the end of the journal.
    Writer,
    /// `store::journal`: creation of a segment, one at a time.
    Making,
    /// `store::layers`: the layer directories, while one is created.
    Layers,
    /// `store::reserve`: the space reserved for a full disk, which the holder of any lock may need.
    Reserve,
    /// Every other lock: held for a moment, and only the ledger's is acquired under it.
    Leaf,
    /// `sys::ledger`: its free rows. State protected by any lock may be recorded in the ledger.
    Ledger,
}

/// Records that this thread holds a lock, until dropped.
struct HeldRank {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::{HeldRank, Rank};

    thread_local! {
        /// Ranks of the locks that this thread holds, in the order of acquisition. A thread that
        /// ends may drop guards after this is destroyed.
        static RANKS: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    impl HeldRank {
        /// Panics if the thread holds a lock of this rank or a later one.
        pub(super) fn check(rank: Rank) {
            let wrong = RANKS
                .try_with(|ranks| {
                    ranks
                        .borrow()
                        .iter()
                        .any(|held| *held >= rank)
                        .then(|| ranks.borrow().clone())
                })
                .ok()
                .flatten();
            if let Some(held) = wrong {
                panic!("the lock order: {rank:?} is taken while {held:?} is held");
            }
        }

        pub(super) fn note(rank: Rank) -> HeldRank {
            let _ = RANKS.try_with(|ranks| ranks.borrow_mut().push(rank));
            HeldRank { rank }
        }
    }

    impl Drop for HeldRank {
        fn drop(&mut self) {
            let _ = RANKS.try_with(|ranks| {
                let mut ranks = ranks.borrow_mut();
                if let Some(last) = ranks.iter().rposition(|rank| *rank == self.rank) {
                    ranks.remove(last);
                }
            });
        }
    }
}

/// A held lock. See [`parking_lot`].
pub struct Guard<G> {
    // Dropped first: a lock counts as held until it is released.
    guard: G,
    _held: HeldRank,
}

/// A held [`Mutex`].
pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
/// A [`RwLock`] held for reading.
pub type RwLockReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
/// A [`RwLock`] held for writing.
pub type RwLockWriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// The rank of a lock, in debug builds only.
#[derive(Clone, Copy, Debug)]
struct LockRank {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl LockRank {
    const fn of(rank: Rank) -> LockRank {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        LockRank {
            #[cfg(debug_assertions)]
            rank,
        }
    }

    /// Acquires a lock with `take`, which may wait.
    #[inline]
    fn take<G>(self, take: impl FnOnce() -> G) -> Guard<G> {
        #[cfg(debug_assertions)]
        HeldRank::check(self.rank);
        self.hold(take())
    }

    #[inline]
    fn hold<G>(self, guard: G) -> Guard<G> {
        #[cfg(debug_assertions)]
        let held = HeldRank::note(self.rank);
        #[cfg(not(debug_assertions))]
        let held = HeldRank {};
        Guard { guard, _held: held }
    }
}

/// A mutex with a rank. See [`parking_lot::Mutex`].
#[derive(Debug)]
pub struct Mutex<T> {
    place: LockRank,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Creates a leaf.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex::ranked(Rank::Leaf, value)
    }

    /// Creates a lock of this rank.
    pub const fn ranked(rank: Rank, value: T) -> Mutex<T> {
        Mutex {
            place: LockRank::of(rank),
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// Acquires the lock, waiting for it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.place.take(|| self.inner.lock())
    }

    /// Acquires the lock if it is free. It never waits, so the thread may hold locks of any rank.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.inner.try_lock().map(|guard| self.place.hold(guard))
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

/// A readers-writer lock with a rank. See [`parking_lot::RwLock`].
#[derive(Debug)]
pub struct RwLock<T> {
    place: LockRank,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Creates a leaf.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock::ranked(Rank::Leaf, value)
    }

    /// Creates a lock of this rank.
    pub const fn ranked(rank: Rank, value: T) -> RwLock<T> {
        RwLock {
            place: LockRank::of(rank),
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// Acquires the lock for reading, waiting for it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.place.take(|| self.inner.read())
    }

    /// Acquires the lock for writing, waiting for it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.place.take(|| self.inner.write())
    }

    /// Acquires the lock for writing, waiting up to `limit`.
    pub fn try_write_for(&self, limit: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        #[cfg(debug_assertions)]
        HeldRank::check(self.place.rank);
        self.inner
            .try_write_for(limit)
            .map(|guard| self.place.hold(guard))
    }

    /// Returns the value without locking: `&mut self` proves exclusive access.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

/// A condition variable for a [`Mutex`], which counts as held during a wait. See
/// [`parking_lot::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Creates one without waiters.
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Waits for a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    /// Waits for a notification, up to `limit`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) {
        self.0.wait_for(&mut guard.guard, limit);
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Whether a debug build rejects the acquisitions of `takes`.
    fn refused<T>(takes: impl FnOnce() -> T) -> bool {
        catch_unwind(AssertUnwindSafe(|| drop(takes()))).is_err()
    }

    #[test]
    fn locks_are_taken_in_their_order_and_given_back_in_any() {
        let (freeze, tree, leaf) = (
            RwLock::ranked(Rank::Freeze, ()),
            RwLock::ranked(Rank::Tree, ()),
            Mutex::new(0),
        );
        for _ in 0..2 {
            let first = freeze.read();
            let second = tree.write();
            *leaf.lock() += 1;
            drop(first);
            drop(second);
        }
        assert_eq!(*leaf.lock(), 2);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lock_out_of_order_panics_before_it_is_taken() {
        let (freeze, tree, leaf, other) = (
            RwLock::ranked(Rank::Freeze, ()),
            RwLock::ranked(Rank::Tree, ()),
            Mutex::new(()),
            Mutex::new(()),
        );
        let held = tree.read();
        assert!(refused(|| freeze.read()), "a lock that comes before");
        assert!(
            refused(|| tree.read()),
            "the same lock again, although both only read"
        );
        assert!(!refused(|| leaf.lock()));
        drop(held);
        assert!(
            !refused(|| freeze.write()),
            "what was refused was not taken, and nothing is held any more"
        );
        let _held = leaf.lock();
        assert!(refused(|| other.lock()), "two leaves");
        assert!(!refused(|| other.try_lock()), "which does not wait");
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn in_a_release_build_the_order_costs_nothing() {
        assert_eq!(
            size_of::<Mutex<u64>>(),
            size_of::<parking_lot::Mutex<u64>>()
        );
        assert_eq!(
            size_of::<MutexGuard<'_, u64>>(),
            size_of::<parking_lot::MutexGuard<'_, u64>>()
        );
        assert!(!refused(|| ()));
    }

    #[test]
    fn each_thread_holds_its_own() {
        let (freeze, tree) = (
            RwLock::ranked(Rank::Freeze, ()),
            RwLock::ranked(Rank::Tree, ()),
        );
        let _tree = tree.read();
        std::thread::scope(|scope| scope.spawn(|| drop((freeze.read(), tree.read()))).join())
            .expect("another thread holds nothing");
    }
}
