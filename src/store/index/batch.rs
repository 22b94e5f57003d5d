//! Records on their way into the index.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::keys;
use crate::store::error::{CodecError, StoreResult};
use crate::store::ids::{CheckpointId, Epoch, Slot};
use crate::store::journal::{Address, codec};
use crate::store::lineage::Lineage;
use crate::store::record::{Actor, Kept, Key, Place, Record, Undo, is_tag};

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
        let undo: BTreeMap<_, _> = records
            .into_iter()
            .map(|(epoch, slot)| {
                (
                    (keys::undo_prefix(&Key::Data(*slot)), *epoch),
                    Change::Remove,
                )
            })
            .collect();
        Batch {
            records: undo.len(),
            undo,
            ..Batch::default()
        }
    }

    /// Takes out records of hashes that the journal has no more. Says nothing of how far it is
    /// applied.
    pub fn forget_hashes(of: &[(Epoch, Address)]) -> Batch {
        let changes: BTreeMap<_, _> = of
            .iter()
            .map(|(epoch, at)| (keys::hashes_key(*epoch, *at), Change::Remove))
            .collect();
        Batch {
            records: changes.len(),
            changes,
            ..Batch::default()
        }
    }

    /// Takes these keys out. Says nothing of how far the journal is applied.
    pub(super) fn forget_keys(of: &[Vec<u8>]) -> Batch {
        let changes: BTreeMap<_, _> = of.iter().map(|key| (key.clone(), Change::Remove)).collect();
        Batch {
            records: changes.len(),
            changes,
            ..Batch::default()
        }
    }

    /// Takes out what was captured ahead of these keys. Says nothing of how far the journal is
    /// applied.
    pub fn forget_ahead(of: &[Key]) -> Batch {
        let changes: BTreeMap<_, _> = of
            .iter()
            .map(|key| (keys::ahead_key(key), Change::Remove))
            .collect();
        Batch {
            records: changes.len(),
            changes,
            ..Batch::default()
        }
    }

    /// Takes out data records whose `Void` comes later in the journal than what is added here.
    pub fn strike<'a>(&mut self, records: impl IntoIterator<Item = &'a (Epoch, Slot)>) {
        self.undo.extend(Batch::voids(records).undo);
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
        let by = self.by.take();
        match record {
            Record::Undo { epoch, undo } => {
                self.open = *epoch;
                self.add_undo(*epoch, undo)?;
            }
            Record::Void { epoch, slot } => {
                self.undo.insert(
                    (keys::undo_prefix(&Key::Data(*slot)), *epoch),
                    Change::Remove,
                );
            }
            Record::Moved { places } => {
                for (slot, place) in places {
                    self.add_place(*slot, place)?;
                }
            }
            Record::Checkpoint(checkpoint) => {
                self.open = checkpoint.id.epoch().next();
                let made = Some((Kept::new(checkpoint.clone(), by), at));
                self.checkpoints.insert(
                    checkpoint.id,
                    CheckpointChange {
                        made,
                        ..Default::default()
                    },
                );
            }
            Record::Tags { id, tags } => {
                self.checkpoints.entry(*id).or_default().tags = Some(tags.clone())
            }
            Record::Deleted { id } => self.checkpoints.entry(*id).or_default().deleted = true,
            Record::Pinned { id, reason } => {
                self.checkpoints.entry(*id).or_default().pinned = Some(reason.clone())
            }
            Record::Hidden { id, hidden } => {
                self.checkpoints.entry(*id).or_default().hidden = Some(*hidden)
            }
            Record::RestoreBegin {
                target,
                guard,
                paths,
            } => {
                if let Some(child) = self.lineage.restored(*target, *guard, paths) {
                    self.changes.insert(
                        keys::lineage_key(child),
                        Change::Put(target.0.to_le_bytes().to_vec()),
                    );
                }
            }
            Record::Operation(operation) => {
                let value = keys::operation_value(at, operation.undoes);
                self.changes
                    .insert(keys::operation_key(operation.number), Change::Put(value));
            }
            Record::By { actor, .. } => self.by = Some(actor.clone()),
            Record::Replacing { .. }
            | Record::RestoreEnd
            | Record::Unmounted { .. }
            | Record::Comparing(_) => {}
            Record::Touched { .. } | Record::OpenAt { .. } | Record::RestoreOnly { .. } => {}
            Record::Ahead { undo, upto, .. } => self.add_ahead(at, undo, *upto)?,
            Record::Hashes {
                epoch,
                whole,
                objects,
            } => {
                self.changes.insert(
                    keys::hashes_key(*epoch, at),
                    Change::Put(vec![u8::from(*whole)]),
                );
                for sealed in objects.iter().filter(|sealed| sealed.size > 0) {
                    let mut value = Vec::with_capacity(8);
                    codec::encode_uint(sealed.size, &mut value);
                    self.undo.insert(
                        (
                            keys::content_key(&sealed.hash, sealed.object),
                            sealed.object.epoch,
                        ),
                        Change::Put(value),
                    );
                }
            }
            Record::Dropped { epoch, objects, .. } => {
                let (first, last) = crate::store::record::range_of(objects);
                self.dropped.push((first, last));
                self.changes.insert(
                    keys::dropped_key(*epoch, at),
                    Change::Put(keys::dropped_value(first, last)),
                );
            }
            Record::Mounted { at_ns, stopped_ns } => {
                if let Some(stopped_ns) = stopped_ns {
                    self.changes.insert(
                        keys::absence_key(*at_ns),
                        Change::Put(keys::absence_value(*stopped_ns, false)),
                    );
                }
            }
            Record::Told { from_ns, to_ns } => {
                self.changes.insert(
                    keys::absence_key(*to_ns),
                    Change::Put(keys::absence_value(*from_ns, true)),
                );
            }
        }
        self.applied = Some((at, end));
        self.records += 1;
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

    /// What was taken ahead of a key last counts, and where an inode was then is where it was seen
    /// last.
    fn add_ahead(&mut self, at: Address, undo: &[Undo], upto: Epoch) -> StoreResult<()> {
        for (item, undo) in undo.iter().enumerate() {
            let item = u16::try_from(item).map_err(|_| CodecError::Limit)?;
            match undo {
                Undo::Home { slot, before } => self.add_place(*slot, before)?,
                other => drop(self.changes.insert(
                    keys::ahead_key(&other.key()),
                    Change::Put(keys::item_value(at, item)),
                )),
            }
        }
        self.changes.insert(
            keys::META_AHEAD.to_vec(),
            Change::Put(upto.0.to_le_bytes().to_vec()),
        );
        Ok(())
    }

    /// Where an inode is now. Its home's record of this epoch came before.
    fn add_place(&mut self, slot: Slot, place: &Place) -> StoreResult<()> {
        let mut value = Vec::with_capacity(64);
        codec::encode_place(place, &mut value)?;
        self.undo
            .insert((keys::place_key(slot), self.open), Change::Put(value));
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
