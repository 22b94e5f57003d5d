//! Times in which the tree was not served, so that it could be changed without a record.
//!
//! What was changed then is known by its ctime, which nobody can set: it lies between the end of one daemon and the beginning of the next. An older
//! checkpoint cannot tell what was there before, so its view gives EIO for it, and never the new state.

use super::timeline::Timeline;
use crate::store::ids::CheckpointId;
use crate::sys::Time;

/// A stretch of time, wall clock, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// When the last daemon ended, or was last known to live.
    pub from_ns: i64,
    /// When the next one began.
    pub to_ns: i64,
}

impl Absence {
    fn holds(&self, time_ns: i64) -> bool {
        self.from_ns < time_ns && time_ns < self.to_ns
    }
}

fn nanoseconds(time: Time) -> i64 {
    time.sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nsec))
}

impl Timeline {
    /// A daemon begins to serve; the absence before it ends, if there was one.
    pub fn begin_service(&self, at_ns: i64, stopped_ns: Option<i64>) {
        if let Some(from_ns) = stopped_ns {
            self.inner.write().absences.push(Absence { from_ns, to_ns: at_ns });
        }
    }

    /// Whether the tree was ever left alone after this checkpoint. Nearly always not, and then nothing needs to be checked.
    pub fn was_absent_after(&self, id: CheckpointId) -> bool {
        let inner = self.inner.read();
        if inner.absences.is_empty() {
            return false;
        }
        let Some((checkpoint, _)) = inner.checkpoints.get(&id) else { return false };
        inner.absences.last().is_some_and(|absence| absence.to_ns > checkpoint.created_ns)
    }

    /// An inode with this ctime was changed while nobody served the tree, after this checkpoint.
    pub fn changed_in_absence(&self, ctime: Time, id: CheckpointId) -> bool {
        let inner = self.inner.read();
        let Some((checkpoint, _)) = inner.checkpoints.get(&id) else { return false };
        let time = nanoseconds(ctime);
        time > checkpoint.created_ns && inner.absences.iter().any(|absence| absence.holds(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_an_absence_do_not_belong_to_it() {
        let absence = Absence { from_ns: 10, to_ns: 20 };
        assert!(!absence.holds(10) && absence.holds(11) && absence.holds(19) && !absence.holds(20));
        assert_eq!(nanoseconds(Time { sec: -1, nsec: 5 }), -999_999_995);
    }
}
