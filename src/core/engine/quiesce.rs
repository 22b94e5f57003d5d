//! `checkpoint --quiesce`: waits for an instant without changes.

use std::time::{Duration, Instant};

use super::checkpoint::Checkpoints;
use crate::live::Freeze;
use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::MutexGuard;
use ckptfs_sys::{SysResult, Time};

/// The tree must be unchanged for this fraction of the time limit, within these bounds: then no
/// change is in progress.
const CALM_PART: u32 = 20;
const CALM_MIN: Duration = Duration::from_millis(20);
const CALM_MAX: Duration = Duration::from_millis(250);

/// A stamp that differs after any change of the tree, with or without a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ActivityStamp {
    requests: u64,
    recordings: u64,
    hot: Vec<(Slot, u64, Time, Time)>,
}

/// A freeze and the state of the tree at that instant.
pub(super) struct FrozenTree<'a> {
    pub(super) freeze: Freeze<'a>,
    /// The tree contains every store made through a mapping.
    pub(super) flushed: bool,
    /// With a time limit: nothing was being changed.
    pub(super) calm: Option<bool>,
    /// Held until the checkpoint is complete.
    pub(super) _one_at_a_time: MutexGuard<'a, ()>,
}

impl Checkpoints {
    /// Freezes the tree; with a limit, at an instant without changes if one occurs in time.
    ///
    /// # Errors
    /// EBUSY: see [`crate::live::LockWaits::freeze`].
    pub(super) fn freeze_within(&self, limit: Option<Duration>) -> SysResult<FrozenTree<'_>> {
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
                return Ok(FrozenTree {
                    freeze,
                    flushed,
                    calm: limit.map(|_| held),
                    _one_at_a_time: one_at_a_time,
                });
            }
        }
    }

    /// Returns the current stamp.
    pub(super) fn stir(&self) -> SysResult<ActivityStamp> {
        Ok(ActivityStamp {
            requests: self.serving.counts.changes(),
            recordings: self.timeline().epochs.recordings(),
            hot: self.live.hot.state()?,
        })
    }

    /// Waits until the tree has been unchanged for `calm`, and returns the stamp. `None`: the limit
    /// has passed.
    fn await_calm(&self, until: Instant, calm: Duration) -> Option<ActivityStamp> {
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
