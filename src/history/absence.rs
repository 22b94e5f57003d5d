//! Changes that nobody recorded: made while the tree was not served, or past the mount by somebody
//! who had the directory below it open.
//!
//! They are known by their ctime, which nobody can set. What was changed while nobody served the
//! tree has one between the end of one daemon and the beginning of the next. And every change of
//! ours is recorded before it is made, with the attributes before it: so an inode whose attributes
//! have no record after a checkpoint was last changed before that checkpoint, and if its ctime is
//! later, it was changed behind our back. An older checkpoint cannot tell what was there before;
//! its view gives EIO, and never the new state.
//!
//! The second rule needs a clock that does not go back: a file changed before the clock was set
//! back seems later than a checkpoint made after. Such checkpoints are known (the wall clock is
//! compared with one that nobody sets, and with the checkpoints before), and only the first rule
//! holds for them.
//!
//! A ctime later than now shows that the clock was ahead. If the clock was not set since this daemon
//! began (the kernel reports that), the inode was changed before, and so before every checkpoint of
//! this daemon: records get the time at which it began in place of such a ctime, and the idle walk
//! gives such inodes a ctime of now (`live::baseline`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::append::Appender;
use super::catalogue::Catalogue;
use crate::store::Forgotten;
use crate::store::ids::CheckpointId;
use crate::store::record::Record;
use crate::sys::lock::RwLock;
use crate::sys::{self, ClockWatch, Time};

/// A stretch of time, wall clock, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// When the last daemon ended, or was last known to live.
    pub from_ns: i64,
    /// When the next one began.
    pub to_ns: i64,
    /// What was changed is on record.
    pub told: bool,
}

impl Absence {
    fn holds(&self, time_ns: i64) -> bool {
        self.from_ns < time_ns && time_ns < self.to_ns
    }
}

/// By how much the wall clock may go back and not be taken to be set back, and a time of change be
/// later than now (a host that stamps the files of its guests).
const CLOCK_SLACK_NS: i64 = 100_000_000;

/// Whether a ctime is later than now: the clock was ahead.
pub fn is_ahead(ctime: Time) -> bool {
    let now_ns = sys::now().nanoseconds();
    ctime.nanoseconds() > now_ns.saturating_add(CLOCK_SLACK_NS)
}

/// The wall clock against one that nobody sets.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The most that the wall clock was ahead of the other, nanoseconds.
    ahead_ns: Option<i64>,
    /// The latest time of a checkpoint.
    latest_ns: i64,
    /// The newest that was read.
    newest: Option<CheckpointId>,
    /// Checkpoints made after the clock was set back.
    unsure: BTreeSet<CheckpointId>,
}

impl Clock {
    /// A checkpoint was read. One that is read again, for it was brought back, is older than those
    /// that came after it and says nothing of the clock.
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

    /// These checkpoints are not asked for any more.
    fn forget(&mut self, gone: &BTreeSet<CheckpointId>) {
        self.unsure.retain(|id| !gone.contains(id));
    }

    /// A checkpoint is made now.
    fn made(&mut self, id: CheckpointId, created_ns: i64, ahead_ns: i64) {
        let most = *self.ahead_ns.get_or_insert(ahead_ns);
        if ahead_ns < most.saturating_sub(CLOCK_SLACK_NS) {
            self.unsure.insert(id);
        }
        self.ahead_ns = Some(most.max(ahead_ns));
        self.read(id, created_ns);
    }
}

/// When nobody served the tree, and which checkpoints are of a clock that cannot be relied on.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Oldest first.
    pub(super) absences: Vec<Absence>,
    pub(super) clock: Clock,
}

impl Known {
    /// What was changed in the absence that ended then is on record.
    pub(super) fn tell(&mut self, to_ns: i64) {
        self.absences
            .iter_mut()
            .filter(|absence| absence.to_ns == to_ns)
            .for_each(|absence| absence.told = true);
    }
}

/// Tells what was changed behind our back, by its ctime. See the module.
pub struct Absences {
    journal: Arc<Appender>,
    catalogue: Arc<Catalogue>,
    /// A leaf.
    known: RwLock<Known>,
    /// Watched since the time beside it; `None`: the kernel does not report changes of the clock.
    watched: Option<(ClockWatch, Time)>,
}

impl Absences {
    pub(super) fn new(journal: Arc<Appender>, catalogue: Arc<Catalogue>, known: Known) -> Absences {
        Absences {
            journal,
            catalogue,
            known: RwLock::new(known),
            watched: ClockWatch::begin().ok().map(|watch| (watch, sys::now())),
        }
    }

    /// When an inode with this ctime was changed at the latest: see the module.
    pub fn settled(&self, ctime: Time) -> Time {
        match &self.watched {
            // In this order: until it was looked at the clock was not set.
            Some((watch, began)) if is_ahead(ctime) && !watch.was_set() => *began,
            _ => ctime,
        }
    }

    /// A checkpoint is made now.
    pub(super) fn made(&self, id: CheckpointId, created_ns: i64) {
        self.known
            .write()
            .clock
            .made(id, created_ns, crate::sys::clock_ahead_ns());
    }

    /// Nobody can ask for these any more.
    pub(super) fn forget(&self, forgotten: &Forgotten) {
        let mut known = self.known.write();
        known
            .absences
            .retain(|absence| !forgotten.absences.contains(&absence.to_ns));
        known.clock.forget(&forgotten.checkpoints);
    }

    /// How many there were.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.read().absences.len()
    }

    /// An inode whose attributes have no record between the checkpoint and the state in which it
    /// had this ctime was changed all the same.
    pub fn changed_unseen(&self, ctime: Time, id: CheckpointId) -> bool {
        let Some(created_ns) = self.catalogue.created_ns(id) else {
            return false;
        };
        self.is_after(ctime, id, created_ns) && self.settled(ctime).nanoseconds() > created_ns
    }

    /// A time of an inode is later than a checkpoint that was made at `created_ns`, by a clock that
    /// was not set back before.
    pub(super) fn is_after(&self, time: Time, id: CheckpointId, created_ns: i64) -> bool {
        time.nanoseconds() > created_ns && !self.known.read().clock.unsure.contains(&id)
    }

    /// A daemon begins to serve; the absence before it ends, if there was one. That it does is on
    /// record already (`Mounted`).
    pub fn begin_service(&self, at_ns: i64, stopped_ns: Option<i64>) {
        if let Some(from_ns) = stopped_ns {
            self.known.write().absences.push(Absence {
                from_ns,
                to_ns: at_ns,
                told: false,
            });
        }
    }

    /// What was changed in the absence that ended with this mount is on record, and in those
    /// before, as far as they began at `left_ns` or later (a mount that was killed while it
    /// compared leaves one). Best effort: who does not know looks for it.
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

    /// Whether the tree was left alone after this checkpoint, and what was changed then is not all
    /// on record.
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

    /// Whether the tree was ever left alone.
    pub fn was_absent(&self) -> bool {
        !self.known.read().absences.is_empty()
    }

    /// Whether the tree was ever left alone after this checkpoint. Nearly always not, and then
    /// nothing needs to be checked.
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

    /// Whether the tree was left alone between these checkpoints.
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

    /// An inode with this ctime was changed while nobody served the tree, after this checkpoint.
    pub fn changed_in_absence(&self, ctime: Time, id: CheckpointId) -> bool {
        self.changed_in(ctime, id, |_| true)
    }

    /// As [`Absences::changed_in_absence`], and that is not on record.
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

    /// With it among the unsure, what was changed behind our back after it would be shown as its
    /// own.
    #[test]
    fn a_checkpoint_that_is_brought_back_says_nothing_of_the_clock() {
        let mut clock = Clock::default();
        for (id, created_ns) in [(1, 100), (2, 200), (1, 100), (3, 150)] {
            clock.read(CheckpointId(id), created_ns);
        }
        assert!(clock.unsure.iter().eq([&CheckpointId(3)]));
    }

    #[test]
    fn checkpoints_made_after_the_clock_was_set_back_are_known() {
        let mut clock = Clock::default();
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
