//! Who asks for a restore, and what the kernel must forget after it.

use std::collections::HashSet;
use std::time::Instant;

use super::super::api::{Times, TreePath};
use super::super::requester::Requester;
use crate::store::ids::{Name, Slot};

/// What the kernel must forget after a restore.
#[derive(Debug, Default)]
pub(in crate::engine) struct Stale {
    pub(in crate::engine) names: Vec<(Slot, Name)>,
    pub(in crate::engine) nodes: Vec<Slot>,
    /// Names that led to an inode that the kernel knows and that is in the tree no longer, children
    /// before parents.
    pub(in crate::engine) dead: Vec<(Slot, Name, Slot)>,
    /// Directories that got back attributes other than times.
    pub(in crate::engine) attrs_changed: Vec<Slot>,
}

impl Stale {
    /// Leaves out what is told of twice: whoever forgets a name with its dead inode has forgotten
    /// the name.
    pub(in crate::engine) fn without_twice(mut self) -> Stale {
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

/// Who asked for a restore, and why.
pub(in crate::engine) struct Asked<'a> {
    pub(in crate::engine) requester: &'a Requester,
    /// The operation that it undoes.
    pub(in crate::engine) undoes: Option<u64>,
    pub(in crate::engine) started: Instant,
    /// Paths that are not known as they were.
    pub(in crate::engine) unknown: Vec<TreePath>,
    /// Files get the times that they had.
    pub(in crate::engine) times: Times,
}
