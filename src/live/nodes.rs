//! What the kernel knows of the live tree: nodes, their names, and how often each was looked up.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::closer::Closer;
use crate::store::ids::Slot;
use crate::store::record::Place;
use crate::sys::{Kind, Stat};

/// A table with room for fewer nodes is not worth being made smaller.
const SHRINK_ABOVE: usize = 8192;

/// Who does the I/O of a node, for as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// The kernel, on the backing file.
    Passthrough,
    /// The daemon.
    Daemon,
}

/// One node. There is one for each inode that the kernel knows, so what few of them have is kept
/// apart.
#[derive(Debug)]
pub struct Node {
    /// The name by which it was seen first, of those that it still has; `None` only if it has none,
    /// or is the root.
    first: Option<Place>,
    /// Tells apart inodes that had one number in turn.
    pub generation: u64,
    /// How often the kernel was told of it and has not yet forgotten.
    pub lookups: u64,
    /// What few nodes have; `None`: nothing of it.
    rare: Option<Box<Rare>>,
    /// Nodes that have a name in it.
    children: u32,
    /// What it is.
    pub kind: Kind,
    /// It has lost its last name.
    pub dead: bool,
    /// A worker before us may have told the kernel of it, nobody knows how often.
    pub adopted: bool,
}

/// The generation of an inode: what tells it from another that has its number later, to every
/// worker alike. The kernel compares 32 bits; 0: unknown.
pub fn generation_of(stat: &Stat) -> u64 {
    let Some(birth) = stat.btime else { return 0 };
    let nanoseconds = (birth.sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(birth.nsec.into());
    (nanoseconds ^ nanoseconds >> 32) & 0xffff_ffff | 1 << 31
}

/// Nothing was changed between the two.
pub fn is_same(a: &Stat, b: &Stat) -> bool {
    a.ctime == b.ctime && a.mtime == b.mtime && a.size == b.size && a.kind == b.kind
}

/// What a node has that is open, has several names, or has lost its last one.
#[derive(Debug, Default)]
struct Rare {
    /// Further names.
    links: BTreeSet<Place>,
    /// Open handles.
    handles: u32,
    /// Handles open for writing among them.
    writers: u32,
    /// Handles open for reading and writing, which can be mapped to be written.
    mappable: u32,
    /// Who does the I/O, while it is open.
    io: Option<IoMode>,
    /// It has lost its last name. The descriptor keeps its number from being given away while the
    /// kernel knows it.
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

    /// The kernel may know it.
    pub fn is_known(&self) -> bool {
        self.lookups > 0 || self.adopted
    }

    /// The names by which it was seen.
    pub fn links(&self) -> impl Iterator<Item = &Place> {
        self.first
            .iter()
            .chain(self.rare.iter().flat_map(|rare| &rare.links))
    }

    /// Open handles.
    pub fn handles(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.handles)
    }

    /// Open handles for writing.
    pub fn writers(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.writers)
    }

    /// Open handles for reading and writing, which can be mapped to be written.
    pub fn mappable(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.mappable)
    }

    /// Who does the I/O, while it is open.
    pub fn io(&self) -> Option<IoMode> {
        self.rare.as_ref().and_then(|rare| rare.io)
    }

    /// The descriptor of an inode that has lost its last name.
    pub fn orphan(&self) -> Option<&Arc<OwnedFd>> {
        self.rare.as_ref().and_then(|rare| rare.orphan.as_ref())
    }

    /// From now on this does the I/O, while it is open.
    pub fn set_io(&mut self, io: IoMode) {
        self.rare().io = Some(io);
    }

    /// It has lost its last name; `orphan` keeps its number from being given away while the kernel
    /// knows it.
    pub fn die(&mut self, orphan: Option<Arc<OwnedFd>>) {
        self.dead = true;
        if orphan.is_some() || self.rare.is_some() {
            self.rare().orphan = orphan;
        }
    }

    fn take_orphan(&mut self) -> Option<Arc<OwnedFd>> {
        self.rare.as_mut().and_then(|rare| rare.orphan.take())
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Gives back what is kept apart, if nothing is in it.
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

    /// Whether it had that name.
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

    /// Takes all names away.
    fn take_links(&mut self) -> Vec<Place> {
        let mut links: Vec<Place> = self.first.take().into_iter().collect();
        if let Some(rare) = &mut self.rare {
            links.extend(std::mem::take(&mut rare.links));
        }
        links
    }
}

/// All nodes. Callers keep it behind one mutex, a leaf.
#[derive(Default)]
pub struct Nodes {
    map: HashMap<Slot, Node>,
    /// Those with `mappable` above 0: every checkpoint asks for them, and its cost must not depend
    /// on how many nodes there are.
    mappable: HashSet<Slot>,
    /// Numbers that were given away again, ever.
    generations: u64,
    /// The table gave memory back.
    shrunk: bool,
    closer: Closer,
    /// What is to be closed by whoever lets go of the mutex.
    unclosed: Vec<Box<dyn Send>>,
}

impl Nodes {
    /// The node with this slot.
    pub fn get(&self, slot: Slot) -> Option<&Node> {
        self.map.get(&slot)
    }

    /// The node with this slot.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Node> {
        self.map.get_mut(&slot)
    }

    /// Notes that `slot` was found at `place` (`None`: it is the root), counts `lookups` more, and
    /// returns its generation. `generation` is that of the inode that was found, as
    /// [`generation_of`] gives it.
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
                // The number belongs to another inode now; the kernel tells them apart by the
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

    /// Notes a name that a worker before us may have told the kernel of.
    pub fn adopt(&mut self, slot: Slot, kind: Kind, place: &Place) {
        self.map
            .entry(slot)
            .or_insert_with(|| Node::new(kind, 0))
            .adopted = true;
        self.add_link(slot, place);
    }

    /// Notes an inode without a name that a worker before us told the kernel of, and that is still
    /// open.
    pub fn adopt_dead(&mut self, slot: Slot, kind: Kind, generation: u64, held: Arc<OwnedFd>) {
        let node = self
            .map
            .entry(slot)
            .or_insert_with(|| Node::new(kind, generation));
        node.adopted = true;
        node.die(Some(held));
    }

    /// Notes one more name of a node.
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

    /// Notes that a name of a node is gone.
    pub fn remove_link(&mut self, slot: Slot, place: &Place) {
        let Some(node) = self.map.get_mut(&slot) else {
            return;
        };
        if node.remove_link(place) {
            self.leave(place.parent);
        }
        self.reap(slot);
    }

    /// Notes that a node was renamed.
    pub fn move_link(&mut self, slot: Slot, from: &Place, to: &Place) {
        if self.map.contains_key(&slot) {
            self.add_link(slot, to);
            self.remove_link(slot, from);
        }
    }

    /// Takes back look-ups; a node that nobody knows any more is dropped.
    pub fn forget(&mut self, slot: Slot, lookups: u64) {
        if let Some(node) = self.map.get_mut(&slot) {
            // A FORGET of an inode that is evicted has all its look-ups, those that a worker before
            // us counted too. One of fewer takes back a single answer (fuse_dentry_revalidate,
            // fuse_force_forget in fs/fuse): the kernel still knows the inode.
            node.adopted &= lookups <= node.lookups;
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.reap(slot);
        self.shrink();
    }

    /// Gives memory back once most nodes are gone: a table does not shrink by itself.
    fn shrink(&mut self) {
        let (used, room) = (self.map.len(), self.map.capacity());
        if room > SHRINK_ABOVE && used < room / 8 {
            self.map.shrink_to(used * 2);
            self.shrunk = true;
        }
    }

    /// What has to be closed by the caller, when it has let go of the mutex.
    pub fn take_unclosed(&mut self) -> Vec<Box<dyn Send>> {
        std::mem::take(&mut self.unclosed)
    }

    /// Has something closed by the thread for that.
    pub fn close(&mut self, held: impl Send + 'static) {
        self.unclosed.extend(self.closer.take(held));
    }

    /// Whether much memory was given back to the allocator since this was last asked.
    pub fn take_shrunk(&mut self) -> bool {
        std::mem::take(&mut self.shrunk)
    }

    fn leave(&mut self, parent: Slot) {
        if let Some(node) = self.map.get_mut(&parent) {
            node.children = node.children.saturating_sub(1);
        }
        self.reap(parent);
    }

    /// Drops a node without look-ups, handles and children, and then its directory if that was all
    /// that kept it.
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

    /// Number of nodes.
    pub fn count(&self) -> usize {
        self.map.len()
    }

    /// Slots of the nodes that may be mapped to be written and match. Costs what is open, not what
    /// is known.
    pub fn matching(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Slot> {
        self.mappable
            .iter()
            .copied()
            .filter(|slot| self.map.get(slot).is_some_and(&wanted))
            .collect()
    }

    /// Counts a handle of a node that was opened; `io`: who does its I/O.
    pub fn opened(&mut self, slot: Slot, read: bool, write: bool, io: IoMode) {
        // The kernel opens only what it knows. Were that not on record, the handle would still have
        // to be counted: a file without a writer is not captured at a checkpoint.
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

    /// Takes back what [`Nodes::opened`] counted; says whether that was the last handle for
    /// writing.
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
