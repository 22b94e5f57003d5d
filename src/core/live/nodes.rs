//! Nodes of the live tree that the kernel references: names, lookup counts and open handles.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::closer::Closer;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::Place;
use ckptfs_sys::{Kind, Stat};

/// A table with less capacity is not shrunk.
const SHRINK_ABOVE: usize = 8192;

/// I/O mode of a node while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// The kernel accesses the backing file directly.
    Passthrough,
    /// The daemon serves each read and write.
    Daemon,
}

/// One node. One exists for each inode that the kernel references, so rarely used fields are stored
/// separately.
#[derive(Debug)]
pub struct Node {
    /// The first known name among those that still exist. `None` only if no name exists, or for the
    /// root.
    first: Option<Place>,
    /// Distinguishes successive inodes with the same number.
    pub generation: u64,
    /// Lookups that the kernel has not forgotten yet.
    pub lookups: u64,
    /// Rarely used fields; `None` if all have their defaults.
    rare: Option<Box<NodeExtra>>,
    /// Number of nodes that have a name in this directory.
    children: u32,
    /// File type.
    pub kind: Kind,
    /// The last name is removed.
    pub dead: bool,
    /// A previous worker may have counted an unknown number of lookups.
    pub adopted: bool,
}

/// Returns the generation of an inode. It distinguishes the inode from later ones with the same
/// number, and is the same in every worker. The kernel compares 32 bits; 0 means unknown.
pub fn generation_of(stat: &Stat) -> u64 {
    let Some(birth) = stat.btime else { return 0 };
    let nanoseconds = (birth.sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(birth.nsec.into());
    (nanoseconds ^ nanoseconds >> 32) & 0xffff_ffff | 1 << 31
}

/// Returns whether the two results of stat(2) show no change between them.
pub fn is_same(a: &Stat, b: &Stat) -> bool {
    a.ctime == b.ctime && a.mtime == b.mtime && a.size == b.size && a.kind == b.kind
}

/// Fields of a node that is open, has several names, or has no name.
#[derive(Debug, Default)]
struct NodeExtra {
    /// Further names.
    links: BTreeSet<Place>,
    /// Open handles.
    handles: u32,
    /// Open handles that permit writing.
    writers: u32,
    /// Handles open for reading and writing, which permit writable mappings.
    mappable: u32,
    /// I/O mode while the node is open.
    io: Option<IoMode>,
    /// Descriptor of an inode without names. It prevents reuse of the inode number while the kernel
    /// references the node.
    orphan: Option<Arc<OwnedFd>>,
}

impl Node {
    fn new(kind: Kind, generation: u64) -> Node {
        Node {
            first: None,
            generation,
            lookups: 0,
            rare: None,
            children: 0,
            kind,
            dead: false,
            adopted: false,
        }
    }

    /// Returns whether the kernel may reference the node.
    pub fn is_known(&self) -> bool {
        self.lookups > 0 || self.adopted
    }

    /// Returns the known names.
    pub fn links(&self) -> impl Iterator<Item = &Place> {
        self.first
            .iter()
            .chain(self.rare.iter().flat_map(|rare| &rare.links))
    }

    /// Returns the number of open handles.
    pub fn handles(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.handles)
    }

    /// Returns the number of handles open for writing.
    pub fn writers(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.writers)
    }

    /// Returns the number of handles open for reading and writing, which permit writable mappings.
    pub fn mappable(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.mappable)
    }

    /// Returns the I/O mode while the node is open.
    pub fn io(&self) -> Option<IoMode> {
        self.rare.as_ref().and_then(|rare| rare.io)
    }

    /// Returns the descriptor of an inode without names.
    pub fn orphan(&self) -> Option<&Arc<OwnedFd>> {
        self.rare.as_ref().and_then(|rare| rare.orphan.as_ref())
    }

    /// Sets the I/O mode while the node is open.
    pub fn set_io(&mut self, io: IoMode) {
        self.rare().io = Some(io);
    }

    /// Marks the node as having no name. `orphan` prevents reuse of the inode number while the
    /// kernel references the node.
    pub fn die(&mut self, orphan: Option<Arc<OwnedFd>>) {
        self.dead = true;
        if orphan.is_some() || self.rare.is_some() {
            self.rare().orphan = orphan;
        }
    }

    fn take_orphan(&mut self) -> Option<Arc<OwnedFd>> {
        self.rare.as_mut().and_then(|rare| rare.orphan.take())
    }

    fn rare(&mut self) -> &mut NodeExtra {
        self.rare.get_or_insert_default()
    }

    /// Frees the separate fields if all have their defaults.
    fn tidy(&mut self) {
        if self.rare.as_ref().is_some_and(|rare| {
            rare.links.is_empty() && rare.handles == 0 && rare.io.is_none() && rare.orphan.is_none()
        }) {
            self.rare = None;
        }
    }

    fn add_link(&mut self, place: &Place) {
        if self.first.is_none() {
            self.first = Some(place.clone());
        } else {
            self.rare().links.insert(place.clone());
        }
    }

    fn has_link(&self, place: &Place) -> bool {
        self.first.as_ref() == Some(place)
            || self
                .rare
                .as_ref()
                .is_some_and(|rare| rare.links.contains(place))
    }

    /// Returns whether the node had that name.
    fn remove_link(&mut self, place: &Place) -> bool {
        let mut had = false;
        if let Some(rare) = &mut self.rare {
            had = rare.links.remove(place);
        }
        if self.first.as_ref() == Some(place) {
            self.first = self.rare.as_mut().and_then(|rare| rare.links.pop_first());
            had = true;
        }
        self.tidy();
        had
    }

    /// Removes and returns all names.
    fn take_links(&mut self) -> Vec<Place> {
        let mut links: Vec<Place> = self.first.take().into_iter().collect();
        if let Some(rare) = &mut self.rare {
            links.extend(std::mem::take(&mut rare.links));
        }
        links
    }
}

/// All nodes. Callers keep the table behind one leaf mutex.
#[derive(Default)]
pub struct Nodes {
    map: HashMap<Slot, Node>,
    /// Nodes with `mappable` above 0. Every checkpoint reads this set, and its cost must not depend
    /// on the number of nodes.
    mappable: HashSet<Slot>,
    /// Number of reused inode numbers seen so far.
    generations: u64,
    /// The table was shrunk.
    shrunk: bool,
    closer: Closer,
    /// Descriptors that the caller must close after it releases the mutex.
    unclosed: Vec<Box<dyn Send>>,
}

impl Nodes {
    /// Returns the node with this slot.
    pub fn get(&self, slot: Slot) -> Option<&Node> {
        self.map.get(&slot)
    }

    /// Returns the node with this slot.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Node> {
        self.map.get_mut(&slot)
    }

    /// Records that `slot` was found at `place` (`None` for the root), adds `lookups`, and returns
    /// the generation of the node. `generation` is that of the inode found, as returned by
    /// [`generation_of`].
    pub fn learn(
        &mut self,
        slot: Slot,
        kind: Kind,
        generation: u64,
        place: Option<&Place>,
        lookups: u64,
    ) -> u64 {
        let mut former = Vec::new();
        let generation = {
            let node = self
                .map
                .entry(slot)
                .or_insert_with(|| Node::new(kind, generation));
            if node.generation == 0 {
                node.generation = generation;
            }
            if node.dead || node.kind != kind {
                // Another inode has the number now. The kernel distinguishes the two by the
                // generation.
                self.generations += 1;
                node.generation = if node.generation == generation {
                    generation.wrapping_add(self.generations)
                } else {
                    generation
                };
                node.kind = kind;
                node.dead = false;
                node.adopted = false;
                former = node.take_links();
                if let Some(rare) = &mut node.rare {
                    rare.orphan = None;
                }
                node.tidy();
            }
            node.lookups += lookups;
            node.generation
        };
        if let Some(place) = place {
            self.add_link(slot, place);
        }
        former
            .into_iter()
            .for_each(|place| self.leave(place.parent));
        generation
    }

    /// Adds a name that a previous worker may have reported to the kernel.
    pub fn adopt(&mut self, slot: Slot, kind: Kind, place: &Place) {
        self.map
            .entry(slot)
            .or_insert_with(|| Node::new(kind, 0))
            .adopted = true;
        self.add_link(slot, place);
    }

    /// Adds an inode without names that is still open through a previous worker.
    pub fn adopt_dead(&mut self, slot: Slot, kind: Kind, generation: u64, held: Arc<OwnedFd>) {
        let node = self
            .map
            .entry(slot)
            .or_insert_with(|| Node::new(kind, generation));
        node.adopted = true;
        node.die(Some(held));
    }

    /// Adds a name of a node.
    pub fn add_link(&mut self, slot: Slot, place: &Place) {
        let Some(node) = self.map.get_mut(&slot) else {
            return;
        };
        if node.has_link(place) {
            return;
        }
        node.add_link(place);
        if let Some(parent) = self.map.get_mut(&place.parent) {
            parent.children += 1;
        }
    }

    /// Removes a name of a node.
    pub fn remove_link(&mut self, slot: Slot, place: &Place) {
        let Some(node) = self.map.get_mut(&slot) else {
            return;
        };
        if node.remove_link(place) {
            self.leave(place.parent);
        }
        self.reap(slot);
    }

    /// Updates a name after a rename.
    pub fn move_link(&mut self, slot: Slot, from: &Place, to: &Place) {
        if self.map.contains_key(&slot) {
            self.add_link(slot, to);
            self.remove_link(slot, from);
        }
    }

    /// Subtracts lookups, and drops a node that is no longer referenced.
    pub fn forget(&mut self, slot: Slot, lookups: u64) {
        if let Some(node) = self.map.get_mut(&slot) {
            // A FORGET of an evicted inode has all its lookups, including those of a previous
            // worker. One with fewer lookups reverts a single reply (fuse_dentry_revalidate,
            // fuse_force_forget in fs/fuse): the kernel still references the inode.
            node.adopted &= lookups <= node.lookups;
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.reap(slot);
        self.shrink();
    }

    /// Shrinks the table once most nodes are gone; a hash table does not do this itself.
    fn shrink(&mut self) {
        let (used, room) = (self.map.len(), self.map.capacity());
        if room > SHRINK_ABOVE && used < room / 8 {
            self.map.shrink_to(used * 2);
            self.shrunk = true;
        }
    }

    /// Returns the descriptors that the caller must close after it releases the mutex.
    pub fn take_unclosed(&mut self) -> Vec<Box<dyn Send>> {
        std::mem::take(&mut self.unclosed)
    }

    /// Queues descriptors for the closing thread.
    pub fn close(&mut self, held: impl Send + 'static) {
        self.unclosed.extend(self.closer.take(held));
    }

    /// Returns whether the table was shrunk since the last call.
    pub fn take_shrunk(&mut self) -> bool {
        std::mem::take(&mut self.shrunk)
    }

    fn leave(&mut self, parent: Slot) {
        if let Some(node) = self.map.get_mut(&parent) {
            node.children = node.children.saturating_sub(1);
        }
        self.reap(parent);
    }

    /// Drops a node without lookups, handles and children, and then its parent directories under
    /// the same condition.
    pub fn reap(&mut self, slot: Slot) {
        let mut next = vec![slot];
        while let Some(slot) = next.pop() {
            let idle = self
                .map
                .get(&slot)
                .is_some_and(|node| !node.is_known() && node.children == 0 && node.handles() == 0);
            if !idle || slot == Slot::ROOT {
                continue;
            }
            let Some(mut node) = self.map.remove(&slot) else {
                continue;
            };
            if let Some(orphan) = node.take_orphan() {
                self.unclosed.extend(self.closer.take(orphan));
            }
            for link in node.take_links() {
                if let Some(parent) = self.map.get_mut(&link.parent) {
                    parent.children = parent.children.saturating_sub(1);
                    next.push(link.parent);
                }
            }
        }
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.map.len()
    }

    /// Returns the slots of matching nodes that may be mapped for writing. The cost depends on the
    /// number of open files, not of nodes.
    pub fn matching(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Slot> {
        self.mappable
            .iter()
            .copied()
            .filter(|slot| self.map.get(slot).is_some_and(&wanted))
            .collect()
    }

    /// Counts an opened handle of a node with the I/O mode `io`.
    pub fn opened(&mut self, slot: Slot, read: bool, write: bool, io: IoMode) {
        // The kernel opens only inodes that it references. A handle of an unknown one is counted
        // nevertheless: a file without a writer is not captured at a checkpoint.
        let node = self
            .map
            .entry(slot)
            .or_insert_with(|| Node::new(Kind::File, 0));
        let rare = node.rare();
        rare.handles += 1;
        rare.io = Some(io);
        if write {
            rare.writers += 1;
        }
        if read && write {
            rare.mappable += 1;
            self.mappable.insert(slot);
        }
    }

    /// Reverts [`Nodes::opened`]. Returns whether that was the last handle for writing.
    pub fn closed(&mut self, slot: Slot, read: bool, write: bool) -> bool {
        let Some(node) = self.map.get_mut(&slot) else {
            return false;
        };
        let rare = node.rare();
        rare.handles = rare.handles.saturating_sub(1);
        if write {
            rare.writers = rare.writers.saturating_sub(1);
        }
        if read && write {
            rare.mappable = rare.mappable.saturating_sub(1);
            if rare.mappable == 0 {
                self.mappable.remove(&slot);
            }
        }
        if rare.handles == 0 {
            rare.io = None;
        }
        let last_writer = write && rare.writers == 0;
        node.tidy();
        self.reap(slot);
        last_writer
    }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
