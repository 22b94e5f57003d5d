//! What a key held at a checkpoint: the first record after it.
//!
//! Memory is asked before the index. A table leaves memory only after the index has it, so what was in neither has no record; and what the index
//! has is of an earlier epoch than what memory has, or the same record. Every record of the open epoch is in memory, so a question about the newest
//! checkpoint is answered there.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::table::{NodeUndo, Table};
use super::timeline::Timeline;
use crate::store::ids::{CheckpointId, Epoch, Name, Slot};
use crate::store::record::{AttrState, Child, DataState, Key, Place, Undo};
use crate::sys::{Errno, SysResult, Xattrs};

/// The state of a key before it first changed in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded<T> {
    /// The epoch of the change.
    pub epoch: Epoch,
    /// The state before.
    pub before: T,
}

impl<T> Recorded<T> {
    fn map<U>(self, turn: impl FnOnce(T) -> Option<U>) -> SysResult<Recorded<U>> {
        Ok(Recorded { epoch: self.epoch, before: turn(self.before).ok_or(Errno::EIO)? })
    }
}

/// The record of a key, if it has one after the checkpoint that was asked for; if not, the live tree says.
pub type Answer<T> = SysResult<Option<Recorded<T>>>;

impl Timeline {
    /// What memory knows, and whether the index could know of an earlier record.
    fn in_memory<T>(&self, after: CheckpointId, pick: impl Fn(&Table) -> Option<T>) -> (Option<Recorded<T>>, bool) {
        let inner = self.inner.read();
        let from = inner.closed.partition_point(|table| table.epoch <= after.epoch());
        let open = Some(&inner.open).filter(|table| table.epoch > after.epoch());
        let mut tables = inner.closed.iter().skip(from).map(|table| &**table).chain(open);
        let found = tables.find_map(|table| pick(table).map(|before| Recorded { epoch: table.epoch, before }));
        (found, after.epoch().next() < inner.open.epoch)
    }

    /// What only a checkpoint that was deleted reads is left out of the index some time: what is found there then is no answer.
    fn still_kept(&self, id: CheckpointId) -> SysResult<()> {
        let inner = self.inner.read();
        let kept = inner.checkpoints.contains_key(&id) || inner.hidden.contains_key(&id);
        if kept { Ok(()) } else { Err(Errno::ESTALE) }
    }

    fn in_index(&self, key: &Key, after: CheckpointId) -> Answer<Undo> {
        let found = self.left_in_index(key, after)?;
        self.still_kept(after).map(|()| found)
    }

    /// As [`Timeline::in_index`], whether or not there is such a checkpoint: of those that are left.
    fn left_in_index(&self, key: &Key, after: CheckpointId) -> Answer<Undo> {
        match self.store.index.first_after(key, after) {
            Ok(found) => Ok(found.map(|(epoch, before)| Recorded { epoch, before })),
            Err(error) => {
                self.index_fault(error);
                self.in_journal(key, after)
            }
        }
    }

    fn node_at<T>(
        &self,
        key: &Key,
        slot: Slot,
        at: CheckpointId,
        pick: impl Fn(&NodeUndo) -> Option<T>,
        turn: impl Fn(Undo) -> Option<T>,
    ) -> Answer<T> {
        let (memory, earlier) = self.in_memory(at, |table| table.node(slot).and_then(&pick));
        let found = if earlier { self.in_index(key, at)? } else { None };
        found.map_or(Ok(memory), |undo| undo.map(turn).map(Some))
    }

    /// Of the records that are left, the first from an epoch on.
    fn node_since<T>(
        &self,
        key: &Key,
        slot: Slot,
        epoch: Epoch,
        pick: impl Fn(&NodeUndo) -> Option<T>,
        turn: impl Fn(Undo) -> Option<T>,
    ) -> Answer<T> {
        let before = CheckpointId(epoch.0.saturating_sub(1));
        let (memory, earlier) = self.in_memory(before, |table| table.node(slot).and_then(&pick));
        let found = if earlier { self.left_in_index(key, before)? } else { None };
        found.map_or(Ok(memory), |undo| undo.map(turn).map(Some))
    }

    /// What a name led to at a checkpoint.
    ///
    /// # Errors
    /// EIO if the record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn entry_at(&self, dir: Slot, name: &Name, at: CheckpointId) -> Answer<Option<Child>> {
        let (memory, earlier) = self.in_memory(at, |table| table.entry(dir, name));
        if !earlier {
            return Ok(memory);
        }
        match self.in_index(&Key::Entry(dir, name.clone()), at)? {
            Some(undo) => undo.map(entry).map(Some),
            None => Ok(memory),
        }
    }

    /// Every name of a directory that has a record after a checkpoint, with what it led to at the checkpoint.
    ///
    /// # Errors
    /// EIO if a record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn entries_at(&self, dir: Slot, at: CheckpointId) -> SysResult<BTreeMap<Name, Recorded<Option<Child>>>> {
        let mut found = BTreeMap::new();
        {
            let inner = self.inner.read();
            let sealed = inner.closed.iter().rev().map(|table| &**table);
            for table in std::iter::once(&inner.open).chain(sealed).take_while(|table| table.epoch > at.epoch()) {
                for (name, before) in table.entries_of(dir) {
                    found.insert(name.clone(), Recorded { epoch: table.epoch, before });
                }
            }
            if at.epoch().next() >= inner.open.epoch {
                return Ok(found);
            }
        }
        let indexed = match self.store.index.entries_after(dir, at) {
            Ok(indexed) => self.still_kept(at).map(|()| indexed)?,
            Err(error) => {
                self.index_fault(error);
                for (name, recorded) in self.entries_in_journal(dir, at)? {
                    found.insert(name, recorded.map(entry)?);
                }
                return Ok(found);
            }
        };
        for (name, (epoch, undo)) in indexed {
            found.insert(name, Recorded { epoch, before: entry(undo).ok_or(Errno::EIO)? });
        }
        Ok(found)
    }

    /// Attributes at a checkpoint.
    ///
    /// # Errors
    /// EIO if the record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn attr_at(&self, slot: Slot, at: CheckpointId) -> Answer<Arc<AttrState>> {
        self.node_at(&Key::Attr(slot), slot, at, |node| node.attr.clone(), attr)
    }

    /// Attributes as an epoch recorded them in which something else was recorded of the inode that a checkpoint reads; if it did not, as the next.
    ///
    /// # Errors
    /// EIO if the record cannot be read.
    pub fn attr_since(&self, slot: Slot, epoch: Epoch) -> Answer<Arc<AttrState>> {
        self.node_since(&Key::Attr(slot), slot, epoch, |node| node.attr.clone(), attr)
    }

    /// Whether a key has a record of this epoch or a later one, among those that are left: what was captured ahead and is superseded is forgotten before
    /// its records are left out.
    ///
    /// # Errors
    /// EIO if the record cannot be read.
    pub(super) fn is_recorded_since(&self, key: &Key, epoch: Epoch) -> SysResult<bool> {
        let before = CheckpointId(epoch.0.saturating_sub(1));
        let there = |there: bool| there.then_some(());
        let (memory, earlier) = self.in_memory(before, |table| match key {
            Key::Entry(dir, name) => table.entry(*dir, name).map(drop),
            Key::Attr(slot) => table.node(*slot).and_then(|node| there(node.attr.is_some())),
            Key::Xattrs(slot) => table.node(*slot).and_then(|node| there(node.xattrs.is_some())),
            Key::Data(slot) => table.node(*slot).and_then(|node| there(node.data.is_some())),
            Key::Home(slot) => table.node(*slot).and_then(|node| there(node.home.is_some())),
        });
        Ok(memory.is_some() || earlier && self.left_in_index(key, before)?.is_some())
    }

    /// Extended attributes at a checkpoint.
    ///
    /// # Errors
    /// EIO if the record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn xattrs_at(&self, slot: Slot, at: CheckpointId) -> Answer<Arc<Xattrs>> {
        self.node_at(
            &Key::Xattrs(slot),
            slot,
            at,
            |node| node.xattrs.clone(),
            |undo| match undo {
                Undo::Xattrs { before, .. } => Some(Arc::new(before)),
                _ => None,
            },
        )
    }

    /// Where an inode was at a checkpoint. A directory has a record in each epoch in which something below it was recorded.
    ///
    /// # Errors
    /// EIO if the record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn home_at(&self, slot: Slot, at: CheckpointId) -> Answer<Place> {
        self.node_at(
            &Key::Home(slot),
            slot,
            at,
            |node| node.home.clone(),
            |undo| match undo {
                Undo::Home { before, .. } => Some(before),
                _ => None,
            },
        )
    }

    /// Content at a checkpoint.
    ///
    /// # Errors
    /// EIO if the record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn data_at(&self, slot: Slot, at: CheckpointId) -> Answer<DataState> {
        self.node_at(&Key::Data(slot), slot, at, |node| node.data, data)
    }

    /// The first record of content from an epoch on, of those that are left: one whose object is there is.
    ///
    /// # Errors
    /// EIO if the record cannot be read.
    pub fn data_since(&self, slot: Slot, epoch: Epoch) -> Answer<DataState> {
        self.node_since(&Key::Data(slot), slot, epoch, |node| node.data, data)
    }
}

fn attr(undo: Undo) -> Option<Arc<AttrState>> {
    match undo {
        Undo::Attr { before, .. } => Some(Arc::new(before)),
        _ => None,
    }
}

fn data(undo: Undo) -> Option<DataState> {
    match undo {
        Undo::Data { before, .. } => Some(before),
        _ => None,
    }
}

fn entry(undo: Undo) -> Option<Option<Child>> {
    match undo {
        Undo::Entry { before, .. } => Some(before),
        _ => None,
    }
}
