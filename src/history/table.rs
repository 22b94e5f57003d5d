//! What changed in one epoch, in memory: for every key its state before the first change.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::attribution::TouchTable;
use crate::store::ids::{Epoch, Name, Slot};
use crate::store::record::{AttrState, Child, DataState, Key, Place, Undo};
use crate::sys::{Errno, SysResult, Xattrs};

/// What an inode was before it first changed in the epoch; `None` where that part has no record.
#[derive(Clone, Debug, Default)]
pub struct NodeUndo {
    /// Its attributes.
    pub attr: Option<Arc<AttrState>>,
    /// Its extended attributes.
    pub xattrs: Option<Arc<Xattrs>>,
    /// Its content.
    pub data: Option<DataState>,
    /// Where it was.
    pub home: Option<Place>,
}

/// The state of a key before it first changed in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded<T> {
    /// The epoch of the change.
    pub epoch: Epoch,
    /// The state before.
    pub before: T,
}

impl<T> Recorded<T> {
    /// With the state turned into another; EIO: it is not of that kind.
    pub(super) fn map<U>(self, turn: impl FnOnce(T) -> Option<U>) -> SysResult<Recorded<U>> {
        Ok(Recorded {
            epoch: self.epoch,
            before: turn(self.before).ok_or(Errno::EIO)?,
        })
    }
}

/// The record of a key, if it has one after the checkpoint that was asked for; if not, the live
/// tree says.
pub type Answer<T> = SysResult<Option<Recorded<T>>>;

/// The undo records of one epoch. The first record of a key wins.
#[derive(Clone, Debug)]
pub struct Table {
    /// Which epoch.
    pub epoch: Epoch,
    entries: BTreeMap<(Slot, Name), Option<Child>>,
    nodes: HashMap<Slot, NodeUndo>,
    /// Where inodes that were renamed in this epoch are now.
    places: HashMap<Slot, Place>,
    /// Paths changed, as far as one can count without comparing: see [`Table::dirty`].
    dirty: i64,
    /// Who changed what.
    pub(super) touched: TouchTable,
}

impl Table {
    /// A table of an epoch in which nothing has changed.
    pub fn new(epoch: Epoch) -> Table {
        Table {
            epoch,
            entries: BTreeMap::new(),
            nodes: HashMap::new(),
            places: HashMap::new(),
            dirty: 0,
            touched: TouchTable::default(),
        }
    }

    /// Whether the key has a record.
    pub fn has(&self, key: &Key) -> bool {
        match key {
            Key::Entry(dir, name) => self.entries.contains_key(&(*dir, name.clone())),
            Key::Attr(slot) => self.nodes.get(slot).is_some_and(|node| node.attr.is_some()),
            Key::Xattrs(slot) => self
                .nodes
                .get(slot)
                .is_some_and(|node| node.xattrs.is_some()),
            Key::Data(slot) => self.nodes.get(slot).is_some_and(|node| node.data.is_some()),
            Key::Home(slot) => self.nodes.get(slot).is_some_and(|node| node.home.is_some()),
        }
    }

    /// Adds a record unless the key has one.
    pub fn add(&mut self, undo: Undo) {
        match undo {
            Undo::Entry { dir, name, before } => {
                self.entries.entry((dir, name)).or_insert(before);
            }
            Undo::Attr { slot, before } => {
                self.nodes
                    .entry(slot)
                    .or_default()
                    .attr
                    .get_or_insert_with(|| Arc::new(before));
            }
            Undo::Xattrs { slot, before } => {
                self.nodes
                    .entry(slot)
                    .or_default()
                    .xattrs
                    .get_or_insert_with(|| Arc::new(before));
            }
            Undo::Data { slot, before } => {
                self.nodes
                    .entry(slot)
                    .or_default()
                    .data
                    .get_or_insert(before);
            }
            Undo::Home { slot, before } => {
                self.nodes
                    .entry(slot)
                    .or_default()
                    .home
                    .get_or_insert(before);
            }
        }
    }

    /// Takes the data record of `slot` out: the capture was not needed.
    pub fn void(&mut self, slot: Slot) -> Option<DataState> {
        self.touched.void(slot);
        self.nodes.get_mut(&slot)?.data.take()
    }

    /// A capture made ahead is needed now: it can no longer be voided.
    pub fn confirm(&mut self, slot: Slot) {
        if let Some(data) = self
            .nodes
            .get_mut(&slot)
            .and_then(|node| node.data.as_mut())
        {
            data.provisional = false;
        }
    }

    /// What a name led to, if it has a record.
    pub fn entry(&self, dir: Slot, name: &Name) -> Option<Option<Child>> {
        self.entries.get(&(dir, name.clone())).copied()
    }

    /// Every recorded name of a directory.
    pub fn entries_of(&self, dir: Slot) -> impl Iterator<Item = (&Name, Option<Child>)> {
        let from = Bound::Included((dir, Name::new(b"")));
        let to = Bound::Excluded((Slot(dir.0.saturating_add(1)), Name::new(b"")));
        self.entries
            .range((from, to))
            .map(|((_, name), before)| (name, *before))
    }

    /// What an inode was, if anything of it has a record.
    pub fn node(&self, slot: Slot) -> Option<&NodeUndo> {
        self.nodes.get(&slot)
    }

    /// All records of names.
    pub fn entries(&self) -> impl Iterator<Item = (Slot, &Name, Option<Child>)> {
        self.entries
            .iter()
            .map(|((dir, name), before)| (*dir, name, *before))
    }

    /// All records of inodes.
    pub fn nodes(&self) -> impl Iterator<Item = (Slot, &NodeUndo)> {
        self.nodes.iter().map(|(slot, node)| (*slot, node))
    }

    /// Notes where an inode is now.
    pub fn put_place(&mut self, slot: Slot, place: Place) {
        self.places.insert(slot, place);
    }

    /// An inode without a past is gone: nobody asks where it is.
    pub fn drop_place(&mut self, slot: Slot) {
        self.places.remove(&slot);
    }

    /// Where an inode is now, if it was renamed in this epoch; else where it was when something
    /// near it first changed.
    pub fn place(&self, slot: Slot) -> Option<&Place> {
        self.places
            .get(&slot)
            .or_else(|| self.nodes.get(&slot).and_then(|node| node.home.as_ref()))
    }

    /// Number of changed paths as counted by the operations: a file changed and changed back still
    /// counts.
    pub fn dirty(&self) -> u64 {
        u64::try_from(self.dirty).unwrap_or(0)
    }

    /// Counts `by` more changed paths (fewer, if negative).
    pub fn count(&mut self, by: i64) {
        self.dirty += by;
    }

    /// Nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.nodes.is_empty()
    }
}
