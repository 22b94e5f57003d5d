//! The request for a restore, and the kernel cache entries that it makes stale.

use std::collections::HashSet;
use std::time::Instant;

use super::super::requester::Requester;
use ckptfs_api::{Times, TreePath};
use ckptfs_store::ids::{Name, Slot};

/// The entries and inodes to invalidate in the kernel's caches after a restore.
#[derive(Debug, Default)]
pub(in crate::engine) struct StaleEntries {
    pub(in crate::engine) names: Vec<(Slot, Name)>,
    pub(in crate::engine) nodes: Vec<Slot>,
    /// Names of inodes that the kernel has cached and that are no longer in the tree, children
    /// before parents.
    pub(in crate::engine) dead: Vec<(Slot, Name, Slot)>,
    /// Directories whose attributes other than times were restored.
    pub(in crate::engine) attrs_changed: Vec<Slot>,
}

impl StaleEntries {
    /// Removes duplicates: the invalidation of a name with its dead inode includes the name.
    pub(in crate::engine) fn without_twice(mut self) -> StaleEntries {
        let dead: HashSet<(Slot, &Name)> = self
            .dead
            .iter()
            .map(|(dir, name, _)| (*dir, name))
            .collect();
        self.names
            .retain(|(dir, name)| !dead.contains(&(*dir, name)));
        let dead: HashSet<Slot> = self.dead.iter().map(|(_, _, slot)| *slot).collect();
        let mut told = HashSet::new();
        self.nodes
            .retain(|slot| !dead.contains(slot) && told.insert(*slot));
        self
    }
}

/// The request for a restore.
pub(in crate::engine) struct RestoreRequest<'a> {
    pub(in crate::engine) requester: &'a Requester,
    /// The operation that this one undoes.
    pub(in crate::engine) undoes: Option<u64>,
    pub(in crate::engine) started: Instant,
    /// Paths whose past is unknown.
    pub(in crate::engine) unknown: Vec<TreePath>,
    /// Whether files get their original times.
    pub(in crate::engine) times: Times,
}
