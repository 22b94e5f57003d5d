//! Which records count: of a key, the first after each checkpoint that is kept. The others nobody looks up, and what is put together leaves them out.
//! With any other record of an inode goes that of its attributes from the same epoch: it tells whose the record is.
//!
//! A record that is taken back uncovers the next, and a checkpoint whose deletion does not come to the disk is there again. So only what lies before a
//! place is put together up to which everything is on the disk, objects and deletions too.

use super::merge::Merged;
use super::{Listed, PASSED_MAX, Struck, keys};
use crate::store::error::{StoreError, StoreResult};
use crate::store::ids::{CheckpointId, Epoch, ObjectId, Slot};
use crate::store::journal::{Address, codec};
use crate::store::record::{Key, Undo};

/// What is needed, and up to where it may be looked at.
pub struct Needs<'a> {
    /// The checkpoints that are kept, hidden ones too, oldest first.
    pub kept: &'a [CheckpointId],
    /// Whether the object is gone. As long as it is there its record stays: it leads to what is to be removed.
    pub is_gone: &'a dyn Fn(ObjectId) -> bool,
    /// Everything before this place of the journal is on the disk, with what it speaks of.
    pub upto: Address,
}

/// Some checkpoint reads the record of a key from this epoch, if the key's record before is of that one.
pub fn is_read(kept: &[CheckpointId], before: Epoch, epoch: Epoch) -> bool {
    kept.get(kept.partition_point(|id| id.epoch() < before)).is_some_and(|id| id.epoch() < epoch)
}

impl Needs<'_> {
    /// How many of the runs, the oldest first, may be looked at, if enough of what these hold is not needed any more. `end` is where the last one's
    /// records end.
    pub fn due(&self, runs: &[Listed], end: Address) -> Option<usize> {
        let ends = runs.iter().skip(1).map(|listed| listed.from).chain([end]);
        let count = ends.take_while(|end| *end <= self.upto).count();
        let runs = || runs.iter().take(count).map(|listed| &listed.run);
        let held = runs().map(|run| run.epochs).fold(0, u64::saturating_add);
        let needed = self.epochs(runs().map(|run| run.first).min()?, runs().map(|run| run.last).max()?);
        (held.saturating_sub(needed) > held / 20).then_some(count)
    }

    /// Of so many epochs between these records can be needed.
    pub fn epochs(&self, first: Epoch, last: Epoch) -> u64 {
        let below = |epoch: Epoch| self.kept.partition_point(|id| id.epoch() < epoch) as u64;
        // One reads the records from its own epoch to that of the next one kept, and so does the last before all.
        below(last).saturating_sub(below(first)) + 1
    }

    /// A reader of all records of these runs, which come to it in the order of keys and epochs; `None`: `stop` says so.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn reader(&self, runs: &[Listed], struck: &Struck, stop: &dyn Fn() -> bool) -> StoreResult<Option<Reader<'_>>> {
        let mut reader = Reader { needs: self, key: Vec::new(), before: Epoch(0), with: Vec::new() };
        let (mut with, mut passed) = (Vec::new(), 0_u32);
        let mut others = Merged::new(runs, struck, &keys::AFTER_ATTRS)?;
        while let Some((key, epoch, value)) = others.next()? {
            if reader.needs(key, epoch, value)? {
                with.extend(keys::owner(key).map(|slot| (slot, epoch)).filter(|last| with.last() != Some(last)));
            }
            passed = passed.wrapping_add(1);
            if passed.is_multiple_of(PASSED_MAX) && stop() {
                return Ok(None);
            }
        }
        with.sort_unstable();
        with.dedup();
        Ok(Some(Reader { key: Vec::new(), with, ..reader }))
    }
}

/// See [`Needs::reader`].
pub struct Reader<'a> {
    needs: &'a Needs<'a>,
    key: Vec<u8>,
    before: Epoch,
    /// Inodes of which an epoch has a record that is needed.
    with: Vec<(Slot, Epoch)>,
}

impl Reader<'_> {
    /// Whether the next record is needed.
    ///
    /// Errors: `IndexDamaged`.
    pub fn needs(&mut self, key: &[u8], epoch: Epoch, value: &[u8]) -> StoreResult<bool> {
        if self.key != key {
            (self.key, self.before) = (key.to_vec(), Epoch(0));
        }
        let before = std::mem::replace(&mut self.before, epoch);
        if is_read(self.needs.kept, before, epoch) {
            return Ok(true);
        }
        if keys::is_attr(key) {
            return Ok(keys::owner(key).is_some_and(|slot| self.with.binary_search(&(slot, epoch)).is_ok()));
        }
        let Some(slot) = keys::data_slot(key) else { return Ok(false) };
        match codec::decode_before(Key::Data(slot), value) {
            Ok(Undo::Data { before, .. }) => Ok(before.object.is_some_and(|object| !(self.needs.is_gone)(object))),
            _ => Err(StoreError::IndexDamaged),
        }
    }
}
