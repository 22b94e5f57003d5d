//! Names for which the kernel may cache the wrong inode: between a change of the tree that it did
//! not request (a restore, a merge) and the invalidation of its caches.
//!
//! Invalidation is by name. A rename moves the cached inode to the new name, where it would remain
//! (d_move in fs/dcache.c). Removal of a directory marks the cached inode dead (vfs_rmdir and
//! vfs_rename in fs/namei.c), which may be one that still exists. Both may wait for the freeze with
//! inodes that were looked up before it.
//!
//! Until the invalidation completes, rename(2) and rmdir(2) therefore require that the name was
//! looked up since the change. Otherwise they return ESTALE: the kernel repeats all lookups and
//! retries once (retry_estale in include/linux/namei.h).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Errno, SysResult};

/// Names that need a new lookup. See the module.
#[derive(Default)]
pub struct StaleNames {
    /// Equal to `StaleState::changes` while an invalidation is pending; else 0.
    now: AtomicU64,
    since: Mutex<StaleState>,
}

#[derive(Default)]
struct StaleState {
    /// Changes whose invalidation is pending.
    pending: usize,
    /// Number of such changes so far.
    changes: u64,
    /// Names looked up since the last change.
    looked_up: HashSet<(Slot, Name)>,
}

impl StaleNames {
    /// Starts the invalidation after a change of the tree; it ends when the result is dropped. The
    /// caller holds the tree for writing.
    pub fn begin(self: &Arc<Self>) -> PendingInvalidation {
        let mut since = self.since.lock();
        since.pending += 1;
        since.changes += 1;
        since.looked_up.clear();
        self.now.store(since.changes, Ordering::SeqCst);
        PendingInvalidation(Arc::clone(self))
    }

    /// Looks a name up, and records that the kernel has a current result.
    ///
    /// # Errors
    /// Those of the lookup.
    pub fn looking_up<T>(
        &self,
        dir: Slot,
        name: &Name,
        look_up: impl FnOnce() -> SysResult<T>,
    ) -> SysResult<T> {
        let began = self.now.load(Ordering::SeqCst);
        let found = look_up();
        if began != 0 && matches!(found, Ok(_) | Err(Errno::ENOENT)) {
            let mut since = self.since.lock();
            if since.pending > 0 && since.changes == began {
                since.looked_up.insert((dir, name.clone()));
            }
        }
        found
    }

    /// Returns whether the kernel has a current result for these names. The caller holds the tree
    /// for writing.
    ///
    /// # Errors
    /// ESTALE if it may not.
    pub(super) fn check(&self, names: &[(Slot, &Name)]) -> SysResult<()> {
        if self.now.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let since = self.since.lock();
        let is_known =
            |(dir, name): &(Slot, &Name)| since.looked_up.contains(&(*dir, Name::clone(name)));
        if since.pending == 0 || names.iter().all(is_known) {
            return Ok(());
        }
        Err(Errno::ESTALE)
    }
}

/// A pending invalidation: see [`StaleNames::begin`].
pub struct PendingInvalidation(Arc<StaleNames>);

impl Drop for PendingInvalidation {
    fn drop(&mut self) {
        let mut since = self.0.since.lock();
        since.pending -= 1;
        if since.pending == 0 {
            since.looked_up = HashSet::new();
            self.0.now.store(0, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_looked_up_since_is_known() {
        let names = Arc::new(StaleNames::default());
        let (one, two) = (&Name::new(b"one"), &Name::new(b"two"));
        let dir = Slot::ROOT;
        let look = |name| names.looking_up(dir, name, || Ok(()));
        assert_eq!(names.check(&[(dir, one)]), Ok(()));
        let first = names.begin();
        assert_eq!(names.check(&[(dir, one)]), Err(Errno::ESTALE));
        look(one).expect("it is there");
        assert_eq!(names.check(&[(dir, one)]), Ok(()));
        assert_eq!(names.check(&[(dir, one), (dir, two)]), Err(Errno::ESTALE));
        // A lookup that began before the change may have found the old inode.
        let second = names
            .looking_up(dir, two, || Ok(names.begin()))
            .expect("it is there");
        assert_eq!(names.check(&[(dir, two)]), Err(Errno::ESTALE));
        assert_eq!(names.check(&[(dir, one)]), Err(Errno::ESTALE));
        let absent: SysResult<()> = names.looking_up(dir, two, || Err(Errno::ENOENT));
        assert_eq!(absent, Err(Errno::ENOENT));
        drop(first);
        assert_eq!(names.check(&[(dir, two)]), Ok(()));
        assert_eq!(names.check(&[(dir, one)]), Err(Errno::ESTALE));
        drop(second);
        assert_eq!(names.check(&[(dir, one)]), Ok(()));
    }
}
