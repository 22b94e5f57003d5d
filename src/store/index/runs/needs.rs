//! Selection of needed records: of each key, the first after each kept checkpoint. No look-up reads
//! the others, and compaction drops them. Each needed record of an inode keeps the attribute record
//! of its epoch, which distinguishes the inode from a later one with its number. Inodes in needed
//! records, and the directories above them, keep their last place.
//!
//! A voided record exposes the next one, and a checkpoint whose deletion does not reach the disk
//! reappears. Compaction is therefore limited to records before an address up to which everything
//! is on disk, including objects and deletions.

use std::collections::{HashMap, HashSet};

use super::merge::MergeIter;
use super::{ListedRun, PASSED_MAX, RunSnapshot, VoidRecords, keys};
use crate::error::{StoreError, StoreResult};
use crate::ids::{ObjectId, Slot};
use crate::journal::{Address, codec};
use crate::record::{Key, Undo};
use ckptfs_api::{CheckpointId, Epoch};

/// The needed records, and the limit of compaction.
pub struct RetentionNeeds<'a> {
    /// The kept checkpoints, including hidden ones, oldest first.
    pub kept: &'a [CheckpointId],
    /// Returns whether the object was removed. The record of an existing object stays, because it
    /// leads to what a removal must delete.
    pub is_gone: &'a dyn Fn(ObjectId) -> bool,
    /// Everything before this journal address is on disk, including the objects of its records.
    pub upto: Address,
}

/// Returns whether a checkpoint reads the record of a key from `epoch`, if the key's preceding
/// record is from `before`.
pub fn is_read(kept: &[CheckpointId], before: Epoch, epoch: Epoch) -> bool {
    kept.get(kept.partition_point(|id| id.epoch() < before))
        .is_some_and(|id| id.epoch() < epoch)
}

impl RetentionNeeds<'_> {
    /// Returns how many runs, oldest first, can be compacted, if enough of their epochs are no
    /// longer needed. `end` is the end of the last run's records.
    pub fn due(&self, runs: &[ListedRun], end: Address) -> Option<usize> {
        let ends = runs.iter().skip(1).map(|listed| listed.from).chain([end]);
        let count = ends.take_while(|end| *end <= self.upto).count();
        let runs = || runs.iter().take(count).map(|listed| &listed.run);
        let held = runs().map(|run| run.epochs).fold(0, u64::saturating_add);
        let needed = self.epochs(
            runs().map(|run| run.first).min()?,
            runs().map(|run| run.last).max()?,
        );
        (held.saturating_sub(needed) > held / 20).then_some(count)
    }

    /// Returns how many epochs between these can be needed.
    pub fn epochs(&self, first: Epoch, last: Epoch) -> u64 {
        let below = |epoch: Epoch| self.kept.partition_point(|id| id.epoch() < epoch) as u64;
        // Each kept checkpoint reads the records from its epoch to that of the next one, as does
        // the last before the range.
        below(last).saturating_sub(below(first)) + 1
    }

    /// A reader of all records of the runs `of`, which come to it in the order of keys and epochs;
    /// `None`: `stop` says so. `later` are the runs behind these.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn reader(
        &self,
        (of, later): (&[ListedRun], &[ListedRun]),
        struck: &VoidRecords,
        stop: &dyn Fn() -> bool,
    ) -> StoreResult<Option<NeededFilter<'_>>> {
        let mut reader = NeededFilter {
            needs: self,
            key: Vec::new(),
            before: Epoch(0),
            value: Vec::new(),
            with: Vec::new(),
            places: LastPlaces::default(),
        };
        let (mut with, mut places) = (Vec::new(), LastPlaces::default());
        let mut passed = 0_u32;
        let mut stops = || {
            passed = passed.wrapping_add(1);
            passed.is_multiple_of(PASSED_MAX) && stop()
        };
        let mut all = MergeIter::new(of, struck, &[])?;
        while let Some((key, epoch, value)) = all.next()? {
            places.see(key, epoch, value)?;
            if !keys::is_content(key) && reader.needs(key, epoch, value)? {
                places.need(key, value)?;
                with.extend(
                    keys::owner(key)
                        .map(|slot| (slot, epoch))
                        .filter(|last| !keys::is_attr(key) && with.last() != Some(last)),
                );
            }
            if stops() {
                return Ok(None);
            }
        }
        let mut all = MergeIter::new(later, struck, &[])?;
        while let Some((key, _, value)) = all.next()? {
            places.need(key, value)?;
            if stops() {
                return Ok(None);
            }
        }
        places.close();
        with.sort_unstable();
        with.dedup();
        Ok(Some(NeededFilter {
            key: Vec::new(),
            value: Vec::new(),
            with,
            places,
            ..reader
        }))
    }
}

/// The last places of inodes, and the inodes whose places are needed: those in needed records, and
/// the directories above them.
#[derive(Default)]
pub struct LastPlaces {
    needed: HashSet<Slot>,
    /// Epoch of the last place, whether it is outside undo records, and its directory.
    last: HashMap<Slot, (Epoch, bool, Slot)>,
}

impl LastPlaces {
    /// Returns the places that these checkpoints (oldest first) need.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn needed(
        RunSnapshot(list): &RunSnapshot,
        kept: &[CheckpointId],
    ) -> StoreResult<LastPlaces> {
        let (mut places, mut last) = (LastPlaces::default(), (Vec::new(), Epoch(0)));
        let mut all = MergeIter::new(&list.runs, &list.struck, &[])?;
        while let Some((key, epoch, value)) = all.next()? {
            places.see(key, epoch, value)?;
            let before = if last.0 == key { last.1 } else { Epoch(0) };
            if is_read(kept, before, epoch) {
                places.need(key, value)?;
            }
            last = (key.to_vec(), epoch);
        }
        places.close();
        Ok(places)
    }

    fn see(&mut self, key: &[u8], epoch: Epoch, value: &[u8]) -> StoreResult<()> {
        let Some(slot) = keys::placed_slot(key) else {
            return Ok(());
        };
        let place = codec::decode_place(value).map_err(|_| StoreError::IndexDamaged)?;
        let found = (epoch, keys::is_place(key), place.parent);
        let last = self.last.entry(slot).or_insert(found);
        *last = found.max(*last);
        Ok(())
    }

    fn need(&mut self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        if keys::is_undo(key) {
            self.needed.extend(keys::owner(key));
            self.needed
                .extend(keys::entry_child(key, value).map_err(|_| StoreError::IndexDamaged)?);
        }
        Ok(())
    }

    /// Adds the directories above needed inodes.
    fn close(&mut self) {
        let mut open: Vec<Slot> = self.needed.iter().copied().collect();
        while let Some(slot) = open.pop() {
            open.extend(
                self.last
                    .get(&slot)
                    .map(|(_, _, up)| *up)
                    .filter(|up| self.needed.insert(*up)),
            );
        }
    }

    /// Returns whether this is the last place of a needed inode.
    pub fn is_needed(&self, key: &[u8], epoch: Epoch) -> bool {
        let is_last = |slot: &Slot| {
            self.last.get(slot).is_some_and(|(last, is_place, _)| {
                (*last, *is_place) == (epoch, keys::is_place(key))
            })
        };
        keys::placed_slot(key).is_some_and(|slot| self.needed.contains(&slot) && is_last(&slot))
    }
}

/// See [`RetentionNeeds::reader`].
pub struct NeededFilter<'a> {
    pub needs: &'a RetentionNeeds<'a>,
    key: Vec<u8>,
    before: Epoch,
    /// Value of the key's last needed record, if it is a place.
    value: Vec<u8>,
    /// Inodes and epochs with a needed record.
    with: Vec<(Slot, Epoch)>,
    places: LastPlaces,
}

impl NeededFilter<'_> {
    /// Returns whether the next record is needed.
    ///
    /// Errors: `IndexDamaged`.
    pub fn needs(&mut self, key: &[u8], epoch: Epoch, value: &[u8]) -> StoreResult<bool> {
        if keys::is_content(key) {
            let object = keys::parse_content(key, epoch).ok_or(StoreError::IndexDamaged)?;
            return Ok(!(self.needs.is_gone)(object));
        }
        if self.key != key {
            (self.key, self.before) = (key.to_vec(), Epoch(0));
            self.value.clear();
        }
        let before = std::mem::replace(&mut self.before, epoch);
        // A needed home record may equal the last place.
        let is_read = keys::is_undo(key) && is_read(self.needs.kept, before, epoch);
        if is_read || (self.places.is_needed(key, epoch) && self.value != value) {
            self.value.clear();
            self.value
                .extend_from_slice(if keys::placed_slot(key).is_some() {
                    value
                } else {
                    &[]
                });
            return Ok(true);
        }
        if keys::is_attr(key) {
            return Ok(keys::owner(key)
                .is_some_and(|slot| self.with.binary_search(&(slot, epoch)).is_ok()));
        }
        let Some(slot) = keys::data_slot(key) else {
            return Ok(false);
        };
        match codec::decode_before(Key::Data(slot), value) {
            Ok(Undo::Data { before, .. }) => Ok(before
                .object
                .is_some_and(|object| !(self.needs.is_gone)(object))),
            _ => Err(StoreError::IndexDamaged),
        }
    }
}
