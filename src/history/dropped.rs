//! Versions whose content was dropped by a tier: checkpoints show them, with their attributes, and their bytes are not kept any more.
//!
//! The record of it comes before anything goes, so what is missing and on no record is damage, and what is on record is none whether it is there still or
//! not. It names objects, not paths: where they were is told by the places on record, as for any other.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::timeline::{Inner, Timeline, fault};
use crate::store::Address;
use crate::store::ids::{CheckpointId, Epoch, ObjectId, Slot};
use crate::store::record::{Dropped, Record, range_of};
use crate::sys::{Errno, SysResult};

/// What reading a version gives that was dropped: it is there, and its data is not.
pub const DROPPED: Errno = Errno::ENODATA;

/// Versions in one record.
const OBJECTS_AT_ONCE: usize = 2048;
/// Records that are kept in memory once they were read.
const LISTS_MAX: usize = 256;
/// Directories above a path: there can be no more of them in a journal that is whole.
pub(super) const DEPTH_MAX: usize = 1 << 16;

/// A record of dropped versions.
#[derive(Debug, Default)]
pub struct DroppedList {
    /// The patterns of the tier.
    pub paths: Vec<String>,
    /// What was dropped.
    pub objects: HashMap<ObjectId, Dropped>,
}

/// A path at a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAt {
    /// It.
    pub path: Vec<u8>,
    /// It is the same at every later checkpoint before this epoch.
    pub until: Epoch,
}

impl Inner {
    pub(super) fn note_dropped(&mut self, epoch: Epoch, at: Address, objects: &[Dropped]) {
        self.put_dropped(epoch, at, range_of(objects));
    }

    pub(super) fn put_dropped(&mut self, epoch: Epoch, at: Address, range: (CheckpointId, CheckpointId)) {
        self.dropped.insert((epoch, at), range);
        self.dropped_spans.add(range);
    }
}

/// Ranges of checkpoints, put together where they touch: the last of each by its first.
#[derive(Debug, Default)]
pub(super) struct Spans(BTreeMap<CheckpointId, CheckpointId>);

impl FromIterator<(CheckpointId, CheckpointId)> for Spans {
    fn from_iter<T: IntoIterator<Item = (CheckpointId, CheckpointId)>>(ranges: T) -> Spans {
        let mut spans = Spans::default();
        ranges.into_iter().for_each(|range| spans.add(range));
        spans
    }
}

impl Spans {
    fn add(&mut self, (mut first, mut last): (CheckpointId, CheckpointId)) {
        while let Some((begin, end)) = self.0.range(..=last).next_back().map(|(begin, end)| (*begin, *end)).filter(|(_, end)| *end >= first) {
            self.0.remove(&begin);
            (first, last) = (first.min(begin), last.max(end));
        }
        if first <= last {
            self.0.insert(first, last);
        }
    }

    pub(super) fn have(&self, id: CheckpointId) -> bool {
        self.0.range(..=id).next_back().is_some_and(|(_, last)| *last >= id)
    }
}

impl Timeline {
    /// Records that these versions are dropped. When it returns they are, after `kill -9` too, and their objects can go.
    ///
    /// # Errors
    /// As [`Timeline::append`]; then a part of them may be.
    pub fn drop_versions(&self, paths: &[String], mut objects: Vec<Dropped>) -> SysResult<()> {
        // Of each record all that lies between its first and its last checkpoint shows something of it.
        objects.sort_by_key(|dropped| (dropped.object.epoch, dropped.last, dropped.object));
        for same in objects.chunk_by(|a, b| (a.object.epoch, a.last) == (b.object.epoch, b.last)) {
            for some in same.chunks(OBJECTS_AT_ONCE) {
                let Some(epoch) = some.first().map(|dropped| dropped.object.epoch) else { continue };
                let at = self.write(&[Record::Dropped { epoch, paths: paths.to_vec(), objects: some.to_vec() }])?;
                let mut inner = self.inner.write();
                at.into_iter().for_each(|at| inner.note_dropped(epoch, at, some));
                drop(inner);
                self.lost();
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
        let places: Vec<Address> =
            self.inner.read().dropped.range(begin..).take_while(|((epoch, _), _)| *epoch == object.epoch).map(|((_, at), _)| *at).collect();
        for at in places {
            if self.dropped_list(at)?.objects.contains_key(&object) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Something that a checkpoint shows was dropped.
    pub fn shows_dropped(&self, id: CheckpointId) -> bool {
        self.inner.read().dropped_spans.have(id)
    }

    /// All of it, with the patterns of each tier.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn dropped_at(&self, id: CheckpointId) -> SysResult<Vec<(Arc<DroppedList>, Dropped)>> {
        let of = |((_, at), (first, last)): (&(Epoch, Address), &(CheckpointId, CheckpointId))| (*first..=*last).contains(&id).then_some(*at);
        let places: Vec<Address> = self.inner.read().dropped.iter().filter_map(of).collect();
        let mut found = Vec::new();
        for at in places {
            let list = self.dropped_list(at)?;
            let shown = list.objects.values().filter(|dropped| (dropped.first..=dropped.last).contains(&id));
            found.extend(shown.map(|dropped| (Arc::clone(&list), *dropped)));
        }
        Ok(found)
    }

    /// Every version that was dropped, ever.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn all_dropped(&self) -> SysResult<Vec<Dropped>> {
        let places: Vec<Address> = self.inner.read().dropped.keys().map(|(_, at)| *at).collect();
        let mut found = Vec::new();
        for at in places {
            found.extend(self.dropped_list(at)?.objects.values().copied());
        }
        Ok(found)
    }

    fn dropped_list(&self, at: Address) -> SysResult<Arc<DroppedList>> {
        if let Some(known) = self.dropped.lock().get(&at) {
            return Ok(Arc::clone(known));
        }
        let (paths, objects) = match self.store.journal.read_if_needed(at).map_err(fault)? {
            Some(Record::Dropped { paths, objects, .. }) => (paths, objects),
            Some(_) => return Err(Errno::EIO),
            // No checkpoint shows any of it, and it was forgotten a moment ago.
            None => (Vec::new(), Vec::new()),
        };
        let objects = objects.into_iter().map(|dropped| (dropped.object, dropped)).collect();
        let list = Arc::new(DroppedList { paths, objects });
        let mut lists = self.dropped.lock();
        if lists.len() >= LISTS_MAX {
            lists.clear();
        }
        lists.insert(at, Arc::clone(&list));
        Ok(list)
    }

    /// Where an inode was at a checkpoint, by the places on record; `None`: they do not tell. A change records the place of what is changed, and of every
    /// directory above it.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn path_at(&self, slot: Slot, id: CheckpointId) -> SysResult<Option<PathAt>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut at, mut until) = (slot, Epoch(u64::MAX));
        while at != Slot::ROOT {
            let Some(home) = self.home_at(at, id)? else { return Ok(None) };
            if names.len() >= DEPTH_MAX || at == Slot::STAGING {
                return Ok(None);
            }
            until = until.min(home.epoch);
            names.push(home.before.name.as_bytes().to_vec());
            at = home.before.parent;
        }
        names.reverse();
        Ok(Some(PathAt { path: names.join(&b'/'), until }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_put_together_and_none_is_lost() {
        let mut spans = Spans::default();
        let mut plain = std::collections::BTreeSet::new();
        for (first, last) in [(5, 6), (10, 12), (1, 0), (6, 8), (20, 20), (2, 11), (30, 40), (32, 33)] {
            spans.add((CheckpointId(first), CheckpointId(last)));
            plain.extend(first..=last);
            let shown: Vec<u64> = (0..50).filter(|id| spans.have(CheckpointId(*id))).collect();
            assert_eq!(shown, plain.iter().copied().collect::<Vec<_>>(), "{first} to {last}");
        }
        assert_eq!(spans.0.len(), 3);
    }
}
