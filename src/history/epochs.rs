//! The open epoch, and the closed ones that the indexer has not yet taken over: what was recorded
//! in them, in memory.
//!
//! Records are made by the live tree before each change ([`Epochs::record`]) and asked for by views
//! (`lookup`).
//!
//! **Locking.** One `RwLock` over the tables. Under it the catalogue is locked, and leaves; and the
//! journal's own mutex, by whoever closes an epoch. Callers that record hold the engine's freeze
//! lock for reading, and whoever closes an epoch holds it for writing, so that no record comes
//! after the checkpoint of its epoch.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::append::Appender;
use super::attribution::{Author, OTHERS};
use super::catalogue::Catalogue;
use super::table::{NodeUndo, Table};
use crate::store::ids::{CheckpointId, Epoch, Name, ObjectId, Slot};
use crate::store::record::{DataState, Key, Place, ProcessNumber, Record, Undo};
use crate::sys::SysResult;
use crate::sys::lock::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Undo records in one frame at most, where there can be many.
pub(super) const UNDO_ITEMS_AT_ONCE: usize = 4096;

/// What is in memory of the open epoch and of closed ones.
pub(super) struct Tables {
    open: Table,
    /// How often records came to the open epoch, or an epoch was closed: as long as it stays, what
    /// had no record has none.
    recordings: u64,
    /// Inodes made in the open epoch, and by whom: no checkpoint can see them.
    born: HashMap<Slot, ProcessNumber>,
    /// Closed epochs not yet in the index, oldest first.
    closed: VecDeque<Arc<Table>>,
    /// Data records of closed epochs that were taken out after their epoch was closed: the index
    /// has yet to learn it of those in `sealed`.
    struck: HashSet<(Epoch, Slot)>,
}

impl Tables {
    /// Nothing was recorded yet, and this epoch is open.
    pub(super) fn new(open: Epoch) -> Tables {
        Tables {
            open: Table::new(open),
            recordings: 0,
            born: HashMap::new(),
            closed: VecDeque::new(),
            struck: HashSet::new(),
        }
    }

    /// The open epoch.
    pub(super) fn open(&self) -> &Table {
        &self.open
    }

    /// To add to the open epoch what is on record.
    pub(super) fn open_mut(&mut self) -> &mut Table {
        &mut self.open
    }

    /// Closed epochs, oldest first.
    pub(super) fn closed(&self) -> &VecDeque<Arc<Table>> {
        &self.closed
    }

    /// All epochs, oldest first.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Table> {
        self.closed.iter().map(|table| &**table).chain([&self.open])
    }

    /// Data records of closed epochs that the index may have, and that do not count.
    pub(super) fn struck(&self) -> &HashSet<(Epoch, Slot)> {
        &self.struck
    }

    /// An inode was made in the open epoch, or is not in the tree yet.
    fn is_born(&self, slot: Slot) -> bool {
        slot == Slot::STAGING || self.born.contains_key(&slot)
    }

    /// Whoever made an inode of the open epoch, if that is known.
    pub(super) fn maker(&self, slot: Slot) -> Option<ProcessNumber> {
        self.born
            .get(&slot)
            .copied()
            .filter(|maker| *maker != OTHERS)
    }

    /// A change of this key would need a record first, if there are checkpoints.
    fn needs(&self, key: &Key) -> bool {
        let (Key::Entry(slot, _)
        | Key::Attr(slot)
        | Key::Xattrs(slot)
        | Key::Data(slot)
        | Key::Home(slot)) = key;
        !self.is_born(*slot) && !self.open.has(key)
    }

    /// Closes the open epoch by the checkpoint `id`.
    pub(super) fn close(&mut self, id: CheckpointId) {
        self.recordings += 1;
        let closed = std::mem::replace(&mut self.open, Table::new(id.epoch().next()));
        self.born.clear();
        self.closed.push_back(Arc::new(closed));
    }

    /// Takes a data record out, in whatever epoch it is; `true`: that is closed, and the index may
    /// have it.
    pub(super) fn void(&mut self, epoch: Epoch, slot: Slot) -> bool {
        if epoch == self.open.epoch {
            self.open.void(slot);
            return false;
        }
        if let Some(table) = self.closed.iter_mut().find(|table| table.epoch == epoch) {
            Arc::make_mut(table).void(slot);
        }
        self.struck.insert((epoch, slot));
        true
    }
}

/// The epochs in memory. See the module.
pub struct Epochs {
    journal: Arc<Appender>,
    catalogue: Arc<Catalogue>,
    tables: RwLock<Tables>,
}

/// Takes the places out of what is too much for one record.
fn split(undo: Vec<Undo>) -> (Vec<Undo>, Vec<Undo>) {
    if undo.len() <= UNDO_ITEMS_AT_ONCE {
        return (Vec::new(), undo);
    }
    undo.into_iter()
        .partition(|item| matches!(item, Undo::Home { .. }))
}

impl Epochs {
    pub(super) fn new(journal: Arc<Appender>, catalogue: Arc<Catalogue>, tables: Tables) -> Epochs {
        Epochs {
            journal,
            catalogue,
            tables: RwLock::ranked(Rank::Timeline, tables),
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read()
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write()
    }

    /// Number of the open epoch.
    pub fn epoch(&self) -> Epoch {
        self.read().open.epoch
    }

    /// Nothing has a record in the open epoch.
    pub fn is_unchanged(&self) -> bool {
        self.read().open.is_empty()
    }

    /// Number of changed paths in the open epoch, as the operations counted them.
    pub fn dirty(&self) -> u64 {
        self.read().open.dirty()
    }

    /// Counts changed paths, in memory.
    pub fn count(&self, by: i64) {
        self.write().open.count(by);
    }

    /// No checkpoint can see the inode: it was made in the open epoch, or there is no checkpoint.
    pub fn is_born(&self, slot: Slot) -> bool {
        let tables = self.read();
        tables.is_born(slot) || self.catalogue.read().is_empty()
    }

    /// Nobody could ask what becomes of it: there is no checkpoint to compare with, nor one that
    /// may come back, or it is not in the tree.
    pub(super) fn asks_nobody(&self, slot: Slot) -> bool {
        slot == Slot::STAGING || self.catalogue.read().is_empty()
    }

    /// A change of this key in the open epoch would need a record first.
    pub fn needs(&self, key: &Key) -> bool {
        let tables = self.read();
        tables.needs(key) && !self.catalogue.read().is_empty()
    }

    /// Records the state before a change: those of `undo` whose keys need it, what its author is
    /// about to touch, then `more`, in one append. When it returns they survive `kill -9`, and views
    /// find them.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal; then nothing was recorded and the change must not be made.
    pub fn record(&self, author: &Author, mut undo: Vec<Undo>, more: Vec<Record>) -> SysResult<()> {
        let (epoch, touched) = {
            let tables = self.read();
            if self.catalogue.read().is_empty() {
                undo.clear();
            }
            undo.retain(|item| tables.needs(&item.key()));
            (tables.open.epoch, author.take_staged(&tables.open.touched))
        };
        if undo.is_empty() && more.is_empty() && touched.is_none() {
            return Ok(());
        }
        // The names of an inode may be more than a record, or an append, holds. They go ahead: each
        // is true by itself, and what follows says that all were told.
        let (ahead, undo) = split(undo);
        for undo in ahead.chunks(UNDO_ITEMS_AT_ONCE) {
            self.journal.append(&[Record::Undo {
                epoch,
                undo: undo.to_vec(),
            }])?;
        }
        let mut records = Vec::with_capacity(2 + more.len());
        if !undo.is_empty() {
            records.push(Record::Undo {
                epoch,
                undo: undo.clone(),
            });
        }
        records.extend(touched);
        records.extend(more);
        self.journal.append(&records)?;
        let mut tables = self.write();
        tables.recordings += 1;
        for item in ahead.into_iter().chain(undo) {
            tables.open.add(item);
        }
        for record in records {
            match record {
                Record::Moved { places } => places
                    .into_iter()
                    .for_each(|(slot, place)| tables.open.put_place(slot, place)),
                Record::Touched { processes, touches } => {
                    tables.open.touched.take(&processes, touches)
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A number that another record changes: as long as it stays, what had no record has none. A
    /// record is made, and so the number changed, before its change is.
    pub fn recordings(&self) -> u64 {
        self.read().recordings
    }

    /// Takes back the provisional data record of a file in the open epoch. Returns its object,
    /// which nothing refers to any more, after `kill -9` neither.
    ///
    /// # Errors
    /// As [`Appender::append`]; then the record stands.
    pub fn void(&self, slot: Slot) -> SysResult<Option<ObjectId>> {
        let epoch = self.epoch();
        if !self.data_now(slot).is_some_and(|data| data.provisional) {
            return Ok(None);
        }
        self.journal.append(&[Record::Void { epoch, slot }])?;
        let mut tables = self.write();
        tables.open.count(-1);
        Ok(tables.open.void(slot).and_then(|data| data.object))
    }

    /// A data record that is no longer true is taken out whatever it was: its object never came to
    /// be, and the next change needs another. That is on record when it returns, or owed
    /// ([`Appender::tell`]).
    pub fn strike(&self, slot: Slot) {
        self.journal.tell(Record::Void {
            epoch: self.epoch(),
            slot,
        });
        self.write().open.void(slot);
    }

    /// Inodes are here, whatever was recorded before. That is on record when it returns, or owed
    /// ([`Appender::tell`]).
    pub fn put_places(&self, places: Vec<(Slot, Place)>) {
        self.journal.tell(Record::Moved {
            places: places.clone(),
        });
        let mut tables = self.write();
        for (slot, place) in places {
            tables.open.put_place(slot, place);
        }
    }

    /// An inode was made. As long as its epoch is open it needs no records.
    pub(super) fn add_born(&self, author: &Author, slot: Slot) {
        let maker = author.number().unwrap_or(OTHERS);
        self.write().born.insert(slot, maker);
    }

    /// It is gone and its number free, or can be seen by a checkpoint.
    pub fn drop_born(&self, slot: Slot) {
        let mut tables = self.write();
        if tables.is_born(slot) || self.catalogue.read().is_empty() {
            tables.open.drop_place(slot);
        }
        tables.born.remove(&slot);
    }

    /// Whether an inode that loses its last name has a past, or another that had the number before
    /// may have.
    pub(super) fn has_past(&self, slot: Slot) -> bool {
        let tables = self.read();
        let born = tables.is_born(slot) || self.catalogue.read().is_empty();
        !born || tables.all().any(|table| table.node(slot).is_some())
    }

    /// The provisional capture of a file will be needed: it can no longer be voided. That is in
    /// memory alone.
    pub fn confirm(&self, slot: Slot) {
        self.write().open.confirm(slot);
    }

    /// The data record of a file in the open epoch.
    pub fn data_now(&self, slot: Slot) -> Option<DataState> {
        self.read().open.node(slot).and_then(|node| node.data)
    }

    /// Whether the next checkpoint may carry this object into its epoch: it is the provisional
    /// capture of the file in the open epoch. Such an object must not be freed, although no
    /// checkpoint may read it yet. Once this is false for an object it stays false.
    pub fn may_carry(&self, slot: Slot, object: ObjectId) -> bool {
        self.data_now(slot)
            .is_some_and(|data| data.provisional && data.object == Some(object))
    }

    /// What the open epoch has a record of, of this inode.
    pub fn node_now(&self, slot: Slot) -> NodeUndo {
        self.read().open.node(slot).cloned().unwrap_or_default()
    }

    /// Every inode and every name that has a record in the open epoch; with `closed`, also in a
    /// closed one that is not in the index yet, for after a power cut the tree on disk may be of
    /// that.
    pub fn touched_now(&self, closed: bool) -> (HashSet<Slot>, Vec<(Slot, Name)>) {
        let tables = self.read();
        let of = || {
            tables
                .all()
                .skip(if closed { 0 } else { tables.closed.len() })
        };
        let names = of()
            .flat_map(|table| table.entries().map(|(dir, name, _)| (dir, name.clone())))
            .collect();
        (
            of().flat_map(|table| table.nodes().map(|(slot, _)| slot))
                .collect(),
            names,
        )
    }

    /// Every data record of the open epoch.
    pub fn data_records(&self) -> Vec<(Slot, DataState)> {
        self.read()
            .open
            .nodes()
            .filter_map(|(slot, node)| node.data.map(|data| (slot, data)))
            .collect()
    }

    /// Inodes that have a record in the open epoch, or in a closed one that is not in the index
    /// yet, whatever became of them.
    pub fn recorded_now(&self) -> HashSet<Slot> {
        self.read()
            .all()
            .flat_map(|table| table.nodes().map(|(slot, _)| slot))
            .collect()
    }

    /// The tables of closed epochs up to this one.
    pub(super) fn closed_upto(&self, epoch: Epoch) -> Vec<Arc<Table>> {
        self.read()
            .closed
            .iter()
            .take_while(|table| table.epoch <= epoch)
            .cloned()
            .collect()
    }

    /// The index has these epochs: their tables are taken out of memory, for whoever called to
    /// free.
    pub(super) fn take_indexed(&self, upto: Epoch) -> Vec<Arc<Table>> {
        let mut tables = self.write();
        let count = tables.closed.partition_point(|table| table.epoch <= upto);
        tables.closed.drain(..count).collect()
    }
}
