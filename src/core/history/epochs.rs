//! In-memory undo records of the open epoch and of the closed epochs that are not in the index yet.
//!
//! The live tree records before each change ([`Epochs::record`]); views query through `lookup`.
//!
//! **Locking.** One `RwLock` protects the tables. The catalogue and leaf locks are taken under it.
//! Closing an epoch also takes the journal's mutex under it. Callers that record hold the engine's
//! freeze lock for reading, and the one that closes an epoch holds it for writing, so no record
//! follows the checkpoint of its epoch.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::append::Appender;
use super::attribution::{Author, OTHERS};
use super::catalogue::Catalogue;
use super::table::{NodeUndo, Table};
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::{Name, ObjectId, Slot};
use ckptfs_store::record::{DataState, Key, Place, ProcessNumber, Record, Undo};
use ckptfs_sys::SysResult;
use ckptfs_sys::lock::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Maximum number of undo records in one frame of a batch.
pub(super) const UNDO_ITEMS_AT_ONCE: usize = 4096;

/// In-memory tables of the open epoch and of closed epochs.
pub(super) struct Tables {
    open: Table,
    /// Sequence number of recordings and epoch closes. While it is unchanged, a key without a
    /// record still has no record.
    recordings: u64,
    /// Inodes created in the open epoch, with their creators. No checkpoint shows them.
    born: HashMap<Slot, ProcessNumber>,
    /// Closed epochs not yet in the index, oldest first.
    closed: VecDeque<Arc<Table>>,
    /// Data records voided after their epoch was closed. The index may still contain those of
    /// `sealed` epochs.
    struck: HashSet<(Epoch, Slot)>,
}

impl Tables {
    /// Empty tables with `open` as the open epoch.
    pub(super) fn new(open: Epoch) -> Tables {
        Tables {
            open: Table::new(open),
            recordings: 0,
            born: HashMap::new(),
            closed: VecDeque::new(),
            struck: HashSet::new(),
        }
    }

    pub(super) fn open(&self) -> &Table {
        &self.open
    }

    /// The open epoch, to replay journal records into.
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

    /// Voided data records of closed epochs, which the index may still contain.
    pub(super) fn struck(&self) -> &HashSet<(Epoch, Slot)> {
        &self.struck
    }

    /// Whether an inode was created in the open epoch, or is not in the tree yet.
    fn is_born(&self, slot: Slot) -> bool {
        slot == Slot::STAGING || self.born.contains_key(&slot)
    }

    /// Returns the creator of an inode of the open epoch, if known.
    pub(super) fn maker(&self, slot: Slot) -> Option<ProcessNumber> {
        self.born
            .get(&slot)
            .copied()
            .filter(|maker| *maker != OTHERS)
    }

    /// Whether a change of this key requires a record, provided that a checkpoint exists.
    fn needs(&self, key: &Key) -> bool {
        let (Key::Entry(slot, _)
        | Key::Attr(slot)
        | Key::Xattrs(slot)
        | Key::Data(slot)
        | Key::Home(slot)) = key;
        !self.is_born(*slot) && !self.open.has(key)
    }

    /// Closes the open epoch with the checkpoint `id`.
    pub(super) fn close(&mut self, id: CheckpointId) {
        self.recordings += 1;
        let closed = std::mem::replace(&mut self.open, Table::new(id.epoch().next()));
        self.born.clear();
        self.closed.push_back(Arc::new(closed));
    }

    /// Voids a data record in its epoch. Returns `true` if that epoch is closed and the index may
    /// contain the record.
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

/// Undo records in memory. See the module.
pub struct Epochs {
    journal: Arc<Appender>,
    catalogue: Arc<Catalogue>,
    tables: RwLock<Tables>,
}

/// Separates the `Home` records if the list is too long for one record.
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

    /// Returns the number of the open epoch.
    pub fn epoch(&self) -> Epoch {
        self.read().open.epoch
    }

    /// Whether the open epoch has no record.
    pub fn is_unchanged(&self) -> bool {
        self.read().open.is_empty()
    }

    /// Returns the number of changed paths in the open epoch, as counted by the operations.
    pub fn dirty(&self) -> u64 {
        self.read().open.dirty()
    }

    /// Adjusts the count of changed paths, in memory only.
    pub fn count(&self, by: i64) {
        self.write().open.count(by);
    }

    /// Whether no checkpoint shows the inode: it was created in the open epoch, or no checkpoint
    /// exists.
    pub fn is_born(&self, slot: Slot) -> bool {
        let tables = self.read();
        tables.is_born(slot) || self.catalogue.read().is_empty()
    }

    /// Whether changes of the inode need no attribution: no checkpoint exists, visible or hidden,
    /// or the inode is not in the tree.
    pub(super) fn asks_nobody(&self, slot: Slot) -> bool {
        slot == Slot::STAGING || self.catalogue.read().is_empty()
    }

    /// Whether a change of this key in the open epoch requires a record first.
    pub fn needs(&self, key: &Key) -> bool {
        let tables = self.read();
        tables.needs(key) && !self.catalogue.read().is_empty()
    }

    /// Records the state before a change in one append: the items of `undo` whose keys need a
    /// record, the touches staged by the author, then `more`. On return they survive `kill -9`, and
    /// views find them.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal. The change must not be made then.
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
        // The names of an inode may exceed one record or one append. Their `Home` records are
        // appended first. Each is valid by itself, and the records that follow complete the change.
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

    /// Returns the sequence number of recordings. While it is unchanged, a key without a record
    /// still has none. A record, and with it this number, always precedes its change.
    pub fn recordings(&self) -> u64 {
        self.read().recordings
    }

    /// Voids the provisional data record of a file in the open epoch. Returns its object, which
    /// nothing refers to any more, even after `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then the record stays.
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

    /// Voids a data record of the open epoch, provisional or not, because its object was never
    /// created; the next change requires a new record. On return this is recorded, or owed
    /// ([`Appender::tell`]).
    pub fn strike(&self, slot: Slot) {
        self.journal.tell(Record::Void {
            epoch: self.epoch(),
            slot,
        });
        self.write().open.void(slot);
    }

    /// Sets the current places of inodes, overriding earlier records. On return this is recorded,
    /// or owed ([`Appender::tell`]).
    pub fn put_places(&self, places: Vec<(Slot, Place)>) {
        self.journal.tell(Record::Moved {
            places: places.clone(),
        });
        let mut tables = self.write();
        for (slot, place) in places {
            tables.open.put_place(slot, place);
        }
    }

    /// Marks an inode as created in the open epoch. It needs no records until the epoch closes.
    pub(super) fn add_born(&self, author: &Author, slot: Slot) {
        let maker = author.number().unwrap_or(OTHERS);
        self.write().born.insert(slot, maker);
    }

    /// Removes the mark of a created inode: its number is free again, or a checkpoint can show it.
    pub fn drop_born(&self, slot: Slot) {
        let mut tables = self.write();
        if tables.is_born(slot) || self.catalogue.read().is_empty() {
            tables.open.drop_place(slot);
        }
        tables.born.remove(&slot);
    }

    /// Whether an inode that loses its last name has a past, or an earlier inode with the same
    /// number may have one.
    pub(super) fn has_past(&self, slot: Slot) -> bool {
        let tables = self.read();
        let born = tables.is_born(slot) || self.catalogue.read().is_empty();
        !born || tables.all().any(|table| table.node(slot).is_some())
    }

    /// Confirms the provisional capture of a file: it can no longer be voided. In memory only.
    pub fn confirm(&self, slot: Slot) {
        self.write().open.confirm(slot);
    }

    /// Returns the data record of a file in the open epoch.
    pub fn data_now(&self, slot: Slot) -> Option<DataState> {
        self.read().open.node(slot).and_then(|node| node.data)
    }

    /// Whether the next checkpoint may carry this object into its epoch: it is the provisional
    /// capture of the file in the open epoch. Such an object must not be freed, even if no
    /// checkpoint reads it yet. Once `false` for an object, the result stays `false`.
    pub fn may_carry(&self, slot: Slot, object: ObjectId) -> bool {
        self.data_now(slot)
            .is_some_and(|data| data.provisional && data.object == Some(object))
    }

    /// Returns the records of an inode in the open epoch.
    pub fn node_now(&self, slot: Slot) -> NodeUndo {
        self.read().open.node(slot).cloned().unwrap_or_default()
    }

    /// Returns every inode and name with a record in the open epoch. With `closed`, includes closed
    /// epochs that are not in the index yet: after a power cut the tree on disk may be in their
    /// state.
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

    /// Returns every data record of the open epoch.
    pub fn data_records(&self) -> Vec<(Slot, DataState)> {
        self.read()
            .open
            .nodes()
            .filter_map(|(slot, node)| node.data.map(|data| (slot, data)))
            .collect()
    }

    /// Returns the inodes with a record in the open epoch or in a closed one that is not in the
    /// index yet, including removed inodes.
    pub fn recorded_now(&self) -> HashSet<Slot> {
        self.read()
            .all()
            .flat_map(|table| table.nodes().map(|(slot, _)| slot))
            .collect()
    }

    /// Returns the tables of closed epochs up to `epoch`.
    pub(super) fn closed_upto(&self, epoch: Epoch) -> Vec<Arc<Table>> {
        self.read()
            .closed
            .iter()
            .take_while(|table| table.epoch <= epoch)
            .cloned()
            .collect()
    }

    /// Removes the tables of epochs that are in the index, for the caller to free.
    pub(super) fn take_indexed(&self, upto: Epoch) -> Vec<Arc<Table>> {
        let mut tables = self.write();
        let count = tables.closed.partition_point(|table| table.epoch <= upto);
        tables.closed.drain(..count).collect()
    }
}
