//! Undo records of one epoch in memory: for each key, its state before the first change.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::attribution::TouchTable;
use ckptfs_api::Epoch;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child, DataState, Key, Place, Undo};
use ckptfs_sys::{Errno, SysResult, Xattrs};

/// State of an inode before its first change in the epoch; `None` for parts without a record.
#[derive(Clone, Debug, Default)]
pub struct NodeUndo {
    /// Attributes.
    pub attr: Option<Arc<AttrState>>,
    /// Extended attributes.
    pub xattrs: Option<Arc<Xattrs>>,
    /// Content.
    pub data: Option<DataState>,
    /// Place.
    pub home: Option<Place>,
}

/// State of a key before its first change in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded<T> {
    /// Epoch of the change.
    pub epoch: Epoch,
    /// State before the change.
    pub before: T,
}

impl<T> Recorded<T> {
    /// Converts the state; EIO if it is of another kind.
    pub(super) fn map<U>(self, turn: impl FnOnce(T) -> Option<U>) -> SysResult<Recorded<U>> {
        Ok(Recorded {
            epoch: self.epoch,
            before: turn(self.before).ok_or(Errno::EIO)?,
        })
    }
}

/// The first record of a key after the requested checkpoint. `None` if no such record exists and
/// the live tree is authoritative.
pub type Answer<T> = SysResult<Option<Recorded<T>>>;

/// Undo records of one epoch. The first record of a key wins.
#[derive(Clone, Debug)]
pub struct Table {
    /// Number of the epoch.
    pub epoch: Epoch,
    entries: BTreeMap<(Slot, Name), Option<Child>>,
    nodes: HashMap<Slot, NodeUndo>,
    /// Current places of inodes renamed in this epoch.
    places: HashMap<Slot, Place>,
    /// Number of changed paths, counted without comparing: see [`Table::dirty`].
    dirty: i64,
    /// Attribution of the changes.
    pub(super) touched: TouchTable,
}

impl Table {
    /// Creates the empty table of an epoch.
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

    /// Adds a record unless the key already has one.
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

    /// Voids the data record of `slot`, whose capture was not needed, and returns it.
    pub fn void(&mut self, slot: Slot) -> Option<DataState> {
        self.touched.void(slot);
        self.nodes.get_mut(&slot)?.data.take()
    }

    /// Confirms a provisional capture: it can no longer be voided.
    pub fn confirm(&mut self, slot: Slot) {
        if let Some(data) = self
            .nodes
            .get_mut(&slot)
            .and_then(|node| node.data.as_mut())
        {
            data.provisional = false;
        }
    }

    /// Returns the recorded target of a name, if the name has a record.
    pub fn entry(&self, dir: Slot, name: &Name) -> Option<Option<Child>> {
        self.entries.get(&(dir, name.clone())).copied()
    }

    /// Iterates over the recorded names of a directory.
    pub fn entries_of(&self, dir: Slot) -> impl Iterator<Item = (&Name, Option<Child>)> {
        let from = Bound::Included((dir, Name::new(b"")));
        let to = Bound::Excluded((Slot(dir.0.saturating_add(1)), Name::new(b"")));
        self.entries
            .range((from, to))
            .map(|((_, name), before)| (name, *before))
    }

    /// Returns the recorded state of an inode, if any part of it has a record.
    pub fn node(&self, slot: Slot) -> Option<&NodeUndo> {
        self.nodes.get(&slot)
    }

    /// Iterates over all records of names.
    pub fn entries(&self) -> impl Iterator<Item = (Slot, &Name, Option<Child>)> {
        self.entries
            .iter()
            .map(|((dir, name), before)| (*dir, name, *before))
    }

    /// Iterates over all records of inodes.
    pub fn nodes(&self) -> impl Iterator<Item = (Slot, &NodeUndo)> {
        self.nodes.iter().map(|(slot, node)| (*slot, node))
    }

    /// Sets the current place of an inode.
    pub fn put_place(&mut self, slot: Slot, place: Place) {
        self.places.insert(slot, place);
    }

    /// Removes the place of a deleted inode without a past.
    pub fn drop_place(&mut self, slot: Slot) {
        self.places.remove(&slot);
    }

    /// Returns the current place of an inode if it was renamed in this epoch, otherwise its
    /// recorded place before its first change, or that of something below it.
    pub fn place(&self, slot: Slot) -> Option<&Place> {
        self.places
            .get(&slot)
            .or_else(|| self.nodes.get(&slot).and_then(|node| node.home.as_ref()))
    }

    /// Returns the number of changed paths, as counted by the operations. A file changed and
    /// changed back still counts.
    pub fn dirty(&self) -> u64 {
        u64::try_from(self.dirty).unwrap_or(0)
    }

    /// Adds `by` to the count of changed paths.
    pub fn count(&mut self, by: i64) {
        self.dirty += by;
    }

    /// Whether the epoch has no record.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.nodes.is_empty()
    }
}
