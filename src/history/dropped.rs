//! Versions whose content was dropped by a tier: checkpoints show them, with their attributes, and
//! their bytes are not kept any more.
//!
//! The record of it comes before anything goes, so what is missing and on no record is damage, and
//! what is on record is none whether it is there still or not. It names objects, not paths: where
//! they were is told by the places on record, as for any other.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::append::{Appender, fault};
use super::losses::Losses;
use crate::store::ids::{CheckpointId, Epoch, ObjectId};
use crate::store::record::{Dropped, Record, range_of};
use crate::store::{Address, Forgotten};
use crate::sys::lock::{Mutex, RwLock};
use crate::sys::{Errno, SysResult};

/// What reading a version gives that was dropped: it is there, and its data is not.
pub const DROPPED: Errno = Errno::ENODATA;

/// Versions in one record.
const OBJECTS_AT_ONCE: usize = 2048;
/// Records that are kept in memory once they were read.
const LISTS_MAX: usize = 256;

/// A record of dropped versions.
#[derive(Debug, Default)]
pub struct DroppedList {
    /// The patterns of the tier.
    pub paths: Vec<String>,
    /// What was dropped.
    pub objects: HashMap<ObjectId, Dropped>,
}

/// Ranges of checkpoints, put together where they touch: the last of each by its first.
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

/// Where the records of dropped versions are, and which checkpoints they are of.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// By their layer and where they are: the first and the last checkpoint that show something of
    /// it.
    records: BTreeMap<(Epoch, Address), (CheckpointId, CheckpointId)>,
    spans: Spans,
}

impl Places {
    /// A record of these is at this place.
    pub(super) fn note(&mut self, epoch: Epoch, at: Address, objects: &[Dropped]) {
        self.put(epoch, at, range_of(objects));
    }

    pub(super) fn put(&mut self, epoch: Epoch, at: Address, range: (CheckpointId, CheckpointId)) {
        self.records.insert((epoch, at), range);
        self.spans.add(range);
    }
}

/// The versions that were dropped. See the module.
pub struct DroppedVersions {
    journal: Arc<Appender>,
    losses: Arc<Losses>,
    /// A leaf.
    places: RwLock<Places>,
    /// Records that were read. A leaf.
    lists: Mutex<HashMap<Address, Arc<DroppedList>>>,
}

impl DroppedVersions {
    pub(super) fn new(
        journal: Arc<Appender>,
        losses: Arc<Losses>,
        places: Places,
    ) -> DroppedVersions {
        DroppedVersions {
            journal,
            losses,
            places: RwLock::new(places),
            lists: Mutex::default(),
        }
    }

    /// Records that these versions are dropped. When it returns they are, after `kill -9` too, and
    /// their objects can go.
    ///
    /// # Errors
    /// As [`Appender::append`]; then a part of them may be.
    pub fn add(&self, paths: &[String], mut objects: Vec<Dropped>) -> SysResult<()> {
        // Of each record all that lies between its first and its last checkpoint shows something of
        // it.
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

    /// Something that a checkpoint shows was dropped.
    pub fn shows(&self, id: CheckpointId) -> bool {
        self.places.read().spans.have(id)
    }

    /// All of it, with the patterns of each tier.
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
            // No checkpoint shows any of it, and it was forgotten a moment ago.
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

    /// Nobody can ask for these any more.
    pub(super) fn forget(&self, forgotten: &Forgotten) {
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
