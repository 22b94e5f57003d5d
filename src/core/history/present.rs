//! The live tree as seen by history: the state of all keys without a record.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child, Place};
use ckptfs_sys::{Errno, SysResult, Time, Xattrs};

/// Pause between two look-ups while a rename is in progress and the inode is at none of its names.
const RENAME_PAUSE: Duration = Duration::from_micros(200);
/// Maximum number of pauses. A rename on a busy machine takes time, and another may follow.
const RENAME_WAITS_MAX: u32 = 25_000;

/// The path by which a walk reached an inode in some state of the tree. It locates a live inode
/// without a scan.
///
/// An inode renamed since is located by its recorded place; one never renamed is at the end of the
/// trail.
#[derive(Debug)]
pub struct Trail {
    /// The inode.
    pub slot: Slot,
    /// Its name in the parent directory.
    pub name: Name,
    /// The trail of the parent directory; `None` for the root.
    pub up: Option<Arc<Trail>>,
}

impl Trail {
    /// Returns the trail of the root.
    pub fn root() -> Arc<Trail> {
        Arc::new(Trail {
            slot: Slot::ROOT,
            name: Name::new(b""),
            up: None,
        })
    }

    /// Extends the trail by one name.
    pub fn step(self: &Arc<Trail>, name: &Name, slot: Slot) -> Arc<Trail> {
        Arc::new(Trail {
            slot,
            name: name.clone(),
            up: Some(Arc::clone(self)),
        })
    }

    /// Whether the trail passes through this inode or ends at it.
    pub fn goes_through(&self, slot: Slot) -> bool {
        let mut at = Some(self);
        while let Some(trail) = at {
            if trail.slot == slot {
                return true;
            }
            at = trail.up.as_deref();
        }
        false
    }

    /// Returns the path from the root, `/`-separated, without a leading slash.
    pub fn path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(up) = &at.up {
            names.push(at.name.as_bytes());
            at = up;
        }
        names.reverse();
        names.join(&b'/')
    }
}

impl Drop for Trail {
    /// Iterative, because a tree can be deeper than the stack.
    fn drop(&mut self) {
        let mut up = self.up.take();
        while let Some(mut trail) = up.and_then(Arc::into_inner) {
            up = trail.up.take();
        }
    }
}

/// Converts EXDEV, for an inode on another filesystem, to `None`.
///
/// # Errors
/// Any other error, unchanged.
pub fn absent_beyond<T>(errno: Errno) -> SysResult<Option<T>> {
    match errno {
        Errno::EXDEV => Ok(None),
        errno => Err(errno),
    }
}

/// The live tree, read by slot. Every method verifies the inode that it locates, and fails with
/// ESTALE if it locates none with this slot.
pub trait LiveTree: Send + Sync {
    /// Returns the target of a name in a directory.
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>>;
    /// Returns every name of a directory, except `.`, `..` and our store.
    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>>;
    /// Returns the attributes.
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState>;
    /// Returns the extended attributes, sorted by name.
    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs>;
    /// Opens a regular file for reading.
    fn open(&self, node: &Arc<Trail>) -> SysResult<File>;
    /// Returns the ctime of a file opened by [`LiveTree::open`]. For a copy of a file in the base
    /// of a branch, it is the ctime in the base.
    fn ctime_of(&self, _node: &Arc<Trail>, file: &File) -> SysResult<Time> {
        Ok(ckptfs_sys::stat_fd(file)?.ctime)
    }
    /// Returns the possible current place of an inode. It is a hint, to be verified.
    fn place(&self, _slot: Slot) -> Option<Place> {
        None
    }
    /// Returns a number that increases with each rename; `None` while a rename is in progress, when
    /// the moved inode may be at neither of its two names.
    fn renames(&self) -> Option<u64>;
}

/// Reads the live tree, and retries on ESTALE if a rename was in progress. Without a rename, ESTALE
/// is reliable: the inode is at none of its names.
pub(super) fn at_rest<T>(present: &dyn LiveTree, live: impl Fn() -> SysResult<T>) -> SysResult<T> {
    for _ in 0..RENAME_WAITS_MAX {
        let before = present.renames();
        let answer = live();
        if !matches!(answer, Err(Errno::ESTALE))
            || (before.is_some() && before == present.renames())
        {
            return answer;
        }
        std::thread::sleep(RENAME_PAUSE);
    }
    live()
}

/// Converts ENOENT and ESTALE, of a live inode that vanished during the look-up, to `None`.
pub(super) fn there<T>(result: SysResult<Option<T>>) -> SysResult<Option<T>> {
    match result {
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dropping a trail once used a stack frame for each level, and any user may create deep
    /// directories.
    #[test]
    fn a_trail_deeper_than_the_stack_is_dropped() {
        let name = Name::new(b"d");
        let deep = (2..1_000_000).fold(Trail::root(), |trail, slot| trail.step(&name, Slot(slot)));
        assert!(
            deep.goes_through(Slot::ROOT)
                && deep.goes_through(Slot(999_999))
                && !deep.goes_through(Slot(1_000_000))
        );
        drop(deep);
    }
}
