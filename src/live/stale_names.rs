//! Names that the kernel may have another inode for than there is: between a change of the tree
//! that it did not ask for (a restore, a merge) and its forgetting of what was so before.
//!
//! It forgets by name. A rename moves what it has for the one name to the other, where it would
//! stay (d_move in fs/dcache.c); and whoever removes a directory makes the inode dead that the
//! kernel has for the name (vfs_rmdir and vfs_rename in fs/namei.c), which may be one that lives.
//! Both wait for the freeze with the inodes that they have found before. So meanwhile a rename or
//! rmdir(2) is done only of a name that was looked up since. Of another it is ESTALE: the kernel
//! looks all names up anew, and tries once more (retry_estale in include/linux/namei.h).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::ids::{Name, Slot};
use crate::sys::lock::Mutex;
use crate::sys::{Errno, SysResult};

/// See the module.
#[derive(Default)]
pub struct StaleNames {
    /// As `Since::changes` while something is to be forgotten; else 0.
    now: AtomicU64,
    since: Mutex<Since>,
}

#[derive(Default)]
struct Since {
    /// Changes of which the kernel has not forgotten all.
    pending: usize,
    /// Number of such changes, ever.
    changes: u64,
    /// What was looked up since the last of them.
    looked_up: HashSet<(Slot, Name)>,
}

impl StaleNames {
    /// The tree was changed, and the kernel will be told to forget: until what is returned is
    /// dropped. The caller holds the tree for writing.
    pub fn begin(self: &Arc<Self>) -> Forgetting {
        let mut since = self.since.lock();
        since.pending += 1;
        since.changes += 1;
        since.looked_up.clear();
        self.now.store(since.changes, Ordering::SeqCst);
        Forgetting(Arc::clone(self))
    }

    /// Looks a name up, and notes that the kernel is told what it leads to.
    ///
    /// # Errors
    /// Those of the look-up.
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

    /// Whether the kernel knows what these names lead to. The caller holds the tree for writing.
    ///
    /// # Errors
    /// ESTALE: it may not.
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

/// The kernel is being told to forget: see [`StaleNames::begin`].
pub struct Forgetting(Arc<StaleNames>);

impl Drop for Forgetting {
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
        // A look-up that began before the tree was changed may have found what was there.
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
