//! Look-ups in the runs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::filter::Probe;
use super::merge::MergeIter;
use super::run::{Run, RunCursor};
use super::{ListedRun, RunList, Runs, is_struck, keys};
use crate::error::{StoreError, StoreResult};
use crate::hash::Hash;
use crate::ids::{Name, ObjectId, Slot};
use crate::journal::codec;
use crate::record::{Key, Place, Undo};
use ckptfs_api::Epoch;

/// Entries of one name that are skipped before a seek to the next name.
const SKIPS_MAX: u32 = 16;

impl Runs {
    /// Returns a cursor for each run that passes `of` and may have the key or prefix, oldest first.
    fn asked<'a>(
        &'a self,
        list: &'a RunList,
        key: &[u8],
        of: impl Fn(&Run) -> bool + 'a,
    ) -> impl DoubleEndedIterator<Item = (&'a ListedRun, RunCursor<'a>)> {
        let probe = Probe::of(key);
        list.runs
            .iter()
            .filter(move |listed| of(&listed.run) && listed.run.may_have(probe))
            .map(|listed| (listed, RunCursor::new(&listed.run, Some(&self.cache))))
    }

    /// Returns the first record of a key from an epoch on.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn first_from(&self, key: &Key, first: Epoch) -> StoreResult<Option<(Epoch, Undo)>> {
        let (bytes, list) = (keys::undo_prefix(key), self.list());
        for (listed, mut cursor) in self.asked(&list, &bytes, |run| run.last >= first) {
            let mut found = cursor.seek(&bytes, first)?;
            while found && cursor.key == bytes {
                if !is_struck(&list.struck, listed, &cursor.key, cursor.epoch) {
                    let undo = codec::decode_before(key.clone(), cursor.value())
                        .map_err(|_| StoreError::IndexDamaged)?;
                    return Ok(Some((cursor.epoch, undo)));
                }
                found = cursor.next()?;
            }
        }
        Ok(None)
    }

    /// Returns the last recorded place of an inode. Within an epoch a place outside undo records is
    /// the later one.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn last_place(&self, slot: Slot) -> StoreResult<Option<Place>> {
        let Some((_, value)) = self.last_told(slot)? else {
            return Ok(None);
        };
        let place = codec::decode_place(&value)
            .ok()
            .filter(|place| place.parent != slot);
        place.map(Some).ok_or(StoreError::IndexDamaged)
    }

    /// As [`Runs::last_place`], encoded, and with its epoch.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn last_told(&self, slot: Slot) -> StoreResult<Option<(Epoch, Vec<u8>)>> {
        let told = [keys::place_key(slot), keys::undo_prefix(&Key::Home(slot))]
            .map(|key| (Probe::of(&key), key));
        for listed in self.list().runs.iter().rev() {
            let mut last: Option<(Epoch, Vec<u8>)> = None;
            for (_, key) in told.iter().filter(|(probe, _)| listed.run.may_have(*probe)) {
                let found = RunCursor::new(&listed.run, Some(&self.cache)).last_of(key)?;
                last = last
                    .into_iter()
                    .chain(found)
                    .reduce(|last, found| if found.0 > last.0 { found } else { last });
            }
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    /// Returns whether a place outside undo records exists for this epoch.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn has_place(&self, slot: Slot, epoch: Epoch) -> StoreResult<bool> {
        let (key, list) = (keys::place_key(slot), self.list());
        for (_, mut cursor) in self.asked(&list, &key, |run| run.covers(epoch)) {
            if cursor.seek(&key, epoch)? && cursor.key == key && cursor.epoch == epoch {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Calls `call` with objects whose hash has the same prefix, and their sizes, newest run first,
    /// until it returns `false`.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn each_content(
        &self,
        hash: &Hash,
        mut call: impl FnMut(ObjectId, u64) -> bool,
    ) -> StoreResult<()> {
        let (prefix, list) = (keys::content_prefix(hash), self.list());
        for (_, mut cursor) in self.asked(&list, &prefix, |_| true).rev() {
            let mut found = cursor.seek(&prefix, Epoch(0))?;
            while found && cursor.key.starts_with(&prefix) {
                let mut value = cursor.value();
                let object = keys::parse_content(&cursor.key, cursor.epoch)
                    .ok_or(StoreError::IndexDamaged)?;
                let size = codec::decode_uint(&mut value).map_err(|_| StoreError::IndexDamaged)?;
                if !call(object, size) {
                    return Ok(());
                }
                found = cursor.next()?;
            }
        }
        Ok(())
    }

    /// Returns, for each name in a directory, its first record from an epoch on, in name order.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn entries_from(
        &self,
        dir: Slot,
        first: Epoch,
    ) -> StoreResult<BTreeMap<Name, (Epoch, Undo)>> {
        let (prefix, list) = (keys::entries_prefix(dir), self.list());
        let mut all = BTreeMap::new();
        for (_, mut cursor) in self.asked(&list, &prefix, |run| run.last >= first) {
            let mut more = cursor.seek(&prefix, Epoch(0))?;
            // The key of the last name found.
            let mut done: Option<Vec<u8>> = None;
            let mut skips = 0;
            while more && cursor.key.starts_with(&prefix) {
                let again = done.as_deref() == Some(cursor.key.as_slice());
                if cursor.epoch >= first && !again {
                    let name = keys::entry_name(&cursor.key).ok_or(StoreError::IndexDamaged)?;
                    if let Entry::Vacant(place) = all.entry(name.clone()) {
                        let undo = codec::decode_before(Key::Entry(dir, name), cursor.value())
                            .map_err(|_| StoreError::IndexDamaged)?;
                        place.insert((cursor.epoch, undo));
                    }
                    done = Some(cursor.key.clone());
                    skips = 0;
                } else {
                    skips += 1;
                }
                more = if skips > SKIPS_MAX {
                    // Skips many epochs of one name with one seek.
                    skips = 0;
                    let key = cursor.key.clone();
                    cursor.seek(&key, if again { Epoch(u64::MAX) } else { first })?
                } else {
                    cursor.next()?
                };
            }
        }
        Ok(all)
    }
}

/// A list of runs to walk.
pub struct RunSnapshot(pub(super) Arc<RunList>);

impl RunSnapshot {
    /// Calls `call` for every valid record whose key has this prefix, in order of keys and epochs.
    ///
    /// Errors: `Io`, `IndexDamaged`, those of `call`.
    pub fn each_below(
        &self,
        prefix: &[u8],
        mut call: impl FnMut(&[u8], Epoch, &[u8]) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let mut merged = MergeIter::new(&self.0.runs, &self.0.struck, prefix)?;
        while let Some((key, epoch, value)) =
            merged.next()?.filter(|(key, _, _)| key.starts_with(prefix))
        {
            call(key, epoch, value)?;
        }
        Ok(())
    }
}

/// A walk over records in order of keys and epochs, in parallel with others.
pub struct RunWalk<'a> {
    merged: MergeIter<'a>,
    more: bool,
}

impl<'a> RunWalk<'a> {
    /// Starts at the first record.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn new(RunSnapshot(list): &'a RunSnapshot) -> StoreResult<RunWalk<'a>> {
        let mut merged = MergeIter::new(&list.runs, &list.struck, &[])?;
        let more = merged.next()?.is_some();
        Ok(RunWalk { merged, more })
    }

    /// Returns key and epoch of the current record; `None` at the end.
    pub fn at(&self) -> Option<(&[u8], Epoch)> {
        let (key, epoch, _) = self.merged.last();
        self.more.then_some((key, epoch))
    }

    /// Returns the value of the current record if it has this key and epoch.
    pub fn says(&self, key: &[u8], epoch: Epoch) -> Option<&[u8]> {
        let (_, _, value) = self.merged.last();
        (self.at() == Some((key, epoch))).then_some(value)
    }

    /// Moves to the next record if the current one has this key and epoch.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn pass(&mut self, key: &[u8], epoch: Epoch) -> StoreResult<()> {
        if self.at() == Some((key, epoch)) {
            self.more = self.merged.next()?.is_some();
        }
        Ok(())
    }
}
