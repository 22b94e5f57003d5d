//! Which records count: of a key, the first after each checkpoint that is kept. The others nobody
//! looks up, and what is put together leaves them out. With any other record of an inode goes that
//! of its attributes from the same epoch: it tells whose the record is. And of an inode that a
//! record speaks of, and of the directories above, it stays where it was seen last.
//!
//! A record that is taken back uncovers the next, and a checkpoint whose deletion does not come to
//! the disk is there again. So only what lies before a place is put together up to which everything
//! is on the disk, objects and deletions too.

use std::collections::{HashMap, HashSet};

use super::merge::Merged;
use super::{Listed, PASSED_MAX, Struck, Walked, keys};
use crate::store::error::{StoreError, StoreResult};
use crate::store::ids::{CheckpointId, Epoch, ObjectId, Slot};
use crate::store::journal::{Address, codec};
use crate::store::record::{Key, Undo};

/// What is needed, and up to where it may be looked at.
pub struct Needs<'a> {
    /// The checkpoints that are kept, hidden ones too, oldest first.
    pub kept: &'a [CheckpointId],
    /// Whether the object is gone. As long as it is there its record stays: it leads to what is to
    /// be removed.
    pub is_gone: &'a dyn Fn(ObjectId) -> bool,
    /// Everything before this place of the journal is on the disk, with what it speaks of.
    pub upto: Address,
}

/// Some checkpoint reads the record of a key from this epoch, if the key's record before is of that
/// one.
pub fn is_read(kept: &[CheckpointId], before: Epoch, epoch: Epoch) -> bool {
    kept.get(kept.partition_point(|id| id.epoch() < before))
        .is_some_and(|id| id.epoch() < epoch)
}

impl Needs<'_> {
    /// How many of the runs, the oldest first, may be looked at, if enough of what these hold is
    /// not needed any more. `end` is where the last one's records end.
    pub fn due(&self, runs: &[Listed], end: Address) -> Option<usize> {
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

    /// Of so many epochs between these records can be needed.
    pub fn epochs(&self, first: Epoch, last: Epoch) -> u64 {
        let below = |epoch: Epoch| self.kept.partition_point(|id| id.epoch() < epoch) as u64;
        // One reads the records from its own epoch to that of the next one kept, and so does the
        // last before all.
        below(last).saturating_sub(below(first)) + 1
    }

    /// A reader of all records of the runs `of`, which come to it in the order of keys and epochs;
    /// `None`: `stop` says so. `later` are the runs behind these.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn reader(
        &self,
        (of, later): (&[Listed], &[Listed]),
        struck: &Struck,
        stop: &dyn Fn() -> bool,
    ) -> StoreResult<Option<Reader<'_>>> {
        let mut reader = Reader {
            needs: self,
            key: Vec::new(),
            before: Epoch(0),
            value: Vec::new(),
            with: Vec::new(),
            places: Places::default(),
        };
        let (mut with, mut places) = (Vec::new(), Places::default());
        let mut passed = 0_u32;
        let mut stops = || {
            passed = passed.wrapping_add(1);
            passed.is_multiple_of(PASSED_MAX) && stop()
        };
        let mut all = Merged::new(of, struck, &[])?;
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
        let mut all = Merged::new(later, struck, &[])?;
        while let Some((key, _, value)) = all.next()? {
            places.need(key, value)?;
            if stops() {
                return Ok(None);
            }
        }
        places.close();
        with.sort_unstable();
        with.dedup();
        Ok(Some(Reader {
            key: Vec::new(),
            value: Vec::new(),
            with,
            places,
            ..reader
        }))
    }
}

/// Where inodes were seen last, and of which that is needed: of those that a record speaks of, and
/// of the directories that these lead to.
#[derive(Default)]
pub struct Places {
    needed: HashSet<Slot>,
    /// The epoch of the last place, whether no undo record tells it, and the directory that it is
    /// in.
    last: HashMap<Slot, (Epoch, bool, Slot)>,
}

impl Places {
    /// Those that these checkpoints need, oldest first.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn needed(Walked(list): &Walked, kept: &[CheckpointId]) -> StoreResult<Places> {
        let (mut places, mut last) = (Places::default(), (Vec::new(), Epoch(0)));
        let mut all = Merged::new(&list.runs, &list.struck, &[])?;
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

    /// The directories above what is needed are needed too.
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

    /// It is where an inode was seen last that is needed.
    pub fn is_needed(&self, key: &[u8], epoch: Epoch) -> bool {
        let is_last = |slot: &Slot| {
            self.last.get(slot).is_some_and(|(last, is_place, _)| {
                (*last, *is_place) == (epoch, keys::is_place(key))
            })
        };
        keys::placed_slot(key).is_some_and(|slot| self.needed.contains(&slot) && is_last(&slot))
    }
}

/// See [`Needs::reader`].
pub struct Reader<'a> {
    pub needs: &'a Needs<'a>,
    key: Vec<u8>,
    before: Epoch,
    /// What the last record of the key said that is needed.
    value: Vec<u8>,
    /// Inodes of which an epoch has a record that is needed.
    with: Vec<(Slot, Epoch)>,
    places: Places,
}

impl Reader<'_> {
    /// Whether the next record is needed.
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
        // A home's record that is needed may say the same as the last.
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
