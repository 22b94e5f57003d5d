//! The timeline: the open epoch, the closed ones, and the checkpoints between them.
//!
//! Records are made by the live tree before each change ([`Timeline::record`]) and asked for by views. Those of the open epoch and of closed ones
//! that the indexer has not yet taken over are in memory; older ones are found through the index, which leads to the journal.
//!
//! **Locking.** One `RwLock` over the tables, a leaf: nothing else is locked while it is held, but for the journal's own mutex. Callers that record
//! hold the engine's gate for reading, and whoever seals an epoch holds it for writing, so that no record comes after the checkpoint of its epoch.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::sync::Arc;

use super::absence::{Absence, Clock};
use super::select::{Known, Unselected, select};
use super::table::Table;
use super::view::State;
use crate::store::ids::{CheckpointId, Epoch, Name, ObjectId, Slot};
use crate::store::record::{Actor, AttrState, Checkpoint, DataState, Key, Place, Record, Sealed, Undo};
use crate::store::{Address, Store, StoreError};
use crate::sys::lock::{Mutex, RwLock};
use crate::sys::{Errno, Kind, SysResult};

/// Undo records in one frame at most, where there can be many.
const UNDO_ITEMS_AT_ONCE: usize = 4096;

pub(super) struct Inner {
    pub(super) open: Table,
    /// How often records came to the open epoch, or an epoch was closed: as long as it stays, what had no record has none.
    recordings: u64,
    /// Inodes made in the open epoch: no checkpoint can see them.
    born: HashSet<Slot>,
    /// Closed epochs not yet in the index, oldest first.
    pub(super) sealed: VecDeque<Arc<Table>>,
    /// Every checkpoint kept, with where its record is in the journal.
    pub(super) checkpoints: BTreeMap<CheckpointId, (Checkpoint, Address)>,
    tags: BTreeMap<String, CheckpointId>,
    /// Data records of closed epochs that were taken out after their epoch was closed: the index has yet to learn it of those in `sealed`.
    pub(super) struck: HashSet<(Epoch, Slot)>,
    /// When nobody served the tree, oldest first.
    pub(super) absences: Vec<Absence>,
    /// Records of hashes that the index may not have yet: where they are, and whether each makes its epoch whole.
    pub(super) seals: BTreeMap<Epoch, Vec<(Address, bool)>>,
    pub(super) clock: Clock,
    /// Records of what was captured ahead that the index may not have yet, and how far that is.
    pub(super) ahead: (Vec<Address>, Epoch),
}

impl Inner {
    pub(super) fn new(epoch: Epoch) -> Inner {
        Inner {
            open: Table::new(epoch),
            recordings: 0,
            born: HashSet::new(),
            sealed: VecDeque::new(),
            checkpoints: BTreeMap::new(),
            tags: BTreeMap::new(),
            struck: HashSet::new(),
            absences: Vec::new(),
            seals: BTreeMap::new(),
            clock: Clock::default(),
            ahead: (Vec::new(), Epoch(0)),
        }
    }

    /// Without checkpoints nothing has a past: nobody could ask for what was kept, and nothing would ever remove it.
    fn is_born(&self, slot: Slot) -> bool {
        slot == Slot::STAGING || self.checkpoints.is_empty() || self.born.contains(&slot)
    }

    fn latest(&self) -> Option<CheckpointId> {
        let asked = self.checkpoints.values().rev().find(|(checkpoint, _)| !checkpoint.reason.is_auto());
        asked.or_else(|| self.checkpoints.values().next_back()).map(|(checkpoint, _)| checkpoint.id)
    }

    pub(super) fn put_checkpoint(&mut self, checkpoint: Checkpoint, address: Address) {
        if self.checkpoints.contains_key(&checkpoint.id) {
            self.tags.retain(|_, id| *id != checkpoint.id);
        }
        for tag in &checkpoint.tags {
            self.tags.insert(tag.clone(), checkpoint.id);
        }
        self.clock.read(checkpoint.id, checkpoint.created_ns);
        self.checkpoints.insert(checkpoint.id, (checkpoint, address));
    }

    pub(super) fn drop_checkpoint(&mut self, id: CheckpointId) {
        self.tags.retain(|_, tagged| *tagged != id);
        self.checkpoints.remove(&id);
    }

    pub(super) fn retag(&mut self, id: CheckpointId, tags: Vec<String>) {
        self.tags.retain(|_, tagged| *tagged != id);
        for tag in &tags {
            self.tags.insert(tag.clone(), id);
        }
        if let Some((checkpoint, _)) = self.checkpoints.get_mut(&id) {
            checkpoint.tags = tags;
        }
    }

    pub(super) fn seal(&mut self) {
        self.recordings += 1;
        let next = Table::new(self.open.epoch.next());
        let closed = std::mem::replace(&mut self.open, next);
        self.born.clear();
        self.sealed.push_back(Arc::new(closed));
    }
}

/// An inode that was to be renamed by an operation that may not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its place if all of it happened.
    pub to: Place,
    /// Places where it was before, the last one last. After a power cut several renames may be undone, and links that led to its names.
    pub before: Vec<Place>,
}

/// What the journal's tail said about how the last daemon ended.
#[derive(Clone, Debug, Default)]
pub struct Aftermath {
    /// The last daemon did not end in an orderly way.
    pub unclean: bool,
    /// A rename over an existing inode may be half done: the last one.
    pub replacing: Option<(Slot, Place, ObjectId)>,
    /// The last renames recorded: each may not have happened.
    pub moved: HashMap<Slot, Moved>,
    /// A restore was under way.
    pub restoring: Option<(CheckpointId, CheckpointId, Vec<Vec<u8>>)>,
    /// When the tree stopped being served, nanoseconds since 1970, if that is known.
    pub stopped_ns: Option<i64>,
}

/// The record of who asked for what the next one says, if that is known.
fn asked(by: Option<&Actor>) -> Vec<Record> {
    let now = crate::sys::now();
    let at_ns = now.sec.saturating_mul(1_000_000_000).saturating_add(i64::from(now.nsec));
    by.map(|actor| Record::By { at_ns, actor: actor.clone() }).into_iter().collect()
}

/// The history of one tree. See the module.
pub struct Timeline {
    pub(super) store: Arc<Store>,
    pub(super) inner: RwLock<Inner>,
    /// Records that could not be appended when what they tell happened: they go before the next ones. A crash before that is found by recovery.
    pub(super) owed: Mutex<Vec<Record>>,
    pub(super) wake: super::indexer::Wake,
    /// Objects that were found to hold something else than was captured. A leaf.
    pub(super) distrusted: Mutex<HashSet<ObjectId>>,
    /// What was found to be changed behind our back since the mount, by checkpoint. A leaf.
    pub(super) met: Mutex<BTreeMap<CheckpointId, BTreeMap<Vec<u8>, Kind>>>,
}

/// Errors of the store as the kernel shall see them; each is logged where it happens.
pub(super) fn fault(error: StoreError) -> Errno {
    tracing::error!(%error, "the store failed");
    error.errno()
}

impl Timeline {
    /// The store that it is kept in.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Number of the open epoch.
    pub fn epoch(&self) -> Epoch {
        self.inner.read().open.epoch
    }

    /// Number of changed paths in the open epoch, as the operations counted them.
    pub fn dirty(&self) -> u64 {
        self.inner.read().open.dirty()
    }

    /// No checkpoint can see the inode: it was made in the open epoch, or there is no checkpoint.
    pub fn is_born(&self, slot: Slot) -> bool {
        self.inner.read().is_born(slot)
    }

    /// Notes that an inode was made (`true`) or that it is gone and its slot free (`false`).
    pub fn set_born(&self, slot: Slot, born: bool) {
        let mut inner = self.inner.write();
        if born {
            inner.born.insert(slot);
        } else {
            if inner.is_born(slot) {
                inner.open.drop_place(slot);
            }
            inner.born.remove(&slot);
        }
    }

    /// Counts changed paths.
    pub fn count(&self, by: i64) {
        self.inner.write().open.count(by);
    }

    /// A change of this key in the open epoch would need a record first.
    pub fn needs(&self, key: &Key) -> bool {
        let slot = match key {
            Key::Entry(slot, _) | Key::Attr(slot) | Key::Xattrs(slot) | Key::Data(slot) | Key::Home(slot) => slot,
        };
        let inner = self.inner.read();
        !inner.is_born(*slot) && !inner.open.has(key)
    }

    /// Records the state before a change: those of `undo` whose keys need it, then `more`, in one append. When it returns they survive `kill -9`.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal; then nothing was recorded and the change must not be made.
    pub fn record(&self, mut undo: Vec<Undo>, more: Vec<Record>) -> SysResult<()> {
        let epoch = {
            let inner = self.inner.read();
            undo.retain(|item| {
                let key = item.key();
                let (Key::Entry(slot, _) | Key::Attr(slot) | Key::Xattrs(slot) | Key::Data(slot) | Key::Home(slot)) = &key;
                !inner.is_born(*slot) && !inner.open.has(&key)
            });
            inner.open.epoch
        };
        if undo.is_empty() && more.is_empty() {
            return Ok(());
        }
        let mut records = Vec::with_capacity(1 + more.len());
        if !undo.is_empty() {
            records.push(Record::Undo { epoch, undo: undo.clone() });
        }
        records.extend(more);
        self.write(&records)?;
        let mut inner = self.inner.write();
        inner.recordings += 1;
        for item in undo {
            inner.open.add(item);
        }
        for record in records {
            if let Record::Moved { places } = record {
                for (slot, place) in places {
                    inner.open.put_place(slot, place);
                }
            }
        }
        Ok(())
    }

    /// A number that another record changes: as long as it stays, what had no record has none. A record is made, and so the number changed, before
    /// its change is.
    pub fn recordings(&self) -> u64 {
        self.inner.read().recordings
    }

    /// Appends records that change nothing of the tables.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal.
    pub fn append(&self, records: &[Record]) -> SysResult<()> {
        self.write(records).map(drop)
    }

    /// Appends records, behind those that the journal is owed.
    pub(super) fn write(&self, records: &[Record]) -> SysResult<Vec<Address>> {
        let append = |records: &[Record]| self.store.reserve.with_room(|| self.store.journal.append(records), StoreError::errno).map_err(fault);
        let mut owed = self.owed.lock();
        if owed.is_empty() {
            drop(owed);
            return append(records);
        }
        let all = [owed.as_slice(), records].concat();
        let addresses = append(&all)?;
        let before = owed.len();
        owed.clear();
        Ok(addresses.into_iter().skip(before).collect())
    }

    /// Appends a record of what is so already: where that fails, it is owed.
    pub fn tell(&self, record: Record) {
        if let Err(errno) = self.append(std::slice::from_ref(&record)) {
            tracing::warn!(%errno, ?record, "what happened cannot be recorded yet");
            self.owed.lock().push(record);
        }
    }

    /// Appends a record that changes nothing of the tables, with who asked for it.
    ///
    /// # Errors
    /// As [`Timeline::append`].
    pub fn append_by(&self, by: Option<&Actor>, record: Record) -> SysResult<()> {
        let mut records = asked(by);
        records.push(record);
        self.append(&records)
    }

    /// Takes back the provisional data record of a file in the open epoch. Returns its object, which nothing refers to any more.
    ///
    /// # Errors
    /// As [`Timeline::append`]; then the record stands.
    pub fn void(&self, slot: Slot) -> SysResult<Option<ObjectId>> {
        let epoch = self.epoch();
        if !self.data_now(slot).is_some_and(|data| data.provisional) {
            return Ok(None);
        }
        self.append(&[Record::Void { epoch, slot }])?;
        let mut inner = self.inner.write();
        inner.open.count(-1);
        Ok(inner.open.void(slot).and_then(|data| data.object))
    }

    /// A data record that is no longer true is taken out whatever it was: its object never came to be, and the next change needs another.
    pub fn strike(&self, slot: Slot) {
        self.tell(Record::Void { epoch: self.epoch(), slot });
        self.inner.write().open.void(slot);
    }

    /// Inodes are here, whatever was recorded before.
    pub fn put_places(&self, places: Vec<(Slot, Place)>) {
        self.tell(Record::Moved { places: places.clone() });
        let mut inner = self.inner.write();
        for (slot, place) in places {
            inner.open.put_place(slot, place);
        }
    }

    /// The provisional capture of a file will be needed: it can no longer be voided.
    pub fn confirm(&self, slot: Slot) {
        self.inner.write().open.confirm(slot);
    }

    /// The data record of a file in the open epoch.
    pub fn data_now(&self, slot: Slot) -> Option<DataState> {
        self.inner.read().open.node(slot).and_then(|node| node.data)
    }

    /// The attribute record of an inode in the open epoch.
    pub fn attr_now(&self, slot: Slot) -> Option<Arc<AttrState>> {
        self.inner.read().open.node(slot).and_then(|node| node.attr.clone())
    }

    /// Every inode and every name that has a record in the open epoch, or in a closed one that is not in the index yet: after a power cut the tree on
    /// disk may be of that.
    pub fn touched_now(&self) -> (HashSet<Slot>, Vec<(Slot, Name)>) {
        let inner = self.inner.read();
        let tables = || inner.sealed.iter().map(|table| &**table).chain(std::iter::once(&inner.open));
        let names = tables().flat_map(|table| table.entries().map(|(dir, name, _)| (dir, name.clone()))).collect();
        (tables().flat_map(|table| table.nodes().map(|(slot, _)| slot)).collect(), names)
    }

    /// Every data record of the open epoch.
    pub fn data_records(&self) -> Vec<(Slot, DataState)> {
        self.inner.read().open.nodes().filter_map(|(slot, node)| node.data.map(|data| (slot, data))).collect()
    }

    /// Closes the open epoch with `checkpoint` and opens the next, whose first records are `ahead`: all in one append. When it returns the
    /// checkpoint survives `kill -9`.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal; then the epoch stays open and no checkpoint was made.
    pub fn seal(&self, by: Option<&Actor>, checkpoint: Checkpoint, ahead: Vec<Undo>) -> SysResult<()> {
        let mut inner = self.inner.write();
        let next = inner.open.epoch.next();
        let mut records = asked(by);
        let made = records.len();
        records.push(Record::Checkpoint(checkpoint.clone()));
        records.extend(ahead.chunks(UNDO_ITEMS_AT_ONCE).map(|undo| Record::Undo { epoch: next, undo: undo.to_vec() }));
        let addresses = self.write(&records)?;
        let address = addresses.get(made).copied().ok_or(Errno::EIO)?;
        inner.seal();
        for item in ahead {
            // Counted as a capture at an open for writing is: it is taken back, and the count with it, if the file turns out unchanged.
            if matches!(item, Undo::Data { .. }) {
                inner.open.count(1);
            }
            inner.open.add(item);
        }
        inner.clock.made(checkpoint.id, checkpoint.created_ns, crate::sys::clock_ahead_ns());
        inner.put_checkpoint(checkpoint, address);
        drop(inner);
        self.wake.sealed();
        Ok(())
    }

    /// Every checkpoint kept, oldest first.
    pub fn checkpoints(&self) -> Vec<Checkpoint> {
        self.inner.read().checkpoints.values().map(|(checkpoint, _)| checkpoint.clone()).collect()
    }

    /// The checkpoints that are not known to be on disk with all that they need, oldest first.
    pub fn unsynced(&self) -> impl Iterator<Item = Checkpoint> + use<> {
        let synced_ns = self.store.layout.synced_ns().unwrap_or(i64::MIN);
        let inner = self.inner.read();
        let newest_first = inner.checkpoints.values().rev().map(|(checkpoint, _)| checkpoint);
        let mut unsynced: Vec<Checkpoint> = newest_first.take_while(|checkpoint| checkpoint.created_ns > synced_ns).cloned().collect();
        unsynced.reverse();
        unsynced.into_iter()
    }

    /// The number of every checkpoint kept, oldest first.
    pub fn checkpoint_ids(&self) -> Vec<CheckpointId> {
        self.inner.read().checkpoints.keys().copied().collect()
    }

    /// At most `limit` checkpoints that are wanted, newest first.
    pub fn newest(&self, limit: usize, wanted: impl Fn(&Checkpoint) -> bool) -> Vec<Checkpoint> {
        let inner = self.inner.read();
        let kept = inner.checkpoints.values().rev().map(|(checkpoint, _)| checkpoint);
        kept.filter(|checkpoint| wanted(checkpoint)).take(limit).cloned().collect()
    }

    /// Number of checkpoints kept.
    pub fn checkpoint_count(&self) -> usize {
        self.inner.read().checkpoints.len()
    }

    /// One checkpoint.
    pub fn checkpoint(&self, id: CheckpointId) -> Option<Checkpoint> {
        self.inner.read().checkpoints.get(&id).map(|(checkpoint, _)| checkpoint.clone())
    }

    /// Whether a checkpoint is kept.
    pub fn has_checkpoint(&self, id: CheckpointId) -> bool {
        self.inner.read().checkpoints.contains_key(&id)
    }

    /// The newest checkpoint that somebody asked for; the newest, if nobody asked for any.
    pub fn latest(&self) -> Option<CheckpointId> {
        self.inner.read().latest()
    }

    /// The newest checkpoint, whoever made it.
    pub fn last(&self) -> Option<CheckpointId> {
        self.inner.read().checkpoints.last_key_value().map(|(id, _)| *id)
    }

    /// The checkpoint with this tag.
    pub fn tagged(&self, tag: &str) -> Option<CheckpointId> {
        self.inner.read().tags.get(tag).copied()
    }

    /// The state that a person means; see [`select`](super::select).
    ///
    /// # Errors
    /// As [`select()`].
    pub fn select(&self, name: &str) -> Result<State, Unselected> {
        let inner = self.inner.read();
        // What most ask for is found without looking at each.
        let known = match name {
            "latest" => inner.latest(),
            tag => inner.tags.get(tag).copied(),
        };
        if let Some(id) = known {
            return Ok(State::At(id));
        }
        let checkpoints = inner.checkpoints.values();
        let known: Vec<Known<'_>> =
            checkpoints.map(|(kept, _)| Known { id: kept.id, tags: &kept.tags, created_ns: kept.created_ns, auto: kept.reason.is_auto() }).collect();
        select(name, &known)
    }

    /// Every tag, sorted.
    pub fn tags(&self) -> Vec<(String, CheckpointId)> {
        self.inner.read().tags.iter().map(|(tag, id)| (tag.clone(), *id)).collect()
    }

    /// Gives checkpoints these tags, taking them from whichever had them: all in one append.
    ///
    /// # Errors
    /// As [`Timeline::append`]; then nothing changed.
    pub fn set_tags(&self, by: Option<&Actor>, tags: Vec<(CheckpointId, Vec<String>)>) -> SysResult<()> {
        let each = |(id, tags): &(CheckpointId, Vec<String>)| {
            let mut records = asked(by);
            records.push(Record::Tags { id: *id, tags: tags.clone() });
            records
        };
        let records: Vec<Record> = tags.iter().flat_map(each).collect();
        self.append(&records)?;
        let mut inner = self.inner.write();
        for (id, tags) in tags {
            inner.retag(id, tags);
        }
        Ok(())
    }

    /// Deletes a checkpoint. What only it needed can be collected after.
    ///
    /// # Errors
    /// As [`Timeline::append`].
    pub fn delete(&self, by: Option<&Actor>, id: CheckpointId) -> SysResult<()> {
        self.append_by(by, Record::Deleted { id })?;
        self.inner.write().drop_checkpoint(id);
        Ok(())
    }

    /// Records what objects of a closed epoch held. `whole`: all that it has are recorded now.
    ///
    /// # Errors
    /// As [`Timeline::append`].
    pub fn add_seal(&self, epoch: Epoch, objects: Vec<Sealed>, whole: bool) -> SysResult<()> {
        let at = self.write(&[Record::Sealed { epoch, objects, whole }])?;
        self.inner.write().seals.entry(epoch).or_default().extend(at.into_iter().map(|at| (at, whole)));
        Ok(())
    }

    /// What is recorded of an epoch's objects, and whether that is all of them.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn sealed(&self, epoch: Epoch) -> SysResult<(Vec<Sealed>, bool)> {
        let mut places = self.store.index.seals(epoch).map_err(fault)?;
        for place in self.inner.read().seals.get(&epoch).into_iter().flatten() {
            if !places.contains(place) {
                places.push(*place);
            }
        }
        let mut found = Vec::new();
        for (at, _) in &places {
            if let Record::Sealed { objects, .. } = self.store.journal.read(*at).map_err(fault)? {
                found.extend(objects);
            }
        }
        Ok((found, places.iter().any(|(_, whole)| *whole)))
    }

    /// Whether every object of an epoch is hashed.
    ///
    /// # Errors
    /// EIO if the index cannot be read.
    pub fn is_sealed(&self, epoch: Epoch) -> SysResult<bool> {
        if self.inner.read().seals.get(&epoch).is_some_and(|seals| seals.iter().any(|(_, whole)| *whole)) {
            return Ok(true);
        }
        Ok(self.store.index.seals(epoch).map_err(fault)?.iter().any(|(_, whole)| *whole))
    }

    /// Where an inode with a past is to be found now; a hint, to be verified.
    pub fn place(&self, slot: Slot) -> Option<Place> {
        self.place_or_fault(slot).ok().flatten()
    }

    /// As [`Timeline::place`].
    ///
    /// # Errors
    /// EIO if neither the index nor the journal can be read.
    pub fn place_or_fault(&self, slot: Slot) -> SysResult<Option<Place>> {
        let memory = {
            let inner = self.inner.read();
            let mut tables = std::iter::once(&inner.open).chain(inner.sealed.iter().rev().map(|table| &**table));
            tables.find_map(|table| table.place(slot).cloned())
        };
        match memory {
            Some(place) => Ok(Some(place)),
            None => self.store.index.place(slot).or_else(|error| {
                self.index_fault(error);
                self.place_in_journal(slot)
            }),
        }
    }

    /// An object holds something else than was captured: it is not opened any more.
    pub fn distrust(&self, object: ObjectId) {
        self.distrusted.lock().insert(object);
    }

    /// Opens an object for reading; `None` if it is not there.
    ///
    /// # Errors
    /// EIO if it is there and cannot be opened.
    pub fn open_object(&self, object: ObjectId) -> SysResult<Option<File>> {
        if self.distrusted.lock().contains(&object) {
            tracing::error!(?object, "a version is damaged and not shown");
            return Err(Errno::EIO);
        }
        match self.store.layers.open(object) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => {
                tracing::error!(%error, ?object, "a captured version cannot be opened");
                Err(Errno::EIO)
            }
        }
    }

    /// Where in the journal the records after a checkpoint begin.
    pub(super) fn address(&self, id: CheckpointId) -> Option<Address> {
        self.inner.read().checkpoints.get(&id).map(|(_, address)| *address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a filesystem that never gives a number twice, a program that makes, renames and removes directories would fill the table.
    #[test]
    fn a_directory_that_came_and_went_in_one_epoch_leaves_no_place() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(File::open(dir.path()).unwrap(), true).unwrap();
        let (timeline, _) = Timeline::open(Arc::new(store)).unwrap();
        let place = Place { parent: Slot::ROOT, name: Name::new(b"renamed") };
        for slot in [Slot(500), Slot(501)] {
            timeline.set_born(slot, true);
            timeline.record(Vec::new(), vec![Record::Moved { places: vec![(slot, place.clone())] }]).unwrap();
        }
        timeline.set_born(Slot(500), false);
        assert_eq!(timeline.place(Slot(500)), None);
        assert_eq!(timeline.place(Slot(501)), Some(place));
    }
}
