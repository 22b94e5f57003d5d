//! Content hashes of captured versions, as recorded by the sealer (`Hashes` in the journal): the
//! hashed epochs, and versions with equal content.
//!
//! The index has the records that it has indexed, memory has the later ones. The result is a hint:
//! an object may be gone, or, if a hash was forged, have other content. Callers that share two
//! objects must compare the bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::append::{Appender, fault};
use ckptfs_api::Epoch;
use ckptfs_store::Address;
use ckptfs_store::ids::ObjectId;
use ckptfs_store::record::{ObjectHash, Record};
use ckptfs_sys::lock::RwLock;
use ckptfs_sys::{self as sys, SysResult};

/// Maximum number of objects with the same content that a look-up returns.
const SAME_MAX: usize = 16;
/// Maximum number of objects whose existence a look-up checks.
const LOOKED_MAX: usize = 256;
/// Objects in one record of hashes. The journal's limit is some thousand.
const RECORD_OBJECTS_MAX: usize = 2048;

/// Records of hashes that the index may not contain yet.
#[derive(Debug, Default)]
pub(super) struct HashRecords {
    /// Their addresses, and whether each completes its epoch.
    seals: BTreeMap<Epoch, Vec<(Address, bool)>>,
    /// Their objects by hash, except those in the index.
    objects: HashMap<[u8; 32], Vec<(Address, ObjectId, u64)>>,
}

impl HashRecords {
    /// Adds the record of hashes at this address.
    pub(super) fn note(&mut self, epoch: Epoch, at: Address, objects: &[ObjectHash], whole: bool) {
        self.seals.entry(epoch).or_default().push((at, whole));
        for sealed in objects.iter().filter(|sealed| sealed.size > 0) {
            self.objects
                .entry(sealed.hash)
                .or_default()
                .push((at, sealed.object, sealed.size));
        }
    }
}

/// Content hashes of captured versions. See the module.
pub struct ContentHashes {
    journal: Arc<Appender>,
    /// A leaf lock.
    hashed: RwLock<HashRecords>,
}

impl ContentHashes {
    pub(super) fn new(journal: Arc<Appender>, hashed: HashRecords) -> ContentHashes {
        ContentHashes {
            journal,
            hashed: RwLock::new(hashed),
        }
    }

    /// Records the hashes of objects of a closed epoch. `whole` states that all of its objects are
    /// hashed now. On return this survives `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub fn add_hashes(&self, epoch: Epoch, objects: &[ObjectHash], whole: bool) -> SysResult<()> {
        let mut rest = objects;
        loop {
            let (part, after) = rest.split_at(rest.len().min(RECORD_OBJECTS_MAX));
            rest = after;
            self.add_record(epoch, part, whole && rest.is_empty())?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn add_record(&self, epoch: Epoch, objects: &[ObjectHash], whole: bool) -> SysResult<()> {
        let at = self.journal.write(&[Record::Hashes {
            epoch,
            objects: objects.to_vec(),
            whole,
        }])?;
        sys::awake(|| {
            let mut hashed = self.hashed.write();
            at.into_iter()
                .for_each(|at| hashed.note(epoch, at, objects, whole));
        });
        Ok(())
    }

    /// Returns the recorded hashes of an epoch's objects, and whether all are recorded.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn sealed(&self, epoch: Epoch) -> SysResult<(Vec<ObjectHash>, bool)> {
        let store = self.journal.store();
        let mut places = store.index.catalogue().seals(epoch).map_err(fault)?;
        for place in self.hashed.read().seals.get(&epoch).into_iter().flatten() {
            if !places.contains(place) {
                places.push(*place);
            }
        }
        let mut found = Vec::new();
        for (at, _) in &places {
            // It may just have been omitted from the journal, with all its objects.
            if let Some(Record::Hashes { objects, .. }) =
                store.journal.read_if_needed(*at).map_err(fault)?
            {
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
        if self
            .hashed
            .read()
            .seals
            .get(&epoch)
            .is_some_and(|seals| seals.iter().any(|(_, whole)| *whole))
        {
            return Ok(true);
        }
        Ok(self
            .journal
            .store()
            .index
            .catalogue()
            .seals(epoch)
            .map_err(fault)?
            .iter()
            .any(|(_, whole)| *whole))
    }

    /// Returns other existing objects that may have the same content as this one, sorted, so oldest
    /// first.
    ///
    /// # Errors
    /// EIO if the index cannot be read.
    pub fn same_content(&self, sealed: &ObjectHash) -> SysResult<Vec<ObjectId>> {
        let store = self.journal.store();
        let (mut objects, mut looked) = (Vec::new(), 0);
        let mut take = |object: ObjectId, size: u64| {
            let is_there = || matches!(store.layers.stat(object), Ok(Some(_)));
            if size == sealed.size && object != sealed.object && is_there() {
                objects.push(object);
            }
            looked += 1;
            objects.len() < SAME_MAX && looked < LOOKED_MAX
        };
        let later = self
            .hashed
            .read()
            .objects
            .get(&sealed.hash)
            .cloned()
            .unwrap_or_default();
        if later
            .into_iter()
            .all(|(_, object, size)| take(object, size))
        {
            store
                .index
                .each_content(&sealed.hash, take)
                .map_err(fault)?;
        }
        objects.sort_unstable();
        objects.dedup();
        Ok(objects)
    }

    /// Removes the records up to this address, which are in the index now.
    pub(super) fn indexed(&self, upto: Address) {
        self.hashed.write().objects.retain(|_, known| {
            known.retain(|(at, _, _)| *at > upto);
            !known.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::history::timeline::Timeline;
    use ckptfs_store::Store;
    use ckptfs_store::ids::{ObjectOrigin, Slot};

    /// An unmount, a deep verification and a search for equal content record all hashes of an
    /// epoch. More hashes than one record holds made the append fail, and nothing was recorded.
    #[test]
    fn hashes_are_recorded_however_many_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(File::open(dir.path()).unwrap(), true).unwrap();
        let (timeline, _) = Timeline::open(Arc::new(store)).unwrap();
        let hashed = |epoch: Epoch, count: u64| -> Vec<ObjectHash> {
            let object = |number| ObjectHash {
                object: ObjectId {
                    epoch,
                    slot: Slot(number),
                    serial: 0,
                    origin: ObjectOrigin::Cloned,
                },
                size: 1,
                hash: [1; 32],
            };
            (0..count).map(object).collect()
        };
        for (epoch, count) in [(1, 10_000), (2, 0), (3, RECORD_OBJECTS_MAX as u64)] {
            let (epoch, contents) = (Epoch(epoch), &timeline.contents);
            let all = hashed(epoch, count);
            contents.add_hashes(epoch, &all, false).unwrap();
            assert!(!contents.is_hashed(epoch).unwrap());
            contents.add_hashes(epoch, &all, true).unwrap();
            assert!(contents.is_hashed(epoch).unwrap());
            let (mut known, whole) = contents.sealed(epoch).unwrap();
            known.sort_by_key(|sealed| sealed.object.slot);
            known.dedup();
            assert_eq!((known.len() as u64, whole), (count, true));
        }
    }
}
