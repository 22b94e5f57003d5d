//! Versions whose content was dropped by a tier. Checkpoints still show them with their attributes.
//!
//! The record precedes the removal: a missing version without a record is damage, and a recorded
//! version counts as dropped even if its content still exists. Records list objects, not paths; the
//! paths follow from the recorded places.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::append::{Appender, fault};
use super::losses::Losses;
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::ObjectId;
use ckptfs_store::record::{Dropped, Record, range_of};
use ckptfs_store::{Address, ExpiredItems};
use ckptfs_sys::lock::{Mutex, RwLock};
use ckptfs_sys::{Errno, SysResult};

/// Error of reading a dropped version: the file exists without its data.
pub const DROPPED: Errno = Errno::ENODATA;

/// Maximum number of versions in one record.
const OBJECTS_AT_ONCE: usize = 2048;
/// Maximum number of records cached in memory.
const LISTS_MAX: usize = 256;

/// A record of dropped versions.
#[derive(Debug, Default)]
pub struct DroppedList {
    /// Patterns of the tier.
    pub paths: Vec<String>,
    /// Dropped versions.
    pub objects: HashMap<ObjectId, Dropped>,
}

/// Merged ranges of checkpoints: the last checkpoint of each range by the first.
#[derive(Debug, Default)]
struct Spans(BTreeMap<CheckpointId, CheckpointId>);

impl FromIterator<(CheckpointId, CheckpointId)> for Spans {
    fn from_iter<T: IntoIterator<Item = (CheckpointId, CheckpointId)>>(ranges: T) -> Spans {
        let mut spans = Spans::default();
        ranges.into_iter().for_each(|range| spans.add(range));
        spans
    }
}

impl Spans {
    fn add(&mut self, (mut first, mut last): (CheckpointId, CheckpointId)) {
        while let Some((begin, end)) = self
            .0
            .range(..=last)
            .next_back()
            .map(|(begin, end)| (*begin, *end))
            .filter(|(_, end)| *end >= first)
        {
            self.0.remove(&begin);
            (first, last) = (first.min(begin), last.max(end));
        }
        if first <= last {
            self.0.insert(first, last);
        }
    }

    fn have(&self, id: CheckpointId) -> bool {
        self.0
            .range(..=id)
            .next_back()
            .is_some_and(|(_, last)| *last >= id)
    }
}

/// Addresses of the records of dropped versions, and the checkpoints that show these versions.
#[derive(Debug, Default)]
pub(super) struct DroppedRecords {
    /// By layer and address of the record: the first and the last checkpoint that show one of its
    /// versions.
    records: BTreeMap<(Epoch, Address), (CheckpointId, CheckpointId)>,
    spans: Spans,
}

impl DroppedRecords {
    /// Adds the record of these versions at `at`.
    pub(super) fn note(&mut self, epoch: Epoch, at: Address, objects: &[Dropped]) {
        self.put(epoch, at, range_of(objects));
    }

    pub(super) fn put(&mut self, epoch: Epoch, at: Address, range: (CheckpointId, CheckpointId)) {
        self.records.insert((epoch, at), range);
        self.spans.add(range);
    }
}

/// Versions dropped by tiers. See the module.
pub struct DroppedVersions {
    journal: Arc<Appender>,
    losses: Arc<Losses>,
    /// A leaf lock.
    places: RwLock<DroppedRecords>,
    /// Cached records. A leaf lock.
    lists: Mutex<HashMap<Address, Arc<DroppedList>>>,
}

impl DroppedVersions {
    pub(super) fn new(
        journal: Arc<Appender>,
        losses: Arc<Losses>,
        places: DroppedRecords,
    ) -> DroppedVersions {
        DroppedVersions {
            journal,
            losses,
            places: RwLock::new(places),
            lists: Mutex::default(),
        }
    }

    /// Records versions as dropped. On return this survives `kill -9`, and their objects may be
    /// removed.
    ///
    /// # Errors
    /// As [`Appender::append`]; then some of them may be recorded.
    pub fn add(&self, paths: &[String], mut objects: Vec<Dropped>) -> SysResult<()> {
        // Grouped so that every checkpoint in the range of a record shows one of its versions.
        objects.sort_by_key(|dropped| (dropped.object.epoch, dropped.last, dropped.object));
        for same in objects.chunk_by(|a, b| (a.object.epoch, a.last) == (b.object.epoch, b.last)) {
            for some in same.chunks(OBJECTS_AT_ONCE) {
                let Some(epoch) = some.first().map(|dropped| dropped.object.epoch) else {
                    continue;
                };
                let at = self.journal.write(&[Record::Dropped {
                    epoch,
                    paths: paths.to_vec(),
                    objects: some.to_vec(),
                }])?;
                let mut places = self.places.write();
                at.into_iter().for_each(|at| places.note(epoch, at, some));
                drop(places);
                self.losses.lost();
            }
        }
        Ok(())
    }

    /// Whether the content of a version was dropped.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn is_dropped(&self, object: ObjectId) -> SysResult<bool> {
        let begin = (object.epoch, Address::START);
        let places: Vec<Address> = self
            .places
            .read()
            .records
            .range(begin..)
            .take_while(|((epoch, _), _)| *epoch == object.epoch)
            .map(|((_, at), _)| *at)
            .collect();
        for at in places {
            if self.list(at)?.objects.contains_key(&object) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a checkpoint shows a dropped version.
    pub fn shows(&self, id: CheckpointId) -> bool {
        self.places.read().spans.have(id)
    }

    /// Returns the dropped versions that a checkpoint shows, with the patterns of their tiers.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn at(&self, id: CheckpointId) -> SysResult<Vec<(Arc<DroppedList>, Dropped)>> {
        let of = |((_, at), (first, last)): (&(Epoch, Address), &(CheckpointId, CheckpointId))| {
            (*first..=*last).contains(&id).then_some(*at)
        };
        let places: Vec<Address> = self.places.read().records.iter().filter_map(of).collect();
        let mut found = Vec::new();
        for at in places {
            let list = self.list(at)?;
            let shown = list
                .objects
                .values()
                .filter(|dropped| (dropped.first..=dropped.last).contains(&id));
            found.extend(shown.map(|dropped| (Arc::clone(&list), *dropped)));
        }
        Ok(found)
    }

    fn list(&self, at: Address) -> SysResult<Arc<DroppedList>> {
        if let Some(known) = self.lists.lock().get(&at) {
            return Ok(Arc::clone(known));
        }
        let (paths, objects) = match self
            .journal
            .store()
            .journal
            .read_if_needed(at)
            .map_err(fault)?
        {
            Some(Record::Dropped { paths, objects, .. }) => (paths, objects),
            Some(_) => return Err(Errno::EIO),
            // No checkpoint shows its versions, and the record was just removed.
            None => (Vec::new(), Vec::new()),
        };
        let objects = objects
            .into_iter()
            .map(|dropped| (dropped.object, dropped))
            .collect();
        let list = Arc::new(DroppedList { paths, objects });
        let mut lists = self.lists.lock();
        if lists.len() >= LISTS_MAX {
            lists.clear();
        }
        lists.insert(at, Arc::clone(&list));
        Ok(list)
    }

    /// Removes records that no query can refer to any more.
    pub(super) fn forget(&self, forgotten: &ExpiredItems) {
        let mut places = self.places.write();
        places
            .records
            .retain(|place, _| !forgotten.dropped.contains(place));
        places.spans = places.records.values().copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_put_together_and_none_is_lost() {
        let mut spans = Spans::default();
        let mut plain = std::collections::BTreeSet::new();
        for (first, last) in [
            (5, 6),
            (10, 12),
            (1, 0),
            (6, 8),
            (20, 20),
            (2, 11),
            (30, 40),
            (32, 33),
        ] {
            spans.add((CheckpointId(first), CheckpointId(last)));
            plain.extend(first..=last);
            let shown: Vec<u64> = (0..50).filter(|id| spans.have(CheckpointId(*id))).collect();
            assert_eq!(
                shown,
                plain.iter().copied().collect::<Vec<_>>(),
                "{first} to {last}"
            );
        }
        assert_eq!(spans.0.len(), 3);
    }
}
