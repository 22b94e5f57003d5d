//! What history asks of the live tree: the state of everything that has no record.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use crate::store::ids::{Name, Slot};
use crate::store::record::{AttrState, Child, Place};
use crate::sys::{Errno, SysResult, Time, Xattrs};

/// How long a rename under way is waited for, each time, when an inode is at none of its names.
const RENAME_PAUSE: Duration = Duration::from_micros(200);
/// How often at most: a rename on a busy machine takes its time, and another may follow.
const RENAME_WAITS_MAX: u32 = 25_000;

/// The way by which an inode was reached in some state of the tree, from the root: lets a live
/// inode be found again without a scan.
///
/// An inode that was renamed since is found by the place that history keeps of it; one that never
/// was is still at the end of the trail.
#[derive(Debug)]
pub struct Trail {
    /// The inode.
    pub slot: Slot,
    /// Its name in the directory before.
    pub name: Name,
    /// The directory before; `None` for the root.
    pub up: Option<Arc<Trail>>,
}

impl Trail {
    /// The trail of the root.
    pub fn root() -> Arc<Trail> {
        Arc::new(Trail {
            slot: Slot::ROOT,
            name: Name::new(b""),
            up: None,
        })
    }

    /// One step further.
    pub fn step(self: &Arc<Trail>, name: &Name, slot: Slot) -> Arc<Trail> {
        Arc::new(Trail {
            slot,
            name: name.clone(),
            up: Some(Arc::clone(self)),
        })
    }

    /// Whether the way goes through this inode, or ends there.
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

    /// The path from the root, `/`-separated, without a leading one.
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
    /// One after the other: a tree can be deeper than the stack.
    fn drop(&mut self) {
        let mut up = self.up.take();
        while let Some(mut trail) = up.and_then(Arc::into_inner) {
            up = trail.up.take();
        }
    }
}

/// What is on another filesystem is not there.
///
/// # Errors
/// Any but EXDEV, as it is given.
pub fn absent_beyond<T>(errno: Errno) -> SysResult<Option<T>> {
    match errno {
        Errno::EXDEV => Ok(None),
        errno => Err(errno),
    }
}

/// The live tree, read by slot. Every method verifies that the inode found is the one that was
/// meant and fails with ESTALE if none is.
pub trait Present: Send + Sync {
    /// What a name in a directory leads to.
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>>;
    /// Every name of a directory, without `.`, `..` and our own store.
    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>>;
    /// Attributes.
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState>;
    /// Extended attributes, sorted by name.
    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs>;
    /// Opens a regular file for reading.
    fn open(&self, node: &Arc<Trail>) -> SysResult<File>;
    /// The time of change of a file that [`Present::open`] has opened. Where that is a copy of what
    /// the base of a branch has, it is the time that the base tells.
    fn ctime_of(&self, _node: &Arc<Trail>, file: &File) -> SysResult<Time> {
        Ok(crate::sys::stat_fd(file)?.ctime)
    }
    /// Where an inode may be now: a hint, to be verified.
    fn place(&self, _slot: Slot) -> Option<Place> {
        None
    }
    /// A number that grows with each rename; `None`: one is under way, and what it moves may be
    /// found at neither name.
    fn renames(&self) -> Option<u64>;
}

/// What the live tree says. That an inode is at none of its names is so only if no rename was under
/// way meanwhile.
pub(super) fn at_rest<T>(present: &dyn Present, live: impl Fn() -> SysResult<T>) -> SysResult<T> {
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

/// A live inode that vanished while it was looked at is not there.
pub(super) fn there<T>(result: SysResult<Option<T>>) -> SysResult<Option<T>> {
    match result {
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever may make directories may make them deep: each level of the trail took a frame of the
    /// stack when it was dropped.
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
