//! What captured versions hold, as the sealer's hashes say (`Hashes` in the journal): which epochs
//! are hashed, and which versions hold the same.
//!
//! The index has the records that it has taken over, memory the later ones. What they say is a
//! hint: an object may be gone, or, for whoever can forge a hash, hold something else. Whoever
//! shares two of them has the bytes compared.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::append::{Appender, fault};
use crate::store::Address;
use crate::store::ids::{Epoch, ObjectId};
use crate::store::record::{ObjectHash, Record};
use crate::sys::lock::RwLock;
use crate::sys::{self, SysResult};

/// Objects with the same content that a look-up gives at most, ...
const SAME_MAX: usize = 16;
/// ... and of how many it looks whether they are there.
const LOOKED_MAX: usize = 256;
/// Objects in one record of hashes, of which the journal takes some thousand.
const RECORD_OBJECTS_MAX: usize = 2048;

/// Records of hashes that the index may not have yet.
#[derive(Debug, Default)]
pub(super) struct Hashed {
    /// Where they are, and whether each makes its epoch whole.
    seals: BTreeMap<Epoch, Vec<(Address, bool)>>,
    /// What is in them, as far as the index does not have it.
    objects: HashMap<[u8; 32], Vec<(Address, ObjectId, u64)>>,
}

impl Hashed {
    /// A record of hashes is at this place.
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

/// What captured versions hold. See the module.
pub struct Contents {
    journal: Arc<Appender>,
    /// A leaf.
    hashed: RwLock<Hashed>,
}

impl Contents {
    pub(super) fn new(journal: Arc<Appender>, hashed: Hashed) -> Contents {
        Contents {
            journal,
            hashed: RwLock::new(hashed),
        }
    }

    /// Records what objects of a closed epoch held. `whole`: all that it has are recorded now. When
    /// it returns that survives `kill -9`.
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

    /// What is recorded of an epoch's objects, and whether that is all of them.
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
            // It may just have been left out, with all that it speaks of.
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

    /// Other objects that are there and may hold the same as this one, oldest first.
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

    /// The index has all records up to this one.
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
    use crate::store::Store;
    use crate::store::ids::{ObjectOrigin, Slot};

    /// An unmount, a deep check and a look for equal content record all that they hashed of an
    /// epoch: more than one record holds failed, and nothing was recorded.
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
