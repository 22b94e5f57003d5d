//! What the kernel knows of the live tree: nodes, their names, and how often each was looked up.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::store::ids::Slot;
use crate::store::record::Place;
use crate::sys::Kind;

/// Who does the I/O of a node, for as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// The kernel, on the backing file.
    Passthrough,
    /// The daemon.
    Daemon,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Tells apart inodes that had one number in turn.
    pub generation: u64,
    /// The names by which it was seen.
    pub links: Vec<Place>,
    /// How often the kernel was told of it and has not yet forgotten.
    pub lookups: u64,
    /// Nodes that have a name in it.
    pub children: u32,
    /// Open handles.
    pub handles: u32,
    /// Handles open for writing among them.
    pub writers: u32,
    /// Handles open for reading and writing, which can be mapped to be written.
    pub mappable: u32,
    /// Who does the I/O, while it is open.
    pub io: Option<IoMode>,
    /// It has lost its last name. The descriptor keeps its number from being given away while the kernel knows it.
    pub orphan: Option<Arc<OwnedFd>>,
    /// It has lost its last name.
    pub dead: bool,
}

/// All nodes. Callers keep it behind one mutex, a leaf.
#[derive(Debug, Default)]
pub struct Nodes {
    map: HashMap<Slot, Node>,
    /// Those with `mappable` above 0: every checkpoint asks for them, and its cost must not depend on how many nodes there are.
    mappable: HashSet<Slot>,
    generations: u64,
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

    /// Notes that `slot` was found at `place` (`None`: it is the root), counts `lookups` more, and returns its generation.
    pub fn learn(&mut self, slot: Slot, kind: Kind, place: Option<&Place>, lookups: u64) -> u64 {
        let generation = {
            let generations = &mut self.generations;
            let node = self.map.entry(slot).or_insert_with(|| {
                *generations += 1;
                Node {
                    kind,
                    generation: *generations,
                    links: Vec::new(),
                    lookups: 0,
                    children: 0,
                    handles: 0,
                    writers: 0,
                    mappable: 0,
                    io: None,
                    orphan: None,
                    dead: false,
                }
            });
            if node.dead || node.kind != kind {
                // The number belongs to another inode now; the kernel tells them apart by the generation.
                *generations += 1;
                node.generation = *generations;
                node.kind = kind;
                node.dead = false;
                node.orphan = None;
                node.links.clear();
            }
            node.lookups += lookups;
            node.generation
        };
        if let Some(place) = place {
            self.add_link(slot, place);
        }
        generation
    }

    /// Notes one more name of a node.
    pub fn add_link(&mut self, slot: Slot, place: &Place) {
        let Some(node) = self.map.get_mut(&slot) else { return };
        if node.links.contains(place) {
            return;
        }
        node.links.push(place.clone());
        if let Some(parent) = self.map.get_mut(&place.parent) {
            parent.children += 1;
        }
    }

    /// Notes that a name of a node is gone.
    pub fn remove_link(&mut self, slot: Slot, place: &Place) {
        let Some(node) = self.map.get_mut(&slot) else { return };
        let before = node.links.len();
        node.links.retain(|link| link != place);
        if node.links.len() < before {
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
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.reap(slot);
    }

    fn leave(&mut self, parent: Slot) {
        if let Some(node) = self.map.get_mut(&parent) {
            node.children = node.children.saturating_sub(1);
        }
        self.reap(parent);
    }

    /// Drops a node without look-ups, handles and children, and then its directory if that was all that kept it.
    pub fn reap(&mut self, slot: Slot) {
        let mut next = vec![slot];
        while let Some(slot) = next.pop() {
            let idle = self.map.get(&slot).is_some_and(|node| node.lookups == 0 && node.children == 0 && node.handles == 0);
            if !idle || slot == Slot::ROOT {
                continue;
            }
            let Some(node) = self.map.remove(&slot) else { continue };
            for link in node.links {
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

    /// Slots of the nodes that may be mapped to be written and match. Costs what is open, not what is known.
    pub fn matching(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Slot> {
        self.mappable.iter().copied().filter(|slot| self.map.get(slot).is_some_and(&wanted)).collect()
    }

    /// Counts a handle of a node that was opened; `io`: who does its I/O.
    pub fn opened(&mut self, slot: Slot, read: bool, write: bool, io: IoMode) {
        let Some(node) = self.map.get_mut(&slot) else { return };
        node.handles += 1;
        node.io = Some(io);
        if write {
            node.writers += 1;
        }
        if read && write {
            node.mappable += 1;
            self.mappable.insert(slot);
        }
    }

    /// Takes back what [`Nodes::opened`] counted; says whether that was the last handle for writing.
    pub fn closed(&mut self, slot: Slot, read: bool, write: bool) -> bool {
        let Some(node) = self.map.get_mut(&slot) else { return false };
        node.handles = node.handles.saturating_sub(1);
        if write {
            node.writers = node.writers.saturating_sub(1);
        }
        if read && write {
            node.mappable = node.mappable.saturating_sub(1);
            if node.mappable == 0 {
                self.mappable.remove(&slot);
            }
        }
        if node.handles == 0 {
            node.io = None;
        }
        let last_writer = write && node.writers == 0;
        self.reap(slot);
        last_writer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        Place { parent: Slot::ROOT, name: crate::store::ids::Name::new(name.as_bytes()) }
    }

    #[test]
    fn what_may_be_mapped_is_known_without_looking_at_all_nodes() {
        let mut nodes = Nodes::default();
        nodes.learn(Slot::ROOT, Kind::Dir, None, 1);
        for number in 10..20 {
            nodes.learn(Slot(number), Kind::File, Some(&place(&number.to_string())), 1);
        }
        nodes.opened(Slot(11), true, true, IoMode::Daemon);
        nodes.opened(Slot(11), true, true, IoMode::Daemon);
        nodes.opened(Slot(12), false, true, IoMode::Daemon);
        nodes.opened(Slot(13), true, false, IoMode::Daemon);
        nodes.opened(Slot(14), true, true, IoMode::Passthrough);
        let by_daemon = |nodes: &Nodes| nodes.matching(|node| node.io == Some(IoMode::Daemon));
        assert_eq!(by_daemon(&nodes), [Slot(11)]);
        assert!(!nodes.closed(Slot(11), true, true), "one writer is left");
        assert_eq!(by_daemon(&nodes), [Slot(11)]);
        assert!(nodes.closed(Slot(11), true, true));
        assert!(by_daemon(&nodes).is_empty());
        assert!(!nodes.closed(Slot(13), true, false), "it was no writer");
        assert_eq!(nodes.get(Slot(13)).and_then(|node| node.io), None, "the next open may choose anew");
    }
}
