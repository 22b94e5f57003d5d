//! Batches of journal records that are applied to the index.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::keys;
use crate::error::StoreResult;
use crate::ids::Slot;
use crate::journal::{Address, codec};
use crate::lineage::Lineage;
use crate::record::{
    CheckpointState, Dropped, Key, ObjectHash, Place, Record, Undo, is_tag, range_of,
};
use ckptfs_api::{Actor, CheckpointId, Epoch};

/// The change that a batch makes to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyChange {
    /// Sets the value unless the key has one: the first record of a key in an epoch wins. Only in
    /// runs.
    Keep(Vec<u8>),
    /// Sets the value.
    Put(Vec<u8>),
    /// Removes the key.
    Remove,
}

/// The changes to a checkpoint, including its creation if its record is in the batch.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckpointChange {
    pub made: Option<(CheckpointState, Address)>,
    pub tags: Option<Vec<String>>,
    pub deleted: bool,
    pub pinned: Option<Option<String>>,
    pub hidden: Option<bool>,
}

impl CheckpointChange {
    /// Applies the changes to a checkpoint.
    pub fn change(&self, kept: &mut CheckpointState) {
        if let Some(tags) = &self.tags {
            kept.checkpoint.tags = tags.iter().filter(|tag| is_tag(tag)).cloned().collect();
        }
        if let Some(pinned) = &self.pinned {
            kept.pinned.clone_from(pinned);
        }
        kept.hidden = self.hidden.unwrap_or(kept.hidden);
    }
}

/// Consecutive journal records that are applied to the index at once. Memory grows with the number
/// of distinct keys.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) changes: BTreeMap<Vec<u8>, KeyChange>,
    /// Entries for a run, by key without epoch, and epoch: undo records, places, and objects by
    /// content.
    pub(super) undo: BTreeMap<(Vec<u8>, Epoch), KeyChange>,
    /// The open epoch after the last record.
    open: Epoch,
    pub(super) checkpoints: BTreeMap<CheckpointId, CheckpointChange>,
    /// Start and end of the last record.
    pub(super) applied: Option<(Address, Address)>,
    records: usize,
    /// The actor of the next record.
    by: Option<Actor>,
    /// Parents of checkpoints, where they differ from the preceding checkpoint.
    lineage: Lineage,
    /// The first and last checkpoint affected by each record of dropped versions.
    dropped: Vec<(CheckpointId, CheckpointId)>,
}

impl Batch {
    /// Creates an empty batch for a journal from its start.
    pub fn new() -> Batch {
        Batch::after(None)
    }

    /// Creates an empty batch for the records after that of a checkpoint.
    pub fn after(last: Option<CheckpointId>) -> Batch {
        Batch {
            open: last.map_or(Epoch(1), |last| last.epoch().next()),
            ..Batch::default()
        }
    }

    /// Creates a batch that removes data records whose `Void` was written when their epoch was
    /// closed. Does not advance the applied address.
    pub fn voids<'a>(records: impl IntoIterator<Item = &'a (Epoch, Slot)>) -> Batch {
        let mut batch = Batch::default();
        batch.strike(records);
        batch.records = batch.undo.len();
        batch
    }

    /// Removes data records whose `Void` follows later in the journal than the records added here.
    pub fn strike<'a>(&mut self, records: impl IntoIterator<Item = &'a (Epoch, Slot)>) {
        records
            .into_iter()
            .for_each(|(epoch, slot)| self.void(*epoch, *slot));
    }

    /// Creates a batch that removes hash records which the journal no longer contains.
    pub fn forget_hashes(of: &[(Epoch, Address)]) -> Batch {
        Batch::removing(
            of.iter()
                .map(|(epoch, at)| keys::objects_key(keys::SEAL, *epoch, *at)),
        )
    }

    /// Creates a batch that removes these keys. Does not advance the applied address.
    pub(super) fn removing(keys: impl Iterator<Item = Vec<u8>>) -> Batch {
        let changes: BTreeMap<_, _> = keys.map(|key| (key, KeyChange::Remove)).collect();
        Batch {
            records: changes.len(),
            changes,
            ..Batch::default()
        }
    }

    /// Takes the records added so far; the emptied batch accepts the next ones.
    pub(super) fn take(&mut self) -> Batch {
        let next = Batch {
            by: self.by.take(),
            open: self.open,
            ..Batch::default()
        };
        std::mem::replace(self, next)
    }

    /// Returns the values set for database keys, except those of checkpoints.
    pub(super) fn into_puts(self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        self.changes
            .into_iter()
            .filter_map(|(key, change)| match change {
                KeyChange::Keep(value) | KeyChange::Put(value) => Some((key, value)),
                KeyChange::Remove => None,
            })
    }

    /// Returns whether the batch has reached the size that is applied at once.
    pub(super) fn is_full(&self) -> bool {
        self.records.max(self.changes.len() + self.undo.len()) >= super::REBUILD_BATCH
    }

    /// Returns the number of records added.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Returns whether no record was added.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Adds the record whose frame starts at `at`. Records of all kinds must be added in journal
    /// order, each once and without gaps: the applied index claims to contain everything before the
    /// end of the last one. If the record has no encoding this fails and changes nothing.
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
                let made = Some((CheckpointState::new(checkpoint.clone(), by), at));
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

    /// Splits the batch into pieces of up to `keys_max` keys, to be applied in order. Only the last
    /// piece has undo records and advances the applied address. If some pieces are not applied,
    /// adding the same records again later leads to the same index.
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

    /// Returns the checkpoints created by the records and neither deleted nor hidden, in their
    /// final state.
    pub(crate) fn into_checkpoints(self) -> Vec<CheckpointState> {
        let alive = self
            .checkpoints
            .into_values()
            .filter(|change| !change.deleted);
        let whole = alive.filter_map(|mut change| {
            let (mut kept, _) = change.made.take()?;
            change.change(&mut kept);
            Some((kept.id, kept)).filter(|(_, kept)| !kept.hidden)
        });
        let kept: BTreeMap<CheckpointId, CheckpointState> = whole.collect();
        let ids: BTreeSet<CheckpointId> = kept.keys().copied().collect();
        let whole = |kept: CheckpointState| CheckpointState {
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
        self.changes.insert(key, KeyChange::Put(value));
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
        self.undo.insert((key, epoch), KeyChange::Remove);
    }

    /// Adds objects by content, except empty ones.
    fn add_contents(&mut self, objects: &[ObjectHash]) -> StoreResult<()> {
        for ObjectHash { object, size, hash } in objects.iter().filter(|hashed| hashed.size > 0) {
            let mut value = Vec::with_capacity(8);
            codec::encode_uint(*size, &mut value);
            let key = keys::content_key(hash, *object)?;
            self.undo.insert((key, object.epoch), KeyChange::Put(value));
        }
        Ok(())
    }

    /// Sets the current place of an inode. Its `Home` record of this epoch precedes it.
    fn add_place(&mut self, slot: Slot, place: &Place) -> StoreResult<()> {
        let mut value = Vec::with_capacity(64);
        codec::encode_place(place, &mut value)?;
        let key = (keys::place_key(slot), self.open);
        self.undo.insert(key, KeyChange::Put(value));
        Ok(())
    }

    fn add_undo(&mut self, epoch: Epoch, undo: &[Undo]) -> StoreResult<()> {
        for undo in undo {
            let mut value = Vec::with_capacity(64);
            codec::encode_before(undo, &mut value)?;
            match self.undo.entry((keys::undo_prefix(&undo.key()), epoch)) {
                Entry::Occupied(mut there) if *there.get() == KeyChange::Remove => {
                    drop(there.insert(KeyChange::Put(value)))
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(place) => drop(place.insert(KeyChange::Keep(value))),
            }
        }
        Ok(())
    }
}
