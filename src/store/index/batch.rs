//! Records on their way into the index.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::keys;
use crate::store::error::StoreResult;
use crate::store::ids::{CheckpointId, Epoch, Slot};
use crate::store::journal::{Address, codec};
use crate::store::lineage::Lineage;
use crate::store::record::{
    Actor, Dropped, Kept, Key, ObjectHash, Place, Record, Undo, is_tag, range_of,
};

/// What happens to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It gets this value unless it has one: the first record of a key in an epoch wins. Only in
    /// runs.
    Keep(Vec<u8>),
    /// It gets this value.
    Put(Vec<u8>),
    /// It goes.
    Remove,
}

/// What happens to a checkpoint, beginning with its record if that is in the batch.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckpointChange {
    pub made: Option<(Kept, Address)>,
    pub tags: Option<Vec<String>>,
    pub deleted: bool,
    pub pinned: Option<Option<String>>,
    pub hidden: Option<bool>,
}

impl CheckpointChange {
    /// Makes a checkpoint what it is after the change.
    pub fn change(&self, kept: &mut Kept) {
        if let Some(tags) = &self.tags {
            kept.checkpoint.tags = tags.iter().filter(|tag| is_tag(tag)).cloned().collect();
        }
        if let Some(pinned) = &self.pinned {
            kept.pinned.clone_from(pinned);
        }
        kept.hidden = self.hidden.unwrap_or(kept.hidden);
    }
}

/// Records of the journal, in its order and without a gap, to be applied to the index at once.
/// Memory grows with the number of distinct keys.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) changes: BTreeMap<Vec<u8>, Change>,
    /// What goes into a run, by its key without the epoch, and that: undo records, places, objects
    /// by what they hold.
    pub(super) undo: BTreeMap<(Vec<u8>, Epoch), Change>,
    /// The open epoch, as far as it was told.
    open: Epoch,
    pub(super) checkpoints: BTreeMap<CheckpointId, CheckpointChange>,
    /// Where the last record begins and ends.
    pub(super) applied: Option<(Address, Address)>,
    records: usize,
    /// Who asked for what the next record says.
    by: Option<Actor>,
    /// Where checkpoints come from, if that is not the one before.
    lineage: Lineage,
    /// The first and the last checkpoint of each record of dropped versions.
    dropped: Vec<(CheckpointId, CheckpointId)>,
}

impl Batch {
    /// An empty batch, of a journal from its beginning.
    pub fn new() -> Batch {
        Batch::after(None)
    }

    /// An empty batch of what comes after the record of a checkpoint.
    pub fn after(last: Option<CheckpointId>) -> Batch {
        Batch {
            open: last.map_or(Epoch(1), |last| last.epoch().next()),
            ..Batch::default()
        }
    }

    /// Takes data records out whose `Void` came when their epoch was closed. Says nothing of how
    /// far the journal is applied.
    pub fn voids<'a>(records: impl IntoIterator<Item = &'a (Epoch, Slot)>) -> Batch {
        let mut batch = Batch::default();
        batch.strike(records);
        batch.records = batch.undo.len();
        batch
    }

    /// Takes out data records whose `Void` comes later in the journal than what is added here.
    pub fn strike<'a>(&mut self, records: impl IntoIterator<Item = &'a (Epoch, Slot)>) {
        records
            .into_iter()
            .for_each(|(epoch, slot)| self.void(*epoch, *slot));
    }

    /// Takes out records of hashes that the journal has no more.
    pub fn forget_hashes(of: &[(Epoch, Address)]) -> Batch {
        Batch::removing(
            of.iter()
                .map(|(epoch, at)| keys::objects_key(keys::SEAL, *epoch, *at)),
        )
    }

    /// Takes these keys out. Says nothing of how far the journal is applied.
    pub(super) fn removing(keys: impl Iterator<Item = Vec<u8>>) -> Batch {
        let changes: BTreeMap<_, _> = keys.map(|key| (key, Change::Remove)).collect();
        Batch {
            records: changes.len(),
            changes,
            ..Batch::default()
        }
    }

    /// Takes what was added so far; the next records can be added to what is left.
    pub(super) fn take(&mut self) -> Batch {
        let next = Batch {
            by: self.by.take(),
            open: self.open,
            ..Batch::default()
        };
        std::mem::replace(self, next)
    }

    /// What keys of the database get, without the checkpoints.
    pub(super) fn into_puts(self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        self.changes
            .into_iter()
            .filter_map(|(key, change)| match change {
                Change::Keep(value) | Change::Put(value) => Some((key, value)),
                Change::Remove => None,
            })
    }

    /// It is as large as one should be that is applied at once.
    pub(super) fn is_full(&self) -> bool {
        self.records.max(self.changes.len() + self.undo.len()) >= super::REBUILD_BATCH
    }

    /// Number of records that were added.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Nothing was added.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Adds the record whose frame begins at `at`. Records come in the order of the journal, each
    /// once, none left out, whatever kind they are: the index then says that it holds everything
    /// before the end of the last. Fails, and changes nothing, if the record has no encoding.
    pub fn add(&mut self, at: Address, record: &Record) -> StoreResult<()> {
        let end = at.after(record)?;
        self.note(at, record)?;
        self.applied = Some((at, end));
        self.records += 1;
        Ok(())
    }

    fn note(&mut self, at: Address, record: &Record) -> StoreResult<()> {
        let by = self.by.take();
        match record {
            Record::Undo { epoch, undo } => {
                self.open = *epoch;
                self.add_undo(*epoch, undo)?;
            }
            Record::Void { epoch, slot } => self.void(*epoch, *slot),
            Record::Moved { places } => places
                .iter()
                .try_for_each(|(slot, place)| self.add_place(*slot, place))?,
            Record::Checkpoint(checkpoint) => {
                self.open = checkpoint.id.epoch().next();
                let made = Some((Kept::new(checkpoint.clone(), by), at));
                let change = CheckpointChange {
                    made,
                    ..Default::default()
                };
                self.checkpoints.insert(checkpoint.id, change);
            }
            Record::Tags { id, tags } => self.change(*id).tags = Some(tags.clone()),
            Record::Deleted { id } => self.change(*id).deleted = true,
            Record::Pinned { id, reason } => self.change(*id).pinned = Some(reason.clone()),
            Record::Hidden { id, hidden } => self.change(*id).hidden = Some(*hidden),
            Record::RestoreBegin {
                target,
                guard,
                paths,
            } => {
                if let Some(child) = self.lineage.restored(*target, *guard, paths) {
                    self.put(
                        keys::key(keys::LINEAGE, [child.0]),
                        keys::value(&[target.0]),
                    );
                }
            }
            Record::Operation(operation) => {
                self.put_operation(at, operation.number, operation.undoes);
            }
            Record::By { actor, .. } => self.by = Some(actor.clone()),
            Record::Hashes {
                epoch,
                whole,
                objects,
            } => {
                let key = keys::objects_key(keys::SEAL, *epoch, at);
                self.put(key, vec![u8::from(*whole)]);
                self.add_contents(objects)?;
            }
            Record::Dropped { epoch, objects, .. } => self.put_dropped(at, *epoch, objects),
            Record::Mounted { at_ns, stopped_ns } => {
                if let Some(from_ns) = stopped_ns {
                    self.put_absence(*from_ns, *at_ns, false);
                }
            }
            Record::Told { from_ns, to_ns } => self.put_absence(*from_ns, *to_ns, true),
            Record::Replacing { .. }
            | Record::RestoreEnd
            | Record::RestoreOnly { .. }
            | Record::Unmounted { .. }
            | Record::Comparing(_)
            | Record::Touched { .. }
            | Record::OpenAt { .. } => {}
        }
        Ok(())
    }

    /// The same changes in pieces of at most `keys_max` keys, to be applied one after the other:
    /// only the last has undo records, and says how far the journal is applied. If not all are
    /// applied, the same records must be added again later, which leads to the same index.
    pub fn pieces(mut self, keys_max: usize) -> Vec<Batch> {
        let mut pieces = Vec::new();
        while self.changes.len() > keys_max {
            let Some(from) = self.changes.keys().nth(keys_max).cloned() else {
                break;
            };
            let rest = self.changes.split_off(&from);
            let changes = std::mem::replace(&mut self.changes, rest);
            pieces.push(Batch {
                records: changes.len(),
                changes,
                ..Batch::default()
            });
        }
        pieces.push(self);
        pieces
    }

    /// The checkpoints that the records made and neither deleted nor hid, as they are at the end.
    pub(in crate::store) fn into_checkpoints(self) -> Vec<Kept> {
        let alive = self
            .checkpoints
            .into_values()
            .filter(|change| !change.deleted);
        let whole = alive.filter_map(|mut change| {
            let (mut kept, _) = change.made.take()?;
            change.change(&mut kept);
            Some((kept.id, kept)).filter(|(_, kept)| !kept.hidden)
        });
        let kept: BTreeMap<CheckpointId, Kept> = whole.collect();
        let ids: BTreeSet<CheckpointId> = kept.keys().copied().collect();
        let whole = |kept: Kept| Kept {
            parent: self
                .lineage
                .parent(kept.id, |id| ids.range(..=id).next_back().copied()),
            has_dropped: self
                .dropped
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&kept.id)),
            ..kept
        };
        kept.into_values().map(whole).collect()
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Change::Put(value));
    }

    fn put_operation(&mut self, at: Address, number: u64, undoes: Option<u64>) {
        let value = [keys::in_value(at), undoes.unwrap_or(0)];
        let key = keys::key(keys::OPERATION, [number]);
        self.put(key, keys::value(&value));
    }

    fn put_dropped(&mut self, at: Address, epoch: Epoch, objects: &[Dropped]) {
        let (first, last) = range_of(objects);
        self.dropped.push((first, last));
        let key = keys::objects_key(keys::DROPPED, epoch, at);
        self.put(key, keys::value(&[first.0, last.0]));
    }

    fn put_absence(&mut self, from_ns: i64, to_ns: i64, told: bool) {
        self.put(keys::absence_key(to_ns), keys::absence_value(from_ns, told));
    }

    fn change(&mut self, id: CheckpointId) -> &mut CheckpointChange {
        self.checkpoints.entry(id).or_default()
    }

    fn void(&mut self, epoch: Epoch, slot: Slot) {
        let key = keys::undo_prefix(&Key::Data(slot));
        self.undo.insert((key, epoch), Change::Remove);
    }

    /// Objects by what they hold. An empty one is not worth it.
    fn add_contents(&mut self, objects: &[ObjectHash]) -> StoreResult<()> {
        for ObjectHash { object, size, hash } in objects.iter().filter(|hashed| hashed.size > 0) {
            let mut value = Vec::with_capacity(8);
            codec::encode_uint(*size, &mut value);
            let key = keys::content_key(hash, *object)?;
            self.undo.insert((key, object.epoch), Change::Put(value));
        }
        Ok(())
    }

    /// Where an inode is now. Its home's record of this epoch came before.
    fn add_place(&mut self, slot: Slot, place: &Place) -> StoreResult<()> {
        let mut value = Vec::with_capacity(64);
        codec::encode_place(place, &mut value)?;
        let key = (keys::place_key(slot), self.open);
        self.undo.insert(key, Change::Put(value));
        Ok(())
    }

    fn add_undo(&mut self, epoch: Epoch, undo: &[Undo]) -> StoreResult<()> {
        for undo in undo {
            let mut value = Vec::with_capacity(64);
            codec::encode_before(undo, &mut value)?;
            match self.undo.entry((keys::undo_prefix(&undo.key()), epoch)) {
                Entry::Occupied(mut there) if *there.get() == Change::Remove => {
                    drop(there.insert(Change::Put(value)))
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(place) => drop(place.insert(Change::Keep(value))),
            }
        }
        Ok(())
    }
}
