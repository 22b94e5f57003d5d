//! `checkpoint --quiesce`: waiting for an instant at which nothing is being changed.

use std::time::{Duration, Instant};

use super::checkpoint::Checkpoints;
use crate::live::Freeze;
use crate::store::ids::Slot;
use crate::sys::SysResult;
use crate::sys::Time;
use crate::sys::lock::MutexGuard;

/// Nothing was changed for this part of the time that may be waited, within these bounds: then
/// nothing is in the middle of being changed.
const CALM_PART: u32 = 20;
const CALM_MIN: Duration = Duration::from_millis(20);
const CALM_MAX: Duration = Duration::from_millis(250);

/// What changes as soon as somebody changes anything in the tree, with or without a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stir {
    requests: u64,
    recordings: u64,
    hot: Vec<(Slot, u64, Time, Time)>,
}

/// A freeze, and what is known of the moment.
pub(super) struct Frozen<'a> {
    pub(super) freeze: Freeze<'a>,
    /// Every store that was made through a mapping is in the tree.
    pub(super) flushed: bool,
    /// If it was asked for: nothing was being changed.
    pub(super) calm: Option<bool>,
    /// One checkpoint at a time: held until the end of it.
    pub(super) _one_at_a_time: MutexGuard<'a, ()>,
}

impl Checkpoints {
    /// Freezes; with a time, at an instant when nothing is being changed, if there is one before it
    /// is over.
    ///
    /// # Errors
    /// EBUSY: see [`crate::live::Busy::freeze`].
    pub(super) fn freeze_within(&self, limit: Option<Duration>) -> SysResult<Frozen<'_>> {
        let until = limit.map(|limit| {
            (
                Instant::now() + limit,
                (limit / CALM_PART).clamp(CALM_MIN, CALM_MAX),
            )
        });
        loop {
            let calm = until.and_then(|(until, calm)| self.await_calm(until, calm));
            let one_at_a_time = self.checkpointing.lock();
            let (freeze, flushed) = self.freeze()?;
            let held = calm.is_some() && calm == self.stir().ok();
            if calm.is_none() || held {
                return Ok(Frozen {
                    freeze,
                    flushed,
                    calm: limit.map(|_| held),
                    _one_at_a_time: one_at_a_time,
                });
            }
        }
    }

    /// See [`Stir`].
    pub(super) fn stir(&self) -> SysResult<Stir> {
        Ok(Stir {
            requests: self.serving.counts.changes(),
            recordings: self.timeline().epochs.recordings(),
            hot: self.live.hot.state()?,
        })
    }

    /// Waits until nothing has changed for a moment; what it looks like then. `None`: the time is
    /// over.
    fn await_calm(&self, until: Instant, calm: Duration) -> Option<Stir> {
        loop {
            self.settle();
            self.live.hot.preflush();
            let before = self.stir().ok()?;
            std::thread::sleep(calm);
            if self.stir().ok()? == before {
                return Some(before);
            }
            if Instant::now() >= until {
                return None;
            }
        }
    }
}
