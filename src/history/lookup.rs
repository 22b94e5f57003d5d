//! What a key held at a checkpoint: the first record after it.
//!
//! Memory is asked before the index. A table leaves memory only after the index has it, so what was
//! in neither has no record; and what the index has is of an earlier epoch than what memory has, or
//! the same record. Every record of the open epoch is in memory, so a question about the newest
//! checkpoint is answered there.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::catalogue::Catalogue;
use super::epochs::Epochs;
use super::slow;
use super::table::{Answer, NodeUndo, Recorded, Table};
use super::wake::Wake;
use crate::store::ids::{CheckpointId, Epoch, Name, Slot};
use crate::store::record::{AttrState, Child, DataState, Key, Place, Undo};
use crate::store::{Address, Store, StoreError};
use crate::sys::{Errno, SysResult, Xattrs};

/// Directories above a path: there can be no more of them in a journal that is whole.
pub(super) const DEPTH_MAX: usize = 1 << 16;

/// A path at a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAt {
    /// It.
    pub path: Vec<u8>,
    /// It is the same at every later checkpoint before this epoch.
    pub until: Epoch,
}

/// Answers what was recorded of a key. See the module.
pub struct Lookup {
    store: Arc<Store>,
    catalogue: Arc<Catalogue>,
    epochs: Arc<Epochs>,
    wake: Arc<Wake>,
}

impl Lookup {
    pub(super) fn new(
        store: Arc<Store>,
        catalogue: Arc<Catalogue>,
        epochs: Arc<Epochs>,
        wake: Arc<Wake>,
    ) -> Lookup {
        Lookup {
            store,
            catalogue,
            epochs,
            wake,
        }
    }

    /// The index failed: what it says is not believed any more, and the journal is read instead.
    pub(super) fn index_fault(&self, error: &StoreError) {
        self.wake.index_failed(error, self.store.reserve.is_full());
    }

    /// Where in the journal the records after a checkpoint begin.
    fn address(&self, after: CheckpointId) -> SysResult<Address> {
        self.catalogue.address(after).ok_or(Errno::EIO)
    }

    /// What memory knows, and whether the index could know of an earlier record.
    fn in_memory<T>(
        &self,
        after: CheckpointId,
        pick: impl Fn(&Table) -> Option<T>,
    ) -> (Option<Recorded<T>>, bool) {
        let tables = self.epochs.read();
        let from = tables
            .closed()
            .partition_point(|table| table.epoch <= after.epoch());
        let mut later = tables
            .all()
            .skip(from)
            .filter(|table| table.epoch > after.epoch());
        let found = later.find_map(|table| {
            pick(table).map(|before| Recorded {
                epoch: table.epoch,
                before,
            })
        });
        (found, after.epoch().next() < tables.open().epoch)
    }

    /// What only a checkpoint that was deleted reads is left out of the index some time: what is
    /// found there then is no answer.
    fn still_kept(&self, id: CheckpointId) -> SysResult<()> {
        if self.catalogue.is_stored(id) {
            Ok(())
        } else {
            Err(Errno::ESTALE)
        }
    }

    fn in_index(&self, key: &Key, after: CheckpointId) -> Answer<Undo> {
        let found = self.left_in_index(key, after)?;
        self.still_kept(after).map(|()| found)
    }

    /// As [`Lookup::in_index`], whether or not there is such a checkpoint: of those that are left.
    fn left_in_index(&self, key: &Key, after: CheckpointId) -> Answer<Undo> {
        match self.store.index.first_after(key, after) {
            Ok(found) => Ok(found.map(|(epoch, before)| Recorded { epoch, before })),
            Err(error) => {
                self.index_fault(&error);
                slow::first_after(&self.store, self.address(after)?, key, after)
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
        let found = if earlier {
            self.in_index(key, at)?
        } else {
            None
        };
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
        let found = if earlier {
            self.left_in_index(key, before)?
        } else {
            None
        };
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

    /// Every name of a directory that has a record after a checkpoint, with what it led to at the
    /// checkpoint.
    ///
    /// # Errors
    /// EIO if a record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn entries_at(
        &self,
        dir: Slot,
        at: CheckpointId,
    ) -> SysResult<BTreeMap<Name, Recorded<Option<Child>>>> {
        let mut found = BTreeMap::new();
        {
            let tables = self.epochs.read();
            for table in tables
                .all()
                .rev()
                .take_while(|table| table.epoch > at.epoch())
            {
                for (name, before) in table.entries_of(dir) {
                    found.insert(
                        name.clone(),
                        Recorded {
                            epoch: table.epoch,
                            before,
                        },
                    );
                }
            }
            if at.epoch().next() >= tables.open().epoch {
                return Ok(found);
            }
        }
        let indexed = match self.store.index.entries_after(dir, at) {
            Ok(indexed) => self.still_kept(at).map(|()| indexed)?,
            Err(error) => {
                self.index_fault(&error);
                for (name, recorded) in
                    slow::entries_after(&self.store, self.address(at)?, dir, at)?
                {
                    found.insert(name, recorded.map(entry)?);
                }
                return Ok(found);
            }
        };
        for (name, (epoch, undo)) in indexed {
            found.insert(
                name,
                Recorded {
                    epoch,
                    before: entry(undo).ok_or(Errno::EIO)?,
                },
            );
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

    /// Attributes as an epoch recorded them in which something else was recorded of the inode that
    /// a checkpoint reads; if it did not, as the next.
    ///
    /// # Errors
    /// EIO if the record cannot be read.
    pub fn attr_since(&self, slot: Slot, epoch: Epoch) -> Answer<Arc<AttrState>> {
        self.node_since(
            &Key::Attr(slot),
            slot,
            epoch,
            |node| node.attr.clone(),
            attr,
        )
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

    /// Where an inode was at a checkpoint. A directory has a record in each epoch in which
    /// something below it was recorded.
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

    /// The first record of content from an epoch on, of those that are left: one whose object is
    /// there is.
    ///
    /// # Errors
    /// EIO if the record cannot be read.
    pub fn data_since(&self, slot: Slot, epoch: Epoch) -> Answer<DataState> {
        self.node_since(&Key::Data(slot), slot, epoch, |node| node.data, data)
    }

    /// Where an inode with a past is to be found now; a hint, to be verified.
    pub fn place(&self, slot: Slot) -> Option<Place> {
        self.place_or_fault(slot).ok().flatten()
    }

    /// As [`Lookup::place`].
    ///
    /// # Errors
    /// EIO if neither the index nor the journal can be read.
    pub fn place_or_fault(&self, slot: Slot) -> SysResult<Option<Place>> {
        let memory = self
            .epochs
            .read()
            .all()
            .rev()
            .find_map(|table| table.place(slot).cloned());
        match memory {
            Some(place) => Ok(Some(place)),
            None => self.store.index.place(slot).or_else(|error| {
                self.index_fault(&error);
                slow::last_place(&self.store, slot)
            }),
        }
    }

    /// Where an inode was at a checkpoint, by the places on record; `None`: they do not tell. A
    /// change records the place of what is changed, and of every directory above it.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn path_at(&self, slot: Slot, id: CheckpointId) -> SysResult<Option<PathAt>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut at, mut until) = (slot, Epoch(u64::MAX));
        while at != Slot::ROOT {
            let Some(home) = self.home_at(at, id)? else {
                return Ok(None);
            };
            if names.len() >= DEPTH_MAX || at == Slot::STAGING {
                return Ok(None);
            }
            until = until.min(home.epoch);
            names.push(home.before.name.as_bytes().to_vec());
            at = home.before.parent;
        }
        names.reverse();
        Ok(Some(PathAt {
            path: names.join(&b'/'),
            until,
        }))
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
