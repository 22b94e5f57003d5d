//! The clients that watch the conflicts of a tree: their number, the polling interval, and the end.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::super::error::{Code, hinted};
use ckptfs_api::VerbResult;

/// Polling interval, and so the maximum rate of answers.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// Pause between two comparisons, as a multiple of the duration of the last one.
const REST: u32 = 4;
/// Limit of watchers of a tree: each uses a connection, and other clients need some.
const WATCHERS_MAX: usize = 16;

/// The watchers of a tree.
#[derive(Default)]
pub struct Watchers {
    there: AtomicUsize,
    /// All registered branches are mounted. While they are not, their conflicts have not
    /// disappeared.
    settled: AtomicBool,
    ended: AtomicBool,
    /// The duration of the last comparison, nanoseconds.
    took_ns: AtomicU64,
}

impl Watchers {
    /// Sets whether all branches are mounted.
    pub(super) fn settle(&self, settled: bool) {
        self.settled.store(settled, Ordering::SeqCst);
    }

    /// Ends all waits: the tree is no longer served.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Adds a watcher.
    ///
    /// # Errors
    /// `too-many-connections`.
    pub(super) fn enter(&self) -> VerbResult<Watching<'_>> {
        let one = Watching(self);
        if self.there.fetch_add(1, Ordering::SeqCst) >= WATCHERS_MAX {
            return Err(hinted(
                Code::TooManyConnections,
                format!("{WATCHERS_MAX} processes are already watching the conflicts of this tree"),
                "end one of them",
            ));
        }
        Ok(one)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::SeqCst)
    }

    pub(super) fn took(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.took_ns.store(time, Ordering::Relaxed);
    }

    /// Returns the pause after a comparison.
    pub(super) fn rest(&self) -> Duration {
        let took = Duration::from_nanos(self.took_ns.load(Ordering::Relaxed));
        took.saturating_mul(REST).max(LOOK)
    }
}

/// A watcher, until it is dropped.
pub(super) struct Watching<'a>(&'a Watchers);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.there.fetch_sub(1, Ordering::SeqCst);
    }
}
