//! The timeline: the open epoch, the closed ones, and the checkpoints between them.
//!
//! Records are made by the live tree before each change ([`Timeline::record`]) and asked for by views. Those of the open epoch and of closed ones
//! that the indexer has not yet taken over are in memory; older ones are found through the index, which leads to the journal.
//!
//! **Locking.** One `RwLock` over the tables, a leaf: nothing else is locked while it is held, but for the journal's own mutex. Callers that record
//! hold the engine's freeze lock for reading, and whoever closes an epoch holds it for writing, so that no record comes after the checkpoint of its epoch.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::absence::{Absence, Clock};
use super::attribution;
use super::content::Contents;
use super::dropped::{DroppedList, Spans};
use super::operations::Operations;
use super::select::{Known, Unselected, select, select_whole};
use super::since::Tracked;
use super::table::{NodeUndo, Table};
use super::tags::Tags;
use super::view::State;
use crate::store::ids::{CheckpointId, Epoch, Name, ObjectId, Slot};
use crate::store::lineage::Lineage;
use crate::store::operation::Deed;
use crate::store::record::{Actor, Comparing, DataState, Kept, Key, ObjectHash, Place, ProcessNumber, Reason, Record, Undo, is_tag};
use crate::store::{Address, Store, StoreError};
use crate::sys::lock::{Mutex, RwLock};
use crate::sys::{self, Errno, Kind, SysResult};

/// Undo records in one frame at most, where there can be many.
pub(super) const UNDO_ITEMS_AT_ONCE: usize = 4096;
/// Bytes of chosen paths that are in the record of an operation.
const ONLY_BYTES_MAX: usize = 1 << 20;

pub(super) struct Inner {
    pub(super) open: Table,
    /// How often records came to the open epoch, or an epoch was closed: as long as it stays, what had no record has none.
    recordings: u64,
    /// Inodes made in the open epoch, and by whom: no checkpoint can see them.
    pub(super) born: HashMap<Slot, ProcessNumber>,
    /// Closed epochs not yet in the index, oldest first.
    pub(super) closed: VecDeque<Arc<Table>>,
    /// Every checkpoint kept, with where its record is in the journal.
    pub(super) checkpoints: BTreeMap<CheckpointId, (Kept, Address)>,
    /// Those that nobody sees and that need what they need all the same: they were deleted or undone.
    pub(super) hidden: BTreeMap<CheckpointId, (Kept, Address)>,
    /// Where they come from.
    pub(super) lineage: Lineage,
    /// What was done.
    pub(super) operations: Operations,
    pub(super) tags: Tags,
    /// Data records of closed epochs that were taken out after their epoch was closed: the index has yet to learn it of those in `sealed`.
    pub(super) struck: HashSet<(Epoch, Slot)>,
    /// When nobody served the tree, oldest first.
    pub(super) absences: Vec<Absence>,
    /// Records of hashes that the index may not have yet: where they are, and whether each makes its epoch whole.
    pub(super) seals: BTreeMap<Epoch, Vec<(Address, bool)>>,
    /// What is in them, as far as the index does not have it.
    pub(super) contents: Contents,
    pub(super) clock: Clock,
    /// Records of dropped versions, by their layer and where they are: the first and the last checkpoint that show something of it.
    pub(super) dropped: BTreeMap<(Epoch, Address), (CheckpointId, CheckpointId)>,
    /// The checkpoints that these are of.
    pub(super) dropped_spans: Spans,
    /// Records of what was captured ahead that the index may not have yet, and how far that is.
    pub(super) ahead: (Vec<Address>, Epoch),
    /// How often the last checkpoint went, so that changes made no record.
    pub(super) unrecorded: u64,
}

impl Inner {
    pub(super) fn new(epoch: Epoch) -> Inner {
        Inner {
            open: Table::new(epoch),
            recordings: 0,
            born: HashMap::new(),
            closed: VecDeque::new(),
            checkpoints: BTreeMap::new(),
            hidden: BTreeMap::new(),
            lineage: Lineage::default(),
            operations: Operations::default(),
            tags: Tags::default(),
            struck: HashSet::new(),
            absences: Vec::new(),
            seals: BTreeMap::new(),
            contents: Contents::default(),
            clock: Clock::default(),
            dropped: BTreeMap::new(),
            dropped_spans: Spans::default(),
            ahead: (Vec::new(), Epoch(0)),
            unrecorded: 0,
        }
    }

    /// Without checkpoints nothing has a past: nobody could ask for what was kept, and nothing would ever remove it.
    pub(super) fn is_born(&self, slot: Slot) -> bool {
        slot == Slot::STAGING || (self.checkpoints.is_empty() && self.hidden.is_empty()) || self.born.contains_key(&slot)
    }

    fn latest(&self) -> Option<CheckpointId> {
        let newest = |wanted: fn(&Reason) -> bool| self.checkpoints.values().rev().find(|(checkpoint, _)| wanted(&checkpoint.reason));
        newest(Reason::is_asked).or_else(|| newest(Reason::is_auto)).map(|(checkpoint, _)| checkpoint.id)
    }

    pub(super) fn put_checkpoint(&mut self, kept: Kept, address: Address) {
        self.clock.read(kept.id, kept.created_ns);
        if kept.hidden {
            self.hidden.insert(kept.id, (kept, address));
            return;
        }
        if let Some((before, _)) = self.checkpoints.get(&kept.id) {
            self.tags.take(kept.id, &before.tags);
        }
        self.tags.give(kept.id, &kept.tags);
        self.checkpoints.insert(kept.id, (kept, address));
    }

    pub(super) fn drop_checkpoint(&mut self, id: CheckpointId) {
        if let Some((kept, _)) = self.checkpoints.remove(&id) {
            self.tags.take(id, &kept.tags);
        }
        self.hidden.remove(&id);
        self.unrecorded += u64::from(self.checkpoints.is_empty() && self.hidden.is_empty());
    }

    pub(super) fn retag(&mut self, id: CheckpointId, mut tags: Vec<String>) {
        tags.retain(|tag| is_tag(tag));
        if let Some((kept, _)) = self.hidden.get_mut(&id) {
            kept.checkpoint.tags = tags;
            return;
        }
        if let Some((kept, _)) = self.checkpoints.get_mut(&id) {
            self.tags.take(id, &kept.tags);
            self.tags.give(id, &tags);
            kept.checkpoint.tags = tags;
        }
    }

    pub(super) fn pin(&mut self, id: CheckpointId, pinned: Option<String>) {
        for known in [&mut self.checkpoints, &mut self.hidden] {
            if let Some((kept, _)) = known.get_mut(&id) {
                kept.pinned.clone_from(&pinned);
            }
        }
    }

    pub(super) fn hide(&mut self, id: CheckpointId, hidden: bool) {
        let known = if hidden { self.checkpoints.remove(&id) } else { self.hidden.remove(&id) };
        if let Some((kept, address)) = known {
            self.tags.take(id, &kept.tags);
            self.put_checkpoint(Kept { hidden, ..kept }, address);
        }
    }

    /// A checkpoint for others, with the nearest that they see as its parent.
    fn shown(&self, kept: &Kept) -> Kept {
        let parent = self.lineage.parent(kept.id, |id| self.checkpoints.range(..=id).next_back().map(|(id, _)| *id));
        Kept { parent, has_dropped: self.dropped_spans.have(kept.id), ..kept.clone() }
    }

    /// Closes the open epoch by the checkpoint `id`.
    pub(super) fn close_epoch(&mut self, id: CheckpointId) {
        self.recordings += 1;
        let next = Table::new(id.epoch().next());
        let closed = std::mem::replace(&mut self.open, next);
        self.born.clear();
        self.closed.push_back(Arc::new(closed));
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
    /// Renames over existing inodes of which one may be half done: the last, or those of the last append.
    pub replacing: Vec<(Slot, Place, ObjectId)>,
    /// The last renames recorded: each may not have happened.
    pub moved: HashMap<Slot, Moved>,
    /// A restore was under way.
    pub restoring: Option<(CheckpointId, CheckpointId, Vec<Vec<u8>>)>,
    /// It was to restore these names alone.
    pub restoring_only: Option<Vec<Vec<u8>>>,
    /// When the tree stopped being served, nanoseconds since 1970, if that is known.
    pub stopped_ns: Option<i64>,
    /// The latest time that a checkpoint or the last records tell of: the daemon lived then. Nanoseconds since 1970.
    pub recorded_ns: Option<i64>,
    /// The tree was being compared with what it was when it was last served.
    pub comparing: Option<Comparing>,
    /// After a power cut: inodes that were moved into a layer not long before. btrfs may have brought back the names that they had, too.
    pub moved_away: Vec<ObjectId>,
}

/// Wall clock, nanoseconds since 1970.
pub fn now_ns() -> i64 {
    crate::sys::now().nanoseconds()
}

/// The record of who asked for what the next one says, if that is known.
pub(super) fn asked(by: Option<&Actor>) -> Vec<Record> {
    let at_ns = now_ns();
    by.map(|actor| Record::By { at_ns, actor: actor.clone() }).into_iter().collect()
}

/// The history of one tree. See the module.
pub struct Timeline {
    pub(super) store: Arc<Store>,
    pub(super) inner: RwLock<Inner>,
    /// Records that could not be appended when what they tell happened: they go before the next ones. A crash before that is found by recovery.
    pub(super) owed: Mutex<Vec<Record>>,
    pub(super) wake: super::indexer::Wake,
    /// The checkpoints that the index may go down to, and up to where.
    pub(super) compact: Mutex<Option<super::indexer::Compaction>>,
    /// A leaf.
    pub(super) numbers: Mutex<attribution::Numbers>,
    /// Objects that were found to hold something else than was captured. A leaf.
    pub(super) distrusted: Mutex<HashSet<ObjectId>>,
    /// What was found to be changed behind our back since the mount, by checkpoint. A leaf.
    pub(super) met: Mutex<BTreeMap<CheckpointId, BTreeMap<Vec<u8>, Kind>>>,
    /// Records of dropped versions that were read. A leaf.
    pub(super) dropped: Mutex<HashMap<Address, Arc<DroppedList>>>,
    /// See [`Timeline::losses`].
    pub(super) losses: AtomicU64,
    /// What changed since the tree was written down. A leaf.
    pub(super) tracked: Mutex<Tracked>,
}

/// Errors of the store as the kernel shall see them; each is logged where it happens.
pub(super) fn fault(error: StoreError) -> Errno {
    tracing::error!(%error, "the store failed");
    error.errno()
}

/// Takes the places out of what is too much for one record.
fn split(undo: Vec<Undo>) -> (Vec<Undo>, Vec<Undo>) {
    if undo.len() <= UNDO_ITEMS_AT_ONCE {
        return (Vec::new(), undo);
    }
    undo.into_iter().partition(|item| matches!(item, Undo::Home { .. }))
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

    /// Nothing has a record in the open epoch.
    pub fn is_unchanged(&self) -> bool {
        self.inner.read().open.is_empty()
    }

    /// Number of changed paths in the open epoch, as the operations counted them.
    pub fn dirty(&self) -> u64 {
        self.inner.read().open.dirty()
    }

    /// No checkpoint can see the inode: it was made in the open epoch, or there is no checkpoint.
    pub fn is_born(&self, slot: Slot) -> bool {
        self.inner.read().is_born(slot)
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
        let touched = self.staged();
        if undo.is_empty() && more.is_empty() && touched.is_none() {
            return Ok(());
        }
        // The names of an inode may be more than a record, or an append, holds. They go ahead: each is true by itself, and what follows says that all were told.
        let (ahead, undo) = split(undo);
        for undo in ahead.chunks(UNDO_ITEMS_AT_ONCE) {
            self.write(&[Record::Undo { epoch, undo: undo.to_vec() }])?;
        }
        let mut records = Vec::with_capacity(2 + more.len());
        if !undo.is_empty() {
            records.push(Record::Undo { epoch, undo: undo.clone() });
        }
        records.extend(touched);
        records.extend(more);
        self.write(&records)?;
        let mut inner = self.inner.write();
        inner.recordings += 1;
        for item in ahead.into_iter().chain(undo) {
            inner.open.add(item);
        }
        for record in records {
            match record {
                Record::Moved { places } => places.into_iter().for_each(|(slot, place)| inner.open.put_place(slot, place)),
                Record::Touched { processes, touches } => inner.open.touched.take(&processes, touches),
                _ => {}
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
        let append = |records: &[Record]| self.store.append(records).map_err(fault);
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

    /// Records that a restore begins, of these paths or, without any, of the whole tree: what comes after then comes from `target`. `only`: of nothing
    /// below them. `by`: who asked for it, and which operation it undoes; without it, it is one that was begun before.
    ///
    /// # Errors
    /// As [`Timeline::append`].
    pub fn begin_restore(
        &self,
        by: Option<(&Actor, Option<u64>)>,
        target: CheckpointId,
        guard: CheckpointId,
        paths: &[Vec<u8>],
        only: bool,
    ) -> SysResult<()> {
        // Chosen paths can be any number. Not all of them would be of no use for an undo; for the rest it matters that there are some.
        let fit = !only || paths.iter().map(|path| path.len() + 4).sum::<usize>() <= ONLY_BYTES_MAX;
        let begins = Record::RestoreBegin { target, guard, paths: if fit { paths.to_vec() } else { paths.iter().take(1).cloned().collect() } };
        let Some((by, undoes)) = by else { return self.append(&[begins]) };
        let paths = if fit { paths.to_vec() } else { Vec::new() };
        self.operate(by, undoes, Deed::Restored { target, guard, paths, only }, vec![begins])
    }

    /// Notes that the whole tree is what a checkpoint holds though nothing had to be restored for it: what comes after comes from that.
    ///
    /// # Errors
    /// As [`Timeline::append`]; then nothing was noted.
    pub fn comes_from(&self, by: &Actor, target: CheckpointId) -> SysResult<()> {
        let guard = CheckpointId(self.epoch().0.saturating_sub(1));
        let begins = Record::RestoreBegin { target, guard, paths: Vec::new() };
        self.append(&asked(Some(by)).into_iter().chain([begins, Record::RestoreEnd]).collect::<Vec<_>>())?;
        self.inner.write().lineage.restored(target, guard, &[]);
        Ok(())
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

    /// What the open epoch has a record of, of this inode.
    pub fn node_now(&self, slot: Slot) -> NodeUndo {
        self.inner.read().open.node(slot).cloned().unwrap_or_default()
    }

    /// Every inode and every name that has a record in the open epoch; with `closed`, also in a closed one that is not in the index yet, for after a power cut
    /// the tree on disk may be of that.
    pub fn touched_now(&self, closed: bool) -> (HashSet<Slot>, Vec<(Slot, Name)>) {
        let inner = self.inner.read();
        let sealed = if closed { inner.closed.as_slices() } else { Default::default() };
        let tables = || sealed.0.iter().chain(sealed.1).map(|table| &**table).chain(std::iter::once(&inner.open));
        let names = tables().flat_map(|table| table.entries().map(|(dir, name, _)| (dir, name.clone()))).collect();
        (tables().flat_map(|table| table.nodes().map(|(slot, _)| slot)).collect(), names)
    }

    /// Every data record of the open epoch.
    pub fn data_records(&self) -> Vec<(Slot, DataState)> {
        self.inner.read().open.nodes().filter_map(|(slot, node)| node.data.map(|data| (slot, data))).collect()
    }

    /// Every checkpoint kept, oldest first.
    pub fn checkpoints(&self) -> Vec<Kept> {
        let inner = self.inner.read();
        inner.checkpoints.values().map(|(kept, _)| inner.shown(kept)).collect()
    }

    /// Every checkpoint that was deleted or undone and can be brought back, oldest first. What it needs takes space until it is freed.
    pub fn hidden(&self) -> Vec<Kept> {
        let inner = self.inner.read();
        inner.hidden.values().map(|(kept, _)| inner.shown(kept)).collect()
    }

    /// The numbers of all checkpoints whose versions are in the store, hidden ones too, oldest first.
    pub fn stored_ids(&self) -> Vec<CheckpointId> {
        let inner = self.inner.read();
        let mut ids: Vec<CheckpointId> = inner.checkpoints.keys().chain(inner.hidden.keys()).copied().collect();
        ids.sort();
        ids
    }

    /// The checkpoints that are not known to be on disk with all that they need, oldest first.
    pub fn unsynced(&self) -> impl Iterator<Item = Kept> + use<> {
        let synced_ns = self.store.layout.synced_ns().unwrap_or(i64::MIN);
        let inner = self.inner.read();
        let newest_first = inner.checkpoints.values().rev().map(|(checkpoint, _)| checkpoint);
        let mut unsynced: Vec<Kept> = newest_first.take_while(|checkpoint| checkpoint.created_ns > synced_ns).cloned().collect();
        unsynced.extend(inner.hidden.values().map(|(kept, _)| kept).filter(|kept| kept.created_ns > synced_ns).cloned());
        unsynced.sort_by_key(|kept| kept.id);
        unsynced.into_iter()
    }

    /// The number of every checkpoint kept, oldest first.
    pub fn checkpoint_ids(&self) -> Vec<CheckpointId> {
        self.inner.read().checkpoints.keys().copied().collect()
    }

    /// Every checkpoint that something is kept for, and when it was made (nanoseconds since 1970), oldest first.
    pub fn retained(&self) -> Vec<(CheckpointId, i64)> {
        let inner = self.inner.read();
        let mut ids: Vec<_> = inner.checkpoints.iter().chain(&inner.hidden).map(|(id, (kept, _))| (*id, kept.created_ns)).collect();
        ids.sort_unstable();
        ids
    }

    /// At most `limit` checkpoints that are wanted, newest first.
    pub fn newest(&self, limit: usize, wanted: impl Fn(&Kept) -> bool) -> Vec<Kept> {
        self.newest_before(None, limit, wanted)
    }

    /// As [`Timeline::newest`], of those before `before`.
    pub fn newest_before(&self, before: Option<CheckpointId>, limit: usize, wanted: impl Fn(&Kept) -> bool) -> Vec<Kept> {
        let inner = self.inner.read();
        let kept = inner.checkpoints.range(..before.unwrap_or(CheckpointId(u64::MAX))).rev().map(|(_, (kept, _))| kept);
        kept.filter(|kept| wanted(kept)).take(limit).map(|kept| inner.shown(kept)).collect()
    }

    /// Number of checkpoints kept.
    pub fn checkpoint_count(&self) -> usize {
        self.inner.read().checkpoints.len()
    }

    /// One checkpoint.
    pub fn checkpoint(&self, id: CheckpointId) -> Option<Kept> {
        let inner = self.inner.read();
        inner.checkpoints.get(&id).map(|(kept, _)| inner.shown(kept))
    }

    /// One checkpoint that is hidden.
    pub fn hidden_checkpoint(&self, id: CheckpointId) -> Option<Kept> {
        let inner = self.inner.read();
        inner.hidden.get(&id).map(|(kept, _)| inner.shown(kept))
    }

    /// Whether a checkpoint is kept.
    pub fn has_checkpoint(&self, id: CheckpointId) -> bool {
        self.inner.read().checkpoints.contains_key(&id)
    }

    /// Whether what a checkpoint needs is in the store: it is kept, or hidden.
    pub fn is_stored(&self, id: CheckpointId) -> bool {
        let inner = self.inner.read();
        inner.checkpoints.contains_key(&id) || inner.hidden.contains_key(&id)
    }

    /// The newest checkpoint that somebody asked for; the newest that the daemon made by itself, if nobody asked for any.
    pub fn latest(&self) -> Option<CheckpointId> {
        self.inner.read().latest()
    }

    /// The newest checkpoint that somebody asked for and that the tree comes from: after a restore of the whole tree it is what was restored, or what
    /// that comes from. If there is none, [`Timeline::latest`].
    pub fn base(&self) -> Option<CheckpointId> {
        let inner = self.inner.read();
        let asked = |to| inner.checkpoints.range(..=to).rev().find(|(_, (kept, _))| kept.reason.is_asked()).map(|(id, _)| *id);
        inner.lineage.parent(inner.open.epoch.checkpoint(), asked).or_else(|| inner.latest())
    }

    /// The newest checkpoint, whoever made it.
    pub fn last(&self) -> Option<CheckpointId> {
        self.inner.read().checkpoints.last_key_value().map(|(id, _)| *id)
    }

    /// The newest checkpoint whose versions are in the store, hidden or not.
    pub fn newest_stored(&self) -> Option<CheckpointId> {
        let inner = self.inner.read();
        let last = |known: &BTreeMap<CheckpointId, (Kept, Address)>| known.last_key_value().map(|(id, _)| *id);
        last(&inner.checkpoints).max(last(&inner.hidden))
    }

    /// The checkpoint with this tag.
    pub fn tagged(&self, tag: &str) -> Option<CheckpointId> {
        self.inner.read().tags.get(tag)
    }

    /// The state that a person means; see [`select`](super::select).
    ///
    /// # Errors
    /// As [`select()`].
    pub fn select(&self, name: &str) -> Result<State, Unselected> {
        self.selected(name, select)
    }

    /// As [`Timeline::select`], where the beginning of a tag is not enough.
    ///
    /// # Errors
    /// As [`select_whole`].
    pub fn select_whole(&self, name: &str) -> Result<State, Unselected> {
        self.selected(name, select_whole)
    }

    fn selected(&self, name: &str, select: fn(&str, &[Known<'_>]) -> Result<State, Unselected>) -> Result<State, Unselected> {
        let inner = self.inner.read();
        // What most ask for is found without looking at each.
        let known = match name {
            "latest" => inner.latest(),
            tag => inner.tags.get(tag).or_else(|| tag.parse().map(CheckpointId).ok().filter(|id| inner.checkpoints.contains_key(id))),
        };
        if let Some(id) = known {
            return Ok(State::At(id));
        }
        let checkpoints = inner.checkpoints.values();
        let known: Vec<Known<'_>> =
            checkpoints.map(|(kept, _)| Known { id: kept.id, tags: &kept.tags, state_ns: kept.state_ns(), reason: &kept.reason }).collect();
        select(name, &known)
    }

    /// Every tag, sorted.
    pub fn tags(&self) -> Vec<(String, CheckpointId)> {
        self.inner.read().tags.all().map(|(tag, id)| (tag.clone(), id)).collect()
    }

    /// Gives a checkpoint these tags. Nobody asked for it.
    ///
    /// # Errors
    /// As [`Timeline::append`]; then nothing changed.
    pub fn set_tags(&self, id: CheckpointId, tags: Vec<String>) -> SysResult<()> {
        self.append(&[Record::Tags { id, tags: tags.clone() }])?;
        self.inner.write().retag(id, tags);
        Ok(())
    }

    /// Records what objects of a closed epoch held. `whole`: all that it has are recorded now.
    ///
    /// # Errors
    /// As [`Timeline::append`].
    pub fn add_hashes(&self, epoch: Epoch, objects: Vec<ObjectHash>, whole: bool) -> SysResult<()> {
        let at = self.write(&[Record::Hashes { epoch, objects: objects.clone(), whole }])?;
        sys::awake(|| {
            let mut inner = self.inner.write();
            at.into_iter().for_each(|at| inner.note_hashes(epoch, at, &objects, whole));
        });
        Ok(())
    }

    /// What is recorded of an epoch's objects, and whether that is all of them.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn sealed(&self, epoch: Epoch) -> SysResult<(Vec<ObjectHash>, bool)> {
        let mut places = self.store.index.seals(epoch).map_err(fault)?;
        for place in self.inner.read().seals.get(&epoch).into_iter().flatten() {
            if !places.contains(place) {
                places.push(*place);
            }
        }
        let mut found = Vec::new();
        for (at, _) in &places {
            // It may just have been left out, with all that it speaks of.
            if let Some(Record::Hashes { objects, .. }) = self.store.journal.read_if_needed(*at).map_err(fault)? {
                found.extend(objects);
            }
        }
        Ok((found, places.iter().any(|(_, whole)| *whole)))
    }

    /// Whether every object of an epoch is hashed.
    ///
    /// # Errors
    /// EIO if the index cannot be read.
    pub fn is_hashed(&self, epoch: Epoch) -> SysResult<bool> {
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
            let mut tables = std::iter::once(&inner.open).chain(inner.closed.iter().rev().map(|table| &**table));
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
        self.lost();
    }

    /// Opens an object for reading; `None` if it is not there.
    ///
    /// # Errors
    /// EIO if it is there and cannot be opened.
    pub fn open_object(&self, object: ObjectId) -> SysResult<Option<File>> {
        if self.distrusts(object) {
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

    /// An object was found to hold something else than was captured.
    pub(super) fn distrusts(&self, object: ObjectId) -> bool {
        self.distrusted.lock().contains(&object)
    }

    /// Where in the journal the records after a checkpoint begin.
    pub(super) fn address(&self, id: CheckpointId) -> Option<Address> {
        let inner = self.inner.read();
        inner.checkpoints.get(&id).or_else(|| inner.hidden.get(&id)).map(|(_, address)| *address)
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
