//! Look-up of a key at a checkpoint: the first record after the checkpoint has its state.
//!
//! Memory is searched before the index. A table leaves memory only after the index contains it, so
//! a key found in neither has no record. A record of the index is from an earlier epoch than one in
//! memory, or is the same record. All records of the open epoch are in memory, so a look-up at the
//! newest checkpoint needs no index.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::catalogue::Catalogue;
use super::epochs::Epochs;
use super::journal_lookup;
use super::table::{Answer, NodeUndo, Recorded, Table};
use super::wake::IdleThread;
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child, DataState, Key, Place, Undo};
use ckptfs_store::{Address, Store, StoreError};
use ckptfs_sys::{Errno, SysResult, Xattrs};

/// Maximum depth of a recorded path; a consistent journal does not exceed it.
pub(super) const DEPTH_MAX: usize = 1 << 16;

/// The path of an inode at a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAt {
    /// The path.
    pub path: Vec<u8>,
    /// The path is the same at all later checkpoints before this epoch.
    pub until: Epoch,
}

/// Looks up the recorded states of keys. See the module.
pub struct Lookup {
    store: Arc<Store>,
    catalogue: Arc<Catalogue>,
    epochs: Arc<Epochs>,
    wake: Arc<IdleThread>,
}

impl Lookup {
    pub(super) fn new(
        store: Arc<Store>,
        catalogue: Arc<Catalogue>,
        epochs: Arc<Epochs>,
        wake: Arc<IdleThread>,
    ) -> Lookup {
        Lookup {
            store,
            catalogue,
            epochs,
            wake,
        }
    }

    /// Handles a failure of the index: the index is no longer used, and the journal is read
    /// instead.
    pub(super) fn index_fault(&self, error: &StoreError) {
        self.wake.index_failed(error, self.store.reserve.is_full());
    }

    /// Returns the journal address where the records after a checkpoint begin.
    fn address(&self, after: CheckpointId) -> SysResult<Address> {
        self.catalogue.address(after).ok_or(Errno::EIO)
    }

    /// Returns the record in memory, and whether the index may contain an earlier one.
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

    /// The index may omit records that only a deleted checkpoint reads, so an answer for such a
    /// checkpoint is invalid.
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

    /// As [`Lookup::in_index`], but also for a checkpoint that is not stored: searches the
    /// remaining records.
    fn left_in_index(&self, key: &Key, after: CheckpointId) -> Answer<Undo> {
        match self.store.index.first_after(key, after) {
            Ok(found) => Ok(found.map(|(epoch, before)| Recorded { epoch, before })),
            Err(error) => {
                self.index_fault(&error);
                journal_lookup::first_after(&self.store, self.address(after)?, key, after)
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

    /// Returns the first remaining record from an epoch on.
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

    /// Returns the target of a name at a checkpoint.
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

    /// Returns every name of a directory with a record after a checkpoint, with its target at the
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
                    journal_lookup::entries_after(&self.store, self.address(at)?, dir, at)?
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

    /// Returns the attributes at a checkpoint.
    ///
    /// # Errors
    /// EIO if the record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn attr_at(&self, slot: Slot, at: CheckpointId) -> Answer<Arc<AttrState>> {
        self.node_at(&Key::Attr(slot), slot, at, |node| node.attr.clone(), attr)
    }

    /// Returns the attributes recorded in an epoch that has another record of the inode which a
    /// checkpoint reads. Without such a record, returns those of the next one.
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

    /// Returns the extended attributes at a checkpoint.
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

    /// Returns the place of an inode at a checkpoint. A directory has a record in each epoch that
    /// recorded anything below it.
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

    /// Returns the content at a checkpoint.
    ///
    /// # Errors
    /// EIO if the record cannot be read; ESTALE if the checkpoint was deleted.
    pub fn data_at(&self, slot: Slot, at: CheckpointId) -> Answer<DataState> {
        self.node_at(&Key::Data(slot), slot, at, |node| node.data, data)
    }

    /// Returns the current place of an inode with a past. It is a hint, to be verified.
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
                journal_lookup::last_place(&self.store, slot)
            }),
        }
    }

    /// Returns the path of an inode at a checkpoint by its recorded places; `None` if these do not
    /// lead to the root. A change records the place of the changed inode and of every directory
    /// above it.
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
