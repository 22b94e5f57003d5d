//! Unrecorded changes: made while the tree was not served, or past the mount by a process with the
//! backing directory open.
//!
//! They are detected by their ctime, which no process can set. A change made while the tree was not
//! served has a ctime between the end of one daemon and the start of the next. While a daemon
//! serves, every change through it is recorded with the prior attributes. An inode without an
//! attribute record after a checkpoint was therefore last changed before that checkpoint. If its
//! ctime is later, it was changed without a record. Its state at an older checkpoint is lost; the
//! view returns EIO, never the new state.
//!
//! The second rule requires a clock that is not set back: a file changed before the clock was set
//! back appears to be later than a checkpoint made after. Such checkpoints are detected, by
//! comparing the wall clock with a clock that cannot be set and with earlier checkpoints. Only the
//! first rule applies to them.
//!
//! A ctime later than now shows that the clock was ahead. If the clock was not set since this
//! daemon started (the kernel reports that), the inode was changed before every checkpoint of this
//! daemon. Records then contain the start time of the daemon instead of such a ctime, and the idle
//! walk gives such inodes a ctime of now (`live::baseline`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::append::Appender;
use super::catalogue::Catalogue;
use ckptfs_api::CheckpointId;
use ckptfs_store::ExpiredItems;
use ckptfs_store::record::Record;
use ckptfs_sys::lock::RwLock;
use ckptfs_sys::{self as sys, ClockWatch, Time};

/// An interval without service, in wall clock nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// When the previous daemon ended, or was last known to be alive.
    pub from_ns: i64,
    /// When the next daemon started.
    pub to_ns: i64,
    /// The changes made in it are recorded.
    pub told: bool,
}

impl Absence {
    fn holds(&self, time_ns: i64) -> bool {
        self.from_ns < time_ns && time_ns < self.to_ns
    }
}

/// Tolerance in nanoseconds: how far the wall clock may go back without counting as set back, and
/// how far a ctime may lie in the future (a host that timestamps the files of its guests).
const CLOCK_SLACK_NS: i64 = 100_000_000;

/// Whether a ctime is later than now, which shows that the clock was ahead.
pub fn is_ahead(ctime: Time) -> bool {
    let now_ns = sys::now().nanoseconds();
    ctime.nanoseconds() > now_ns.saturating_add(CLOCK_SLACK_NS)
}

/// Compares the wall clock with one that cannot be set.
#[derive(Debug, Default)]
pub(super) struct ClockMonitor {
    /// Maximum lead of the wall clock over the other clock, in nanoseconds.
    ahead_ns: Option<i64>,
    /// Latest creation time of a checkpoint.
    latest_ns: i64,
    /// Newest checkpoint read.
    newest: Option<CheckpointId>,
    /// Checkpoints made after the clock was set back.
    unsure: BTreeSet<CheckpointId>,
}

impl ClockMonitor {
    /// Adds a checkpoint read from the journal. One that is read again, because it was unhidden, is
    /// older than its successors and is ignored.
    pub(super) fn read(&mut self, id: CheckpointId, created_ns: i64) {
        if self
            .newest
            .replace(self.newest.map_or(id, |newest| newest.max(id)))
            .is_some_and(|newest| id <= newest)
        {
            return;
        }
        if created_ns < self.latest_ns {
            self.unsure.insert(id);
        }
        self.latest_ns = self.latest_ns.max(created_ns);
    }

    /// Removes deleted checkpoints.
    fn forget(&mut self, gone: &BTreeSet<CheckpointId>) {
        self.unsure.retain(|id| !gone.contains(id));
    }

    /// Adds a checkpoint that is made now.
    fn made(&mut self, id: CheckpointId, created_ns: i64, ahead_ns: i64) {
        let most = *self.ahead_ns.get_or_insert(ahead_ns);
        if ahead_ns < most.saturating_sub(CLOCK_SLACK_NS) {
            self.unsure.insert(id);
        }
        self.ahead_ns = Some(most.max(ahead_ns));
        self.read(id, created_ns);
    }
}

/// The absences, and the checkpoints with an unreliable clock.
#[derive(Debug, Default)]
pub(super) struct AbsenceTable {
    /// Oldest first.
    pub(super) absences: Vec<Absence>,
    pub(super) clock: ClockMonitor,
}

impl AbsenceTable {
    /// Marks the absence that ended at `to_ns` as recorded.
    pub(super) fn tell(&mut self, to_ns: i64) {
        self.absences
            .iter_mut()
            .filter(|absence| absence.to_ns == to_ns)
            .for_each(|absence| absence.told = true);
    }
}

/// Detects unrecorded changes by ctime. See the module.
pub struct Absences {
    journal: Arc<Appender>,
    catalogue: Arc<Catalogue>,
    /// A leaf lock.
    known: RwLock<AbsenceTable>,
    /// The clock watch and its start time; `None` if the kernel does not report changes of the
    /// clock.
    watched: Option<(ClockWatch, Time)>,
}

impl Absences {
    pub(super) fn new(
        journal: Arc<Appender>,
        catalogue: Arc<Catalogue>,
        known: AbsenceTable,
    ) -> Absences {
        Absences {
            journal,
            catalogue,
            known: RwLock::new(known),
            watched: ClockWatch::begin().ok().map(|watch| (watch, sys::now())),
        }
    }

    /// Returns the latest possible time of the last change of an inode with this ctime: see the
    /// module.
    pub fn settled(&self, ctime: Time) -> Time {
        match &self.watched {
            // Order: the watch is read last, so the clock was not set until then.
            Some((watch, began)) if is_ahead(ctime) && !watch.was_set() => *began,
            _ => ctime,
        }
    }

    /// Registers a checkpoint that is made now.
    pub(super) fn made(&self, id: CheckpointId, created_ns: i64) {
        self.known
            .write()
            .clock
            .made(id, created_ns, ckptfs_sys::clock_ahead_ns());
    }

    /// Removes absences and checkpoints that no query can refer to any more.
    pub(super) fn forget(&self, forgotten: &ExpiredItems) {
        let mut known = self.known.write();
        known
            .absences
            .retain(|absence| !forgotten.absences.contains(&absence.to_ns));
        known.clock.forget(&forgotten.checkpoints);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.read().absences.len()
    }

    /// Whether an inode with this ctime was changed without a record. The caller has found no
    /// attribute record between the checkpoint and the state with this ctime.
    pub fn changed_unseen(&self, ctime: Time, id: CheckpointId) -> bool {
        let Some(created_ns) = self.catalogue.created_ns(id) else {
            return false;
        };
        self.is_after(ctime, id, created_ns) && self.settled(ctime).nanoseconds() > created_ns
    }

    /// Whether a time of an inode is later than `created_ns`, the creation of a checkpoint whose
    /// clock is reliable.
    pub(super) fn is_after(&self, time: Time, id: CheckpointId, created_ns: i64) -> bool {
        time.nanoseconds() > created_ns && !self.known.read().clock.unsure.contains(&id)
    }

    /// Starts a service, and ends the absence before it, if any. The start is already recorded
    /// (`Mounted`).
    pub fn begin_service(&self, at_ns: i64, stopped_ns: Option<i64>) {
        if let Some(from_ns) = stopped_ns {
            self.known.write().absences.push(Absence {
                from_ns,
                to_ns: at_ns,
                told: false,
            });
        }
    }

    /// Records that the changes of the absence that ended with this mount are recorded. Includes
    /// earlier absences that began at `left_ns` or later, which a mount killed during its
    /// comparison leaves. Best effort: a missing record only causes another search.
    pub fn tell_absence(&self, left_ns: i64) {
        let absences = self.known.read().absences.clone();
        let last = absences.last().map(|last| last.to_ns);
        let since = |absence: &&Absence| {
            !absence.told
                && (Some(absence.to_ns) == last || (left_ns > 0 && absence.from_ns >= left_ns))
        };
        for Absence { from_ns, to_ns, .. } in absences.iter().filter(since) {
            self.known.write().tell(*to_ns);
            self.journal.tell(Record::Told {
                from_ns: *from_ns,
                to_ns: *to_ns,
            });
        }
    }

    /// Whether an absence after this checkpoint has changes that are not all recorded.
    pub fn may_have_unseen(&self, id: CheckpointId) -> bool {
        let Some(created_ns) = self.catalogue.created_ns(id) else {
            return false;
        };
        self.known
            .read()
            .absences
            .iter()
            .any(|absence| !absence.told && absence.to_ns > created_ns)
    }

    /// Whether an absence ended after this checkpoint. Usually not, and then no check is needed.
    pub fn was_absent_after(&self, id: CheckpointId) -> bool {
        let Some(ended_ns) = self
            .known
            .read()
            .absences
            .last()
            .map(|absence| absence.to_ns)
        else {
            return false;
        };
        self.catalogue
            .created_ns(id)
            .is_some_and(|created_ns| ended_ns > created_ns)
    }

    /// Whether an absence lies between these checkpoints.
    pub fn was_absent_between(&self, older: CheckpointId, newer: CheckpointId) -> bool {
        let (Some(older), Some(newer)) = (
            self.catalogue.created_ns(older),
            self.catalogue.created_ns(newer),
        ) else {
            return true;
        };
        self.known
            .read()
            .absences
            .iter()
            .any(|absence| absence.to_ns > older && absence.from_ns < newer)
    }

    /// Whether an inode with this ctime was changed in an absence after this checkpoint.
    pub fn changed_in_absence(&self, ctime: Time, id: CheckpointId) -> bool {
        self.changed_in(ctime, id, |_| true)
    }

    /// As [`Absences::changed_in_absence`], for absences whose changes are not recorded.
    pub fn changed_untold(&self, ctime: Time, id: CheckpointId) -> bool {
        self.changed_in(ctime, id, |absence| !absence.told)
    }

    fn changed_in(&self, ctime: Time, id: CheckpointId, counts: impl Fn(&Absence) -> bool) -> bool {
        let Some(created_ns) = self.catalogue.created_ns(id) else {
            return false;
        };
        let time = ctime.nanoseconds();
        time > created_ns
            && self
                .known
                .read()
                .absences
                .iter()
                .any(|absence| absence.holds(time) && counts(absence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an unreliable checkpoint, its view would show later unrecorded changes as its own state.
    #[test]
    fn a_checkpoint_that_is_brought_back_says_nothing_of_the_clock() {
        let mut clock = ClockMonitor::default();
        for (id, created_ns) in [(1, 100), (2, 200), (1, 100), (3, 150)] {
            clock.read(CheckpointId(id), created_ns);
        }
        assert!(clock.unsure.iter().eq([&CheckpointId(3)]));
    }

    #[test]
    fn checkpoints_made_after_the_clock_was_set_back_are_known() {
        let mut clock = ClockMonitor::default();
        let of = |id| CheckpointId(id);
        clock.read(of(1), 100);
        clock.read(of(2), 90);
        clock.read(of(3), 200);
        assert!(clock.unsure.iter().eq([&of(2)]));
        let second = 1_000_000_000;
        clock.made(of(4), 300, 5 * second);
        clock.made(of(5), 400, 5 * second - CLOCK_SLACK_NS / 2);
        clock.made(of(6), 500, 4 * second);
        clock.made(of(7), 600, 6 * second);
        clock.made(of(8), 700, 5 * second);
        assert!(clock.unsure.iter().eq([&of(2), &of(6), &of(8)]));
    }

    #[test]
    fn the_ends_of_an_absence_do_not_belong_to_it() {
        let absence = Absence {
            from_ns: 10,
            to_ns: 20,
            told: false,
        };
        assert!(!absence.holds(10) && absence.holds(11) && absence.holds(19) && !absence.holds(20));
        assert_eq!(Time { sec: -1, nsec: 5 }.nanoseconds(), -999_999_995);
    }
}
