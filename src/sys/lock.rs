//! Locks that know their place: `parking_lot`'s, which a debug build refuses to take in another
//! order than that of [`Rank`].
//!
//! **Lock order.** A thread takes locks only in the order in which [`Rank`] lists them, and never
//! two of one rank: so no circle of threads can wait for each other. That goes for readers too:
//! `parking_lot` lets a reader wait behind a writer that waits, so a lock read twice by one thread
//! can hang. Whoever takes a lock out of order panics in a debug build, each time and not only when
//! two threads meet; a release build has no trace of it. A lock is a [`Rank::Leaf`] unless its
//! maker says otherwise: nothing is locked while it is held but the ledger's.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The place of a lock in the order in which locks are taken, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The kernel asked for a checkpoint (`engine`): another such request is refused meanwhile, and
    /// does not wait.
    Asked,
    /// Commands of the owner run around a checkpoint or a restore (`engine`), which is made
    /// meanwhile.
    Hooked,
    /// One operation on the history at a time (`engine`): checkpoint, restore, deletion, tags,
    /// pins, undo.
    Checkpointing,
    /// `live`: what is done before the first change of a tree.
    FirstChange,
    /// `live`: held for reading by every change, for writing by a freeze.
    Freeze,
    /// `live`: names.
    Tree,
    /// `live`: one inode's capture and change. Never two stripes: two inodes may share one.
    Stripe,
    /// `live`: what the kernel knows.
    Nodes,
    /// `live`: files that the kernel may be writing to.
    Hot,
    /// `store::index`: one batch at a time.
    Applying,
    /// `store::index`: the database, which a rebuild replaces while it reads the journal.
    Database,
    /// `history`: the open epoch and the closed ones. An epoch is closed under it, which appends to
    /// the journal.
    Timeline,
    /// `history`: the checkpoints.
    Catalogue,
    /// `history`: what the journal is owed, which goes before anything else that is appended.
    Owed,
    /// `store::journal`: a segment is replaced by its pack, or several scans are to see the same.
    Packing,
    /// `store::journal`: one sync at a time.
    Syncing,
    /// `store::journal`: its end.
    Writer,
    /// `store::journal`: one new segment at a time.
    Making,
    /// `store::layers`: the directories, while one is made.
    Layers,
    /// `store::reserve`: what is kept for a full disk, which every lock's holder may need.
    Reserve,
    /// Everything else: held for a moment, and nothing is locked under it but the next.
    Leaf,
    /// `sys::ledger`: its free rows. What a lock protects may be noted there.
    Ledger,
}

/// That this thread holds a lock, until it is dropped.
struct Held {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::{Held, Rank};

    thread_local! {
        /// What this thread holds, in the order in which it was taken. A thread that ends may drop
        /// guards after this is gone.
        static RANKS: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    impl Held {
        /// Panics where a lock of this rank or a later one is held.
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

        pub(super) fn note(rank: Rank) -> Held {
            let _ = RANKS.try_with(|ranks| ranks.borrow_mut().push(rank));
            Held { rank }
        }
    }

    impl Drop for Held {
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

/// A lock that is held. See [`parking_lot`].
pub struct Guard<G> {
    // Dropped first: a lock counts as held until it is given back.
    guard: G,
    _held: Held,
}

/// A [`Mutex`] that is held.
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

/// The rank of a lock, where it is asked for.
#[derive(Clone, Copy, Debug)]
struct Place {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl Place {
    const fn of(rank: Rank) -> Place {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Place {
            #[cfg(debug_assertions)]
            rank,
        }
    }

    /// Takes a lock with `take`, which may wait.
    #[inline]
    fn take<G>(self, take: impl FnOnce() -> G) -> Guard<G> {
        #[cfg(debug_assertions)]
        Held::check(self.rank);
        self.hold(take())
    }

    #[inline]
    fn hold<G>(self, guard: G) -> Guard<G> {
        #[cfg(debug_assertions)]
        let held = Held::note(self.rank);
        #[cfg(not(debug_assertions))]
        let held = Held {};
        Guard { guard, _held: held }
    }
}

/// A mutual exclusion with a place in the order. See [`parking_lot::Mutex`].
#[derive(Debug)]
pub struct Mutex<T> {
    place: Place,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A leaf.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex::ranked(Rank::Leaf, value)
    }

    /// A lock of this rank.
    pub const fn ranked(rank: Rank, value: T) -> Mutex<T> {
        Mutex {
            place: Place::of(rank),
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// Waits for it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.place.take(|| self.inner.lock())
    }

    /// Takes it if it is free. That cannot wait, so any rank may be held.
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

/// A lock for one writer or many readers with a place in the order. See [`parking_lot::RwLock`].
#[derive(Debug)]
pub struct RwLock<T> {
    place: Place,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// A leaf.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock::ranked(Rank::Leaf, value)
    }

    /// A lock of this rank.
    pub const fn ranked(rank: Rank, value: T) -> RwLock<T> {
        RwLock {
            place: Place::of(rank),
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// Waits to read.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.place.take(|| self.inner.read())
    }

    /// Waits to write.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.place.take(|| self.inner.write())
    }

    /// Waits to write, at most so long.
    pub fn try_write_for(&self, limit: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        #[cfg(debug_assertions)]
        Held::check(self.place.rank);
        self.inner
            .try_write_for(limit)
            .map(|guard| self.place.hold(guard))
    }

    /// The value, without locking: nobody else can reach it.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

/// Waits for a change of what a [`Mutex`] guards, which counts as held meanwhile. See
/// [`parking_lot::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Nobody waits for it.
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Waits to be notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    /// Waits to be notified, at most so long.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) {
        self.0.wait_for(&mut guard.guard, limit);
    }

    /// Wakes one who waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Whether a debug build refuses what `takes` does.
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
