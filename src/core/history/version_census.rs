//! Census of captured versions and the checkpoints that need them, which determines the versions
//! freed with checkpoints.
//!
//! A version is needed by the checkpoints between the previous record of its slot and its own
//! record, because each checkpoint reads the first record after it. Checkpoints older than the file
//! do not need it. Older checkpoints need no later capture, so an unneeded version stays unneeded,
//! with one exception: the next checkpoint may carry a provisional capture of the open epoch
//! (`live/cut.rs`, [`Epochs::may_carry`](super::epochs::Epochs::may_carry)).

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::append::fault;
use super::timeline::Timeline;
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::{ObjectId, Slot};
use ckptfs_store::record::{DataState, Place, Record, Undo};
use ckptfs_sys::{SysResult, Time};

/// Length in nanoseconds of the longest tick of the kernel's clock (HZ = 100). An inode's time of
/// birth is that of the last tick.
const TICK_MAX_NS: i64 = 10_000_000;

/// A captured version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Object with its content.
    pub object: ObjectId,
    /// Its inode.
    pub slot: Slot,
    /// Range of indices in [`Census::kept`] of the checkpoints that need it.
    pub by: Range<usize>,
    /// It was captured in the open epoch: it may be voided, or may not be in the layer yet.
    pub open: bool,
    /// The next checkpoint may carry it: it must stay even if no checkpoint needs it.
    pub carriable: bool,
    /// Time of birth of the inode, in nanoseconds since 1970.
    pub born_ns: Option<i64>,
}

impl Captured {
    /// Creates a version that no checkpoint needs, of an otherwise unknown file.
    pub fn new(object: ObjectId) -> Captured {
        Captured {
            object,
            slot: object.slot,
            by: 0..0,
            open: false,
            carriable: false,
            born_ns: None,
        }
    }
}

/// All recorded versions.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// The stored checkpoints, oldest first.
    pub kept: Vec<CheckpointId>,
    /// For each of them, the latest creation time of it and all older ones, in nanoseconds since
    /// 1970.
    pub made_ns: Vec<i64>,
    /// The versions, unneeded ones first.
    pub versions: Vec<Captured>,
}

/// Records of content and of attributes, by inode and epoch.
#[derive(Default)]
pub(super) struct CaptureRecords {
    pub(super) data: BTreeMap<(Slot, Epoch), DataState>,
    born: BTreeMap<(Slot, Epoch), Option<i64>>,
}

impl CaptureRecords {
    /// Returns the time of birth, in nanoseconds since 1970, of the inode with a content record of
    /// this epoch. The attributes of that inode changed in this epoch or before, and after every
    /// earlier inode with the same number was gone.
    pub(super) fn born_ns(&self, slot: Slot, epoch: Epoch) -> Option<i64> {
        self.born
            .range((slot, Epoch(0))..=(slot, epoch))
            .next_back()
            .and_then(|(_, born_ns)| *born_ns)
    }

    fn take_undo(&mut self, epoch: Epoch, undo: Undo) {
        match undo {
            Undo::Data { slot, before } => {
                self.data.entry((slot, epoch)).or_insert(before);
            }
            Undo::Attr { slot, before } => {
                self.born
                    .entry((slot, epoch))
                    .or_insert(before.stat.btime.map(Time::nanoseconds));
            }
            _ => {}
        }
    }

    pub(super) fn take(&mut self, record: Record) {
        match record {
            Record::Undo { epoch, undo } => undo
                .into_iter()
                .for_each(|undo| self.take_undo(epoch, undo)),
            Record::Void { epoch, slot } => {
                self.data.remove(&(slot, epoch));
            }
            _ => {}
        }
    }
}

impl Census {
    /// Creates a census of checkpoints, given oldest first with their creation times, without
    /// versions.
    pub(super) fn of(retained: &[(CheckpointId, i64)]) -> Census {
        let mut latest = i64::MIN;
        let made_ns = retained.iter().map(|(_, made_ns)| {
            latest = latest.max(*made_ns);
            latest
        });
        Census {
            made_ns: made_ns.collect(),
            kept: retained.iter().map(|(id, _)| *id).collect(),
            versions: Vec::new(),
        }
    }
}

impl Timeline {
    /// Returns every recorded version. Reads the records of content and attributes in the index,
    /// and the tail of the journal.
    ///
    /// The result may include checkpoints older than the file; [`Timeline::narrow`] removes them.
    ///
    /// # Errors
    /// EIO if neither the index nor the journal can be read.
    pub fn census(&self) -> SysResult<Census> {
        let open = self.epochs.epoch();
        let retained = self.catalogue.retained();
        let reading = self.captures()?;
        let Census { kept, made_ns, .. } = Census::of(&retained);
        let number = |epoch: Epoch| kept.partition_point(|id| *id < CheckpointId(epoch.0));
        let mut versions = Vec::new();
        let mut last = (Slot(0), Epoch(0));
        for ((slot, epoch), data) in &reading.data {
            let before = if last.0 == *slot { last.1 } else { Epoch(0) };
            if let Some(object) = data.object {
                let born_ns = reading.born_ns(*slot, *epoch);
                versions.push(Captured {
                    slot: *slot,
                    by: number(before)..number(*epoch),
                    born_ns,
                    open: *epoch >= open,
                    carriable: *epoch >= open && self.epochs.may_carry(*slot, object),
                    ..Captured::new(object)
                });
            }
            last = (*slot, *epoch);
        }
        versions.sort_by_key(|version| (!version.by.is_empty(), version.object));
        Ok(Census {
            made_ns,
            kept,
            versions,
        })
    }

    /// Returns all records of content and of attributes.
    fn captures(&self) -> SysResult<CaptureRecords> {
        let index = &self.store().index;
        let mut reading = CaptureRecords::default();
        // An epoch indexed concurrently is read twice, which is idempotent.
        let indexed = index.each_capture(|epoch, undo| reading.take_undo(epoch, undo));
        let from = indexed.unwrap_or_else(|error| {
            self.lookup.index_fault(&error);
            reading = CaptureRecords::default();
            self.store().journal.start()
        });
        for frame in self.store().journal.scan(from, None) {
            reading.take(frame.map_err(fault)?.1);
        }
        Ok(reading)
    }

    /// Whether any checkpoint reads this object of the open epoch. If the newest one does not, no
    /// other does; the one that did may have been deleted.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn reads_open(&self, slot: Slot, object: ObjectId) -> SysResult<bool> {
        let census = Census::of(&self.catalogue.retained());
        let Some(newest) = census.kept.last() else {
            return Ok(false);
        };
        if self
            .lookup
            .data_at(slot, *newest)?
            .is_none_or(|data| data.before.object != Some(object))
        {
            return Ok(false);
        }
        let born_ns = self
            .lookup
            .attr_at(slot, *newest)?
            .and_then(|attr| attr.before.stat.btime.map(Time::nanoseconds));
        let mut version = Captured {
            slot,
            born_ns,
            by: 0..census.kept.len(),
            ..Captured::new(object)
        };
        self.narrow(&census, &mut version)?;
        Ok(!version.by.is_empty())
    }

    /// Removes the checkpoints older than the file, which do not show it.
    ///
    /// Two conditions must hold. By the clock, the file was created after each of them and all
    /// earlier ones. And its name at its first change after the newest of them led elsewhere or
    /// nowhere there, or both conditions hold for its directory. Each alone proves nothing: a clock
    /// can be set back, and the file may have acquired the name later.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn narrow(&self, census: &Census, version: &mut Captured) -> SysResult<()> {
        let Some(born_ns) = version.born_ns else {
            return Ok(());
        };
        let made = census.made_ns.get(version.by.clone()).unwrap_or_default();
        let older = made.partition_point(|made_ns| *made_ns < born_ns);
        let Some(last) = older.checked_sub(1) else {
            return Ok(());
        };
        let (Some(newest), Some(made_ns)) =
            (census.kept.get(version.by.start + last), made.get(last))
        else {
            return Ok(());
        };
        if self.is_nameless(version.slot, *newest, *made_ns, &|_| None)? {
            version.by.start += older;
        }
        Ok(())
    }

    /// Whether the inode was created after the checkpoint but within the same clock tick, so that
    /// its time of birth is not later: its recorded names lead elsewhere.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn is_just_before(&self, id: CheckpointId, slot: Slot) -> SysResult<bool> {
        let (Some(kept), Some(attr)) = (
            self.catalogue.checkpoint(id),
            self.lookup.attr_at(slot, id)?,
        ) else {
            return Ok(false);
        };
        let Some(born) = attr.before.stat.btime else {
            return Ok(false);
        };
        let same_tick = kept.created_ns < Time::nanoseconds(born).saturating_add(TICK_MAX_NS);
        Ok(same_tick && self.is_nameless(slot, id, kept.created_ns, &|_| None)?)
    }

    /// Whether no stored checkpoint shows an inode that is about to change for the first time in
    /// the open epoch. This daemon or an earlier one made it in that epoch, or only freed
    /// checkpoints showed it. `born` is the time of birth; `now` returns place and time of birth of
    /// an inode in the live tree.
    ///
    /// The same two conditions must hold as in [`Timeline::narrow`]. A time of birth in the future,
    /// or a checkpoint made after the clock was set back, proves nothing; neither does a deletion
    /// that is not on the disk.
    ///
    /// No checkpoint may be made until the inode is changed.
    ///
    /// # Errors
    /// EIO if a record cannot be read; ESTALE if the checkpoint is freed while this runs.
    pub fn is_unseen(
        &self,
        slot: Slot,
        born: Time,
        now: &dyn Fn(Slot) -> Option<(Place, Time)>,
    ) -> SysResult<bool> {
        let Some(newest) = self.catalogue.newest_stored() else {
            return Ok(false);
        };
        let Some(made_ns) = self.catalogue.stored_ns(newest) else {
            return Ok(false);
        };
        // A deleted checkpoint that reappears after a power cut shows the state before this change.
        Ok(self.absences.is_after(born, newest, made_ns)
            && born <= ckptfs_sys::now()
            && self.store().has_synced_deletions()
            && self.is_nameless(slot, newest, made_ns, now)?)
    }

    /// Whether the name of an inode led to something else, or to nothing, at a checkpoint. The name
    /// is the one at its first change after the checkpoint; an inode without a record has not
    /// changed since, and `now` returns its place and time of birth. If that name led to the inode,
    /// or has no record, the directory is asked instead, provided that it is younger than the
    /// checkpoint.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    fn is_nameless(
        &self,
        slot: Slot,
        id: CheckpointId,
        made_ns: i64,
        now: &dyn Fn(Slot) -> Option<(Place, Time)>,
    ) -> SysResult<bool> {
        let (mut at, mut passed) = (slot, HashSet::new());
        // Forged places can form a cycle.
        while passed.insert(at) {
            let home = self.lookup.home_at(at, id)?.map(|home| home.before);
            let Some(place) = home.or_else(|| Some(now(at)?.0)) else {
                return Ok(false);
            };
            let led_to = self.lookup.entry_at(place.parent, &place.name, id)?;
            if led_to.is_some_and(|led_to| led_to.before.is_none_or(|child| child.slot != at)) {
                return Ok(true);
            }
            at = place.parent;
            if at == Slot::ROOT {
                return Ok(false);
            }
            let recorded = self.lookup.attr_at(at, id)?;
            let born = match recorded {
                Some(attr) => attr.before.stat.btime,
                None => now(at).map(|(_, born)| born),
            };
            if born.is_none_or(|born| born.nanoseconds() <= made_ns) {
                return Ok(false);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
#[path = "needed_tests.rs"]
mod tests;
