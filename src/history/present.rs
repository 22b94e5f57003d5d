//! What history asks of the live tree: the state of everything that has no record.

use std::fs::File;
use std::sync::Arc;

use crate::store::ids::{Name, Slot};
use crate::store::record::{AttrState, Child};
use crate::sys::{SysResult, Xattrs};

/// The way by which an inode was reached in some state of the tree, from the root: lets a live inode be found again without a scan.
///
/// An inode that was renamed since is found by the place that history keeps of it; one that never was is still at the end of the trail.
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
        Arc::new(Trail { slot: Slot::ROOT, name: Name::new(b""), up: None })
    }

    /// One step further.
    pub fn step(self: &Arc<Trail>, name: &Name, slot: Slot) -> Arc<Trail> {
        Arc::new(Trail { slot, name: name.clone(), up: Some(Arc::clone(self)) })
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

/// The live tree, read by slot. Every method verifies that the inode found is the one that was meant and fails with ESTALE if none is.
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
}
