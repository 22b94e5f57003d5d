//! Long operations in time slices: each request returns a part, the client repeats it, and cancels
//! by not repeating it.

use std::time::{Duration, Instant};

use super::error;
use ckptfs_api::VerbResult;
use ckptfs_sys::lock::Mutex;

/// Duration of a slice.
pub(super) const PART_TIME: Duration = Duration::from_millis(200);

/// Runs steps until the time is up. Returns `false` after the last step.
pub(super) fn go_on(
    until: Instant,
    mut step: impl FnMut() -> VerbResult<bool>,
) -> VerbResult<bool> {
    while Instant::now() < until {
        if !step()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs in progress, at most `MAX`: beyond that the oldest is abandoned. A leaf lock.
pub(super) struct SlicedRuns<T, const MAX: usize = 4>(Mutex<UnderWay<T>>);

struct UnderWay<T> {
    /// Number of the newest.
    last: u64,
    runs: Vec<(u64, T)>,
}

impl<T, const MAX: usize> Default for SlicedRuns<T, MAX> {
    fn default() -> SlicedRuns<T, MAX> {
        SlicedRuns(Mutex::new(UnderWay {
            last: 0,
            runs: Vec::new(),
        }))
    }
}

impl<T, const MAX: usize> SlicedRuns<T, MAX> {
    /// Removes the run with this number to continue it, or begins one.
    pub(super) fn resume(
        &self,
        number: Option<u64>,
        begin: impl FnOnce() -> VerbResult<T>,
    ) -> VerbResult<T> {
        number.map_or_else(begin, |number| {
            self.remove(number).ok_or_else(error::unknown_run)
        })
    }

    /// Stores a run, and returns its number.
    pub(super) fn put(&self, number: Option<u64>, run: T) -> u64 {
        let mut under_way = self.0.lock();
        let number = number.unwrap_or(under_way.last + 1);
        under_way.last = under_way.last.max(number);
        if under_way.runs.len() >= MAX {
            under_way.runs.remove(0);
        }
        under_way.runs.push((number, run));
        number
    }

    /// Removes a run.
    pub(super) fn remove(&self, number: u64) -> Option<T> {
        let mut under_way = self.0.lock();
        let mut known = under_way.runs.iter();
        let at = known.position(|(known, _)| *known == number)?;
        Some(under_way.runs.remove(at).1)
    }

    /// Returns a shared run.
    pub(super) fn get(&self, number: u64) -> Option<T>
    where
        T: Clone,
    {
        let under_way = self.0.lock();
        let mut runs = under_way.runs.iter();
        runs.find(|(known, _)| *known == number)
            .map(|(_, run)| run.clone())
    }
}
