//! Those who watch the conflicts of a tree: how many, how often, and until when.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::super::api::VerbResult;
use super::super::error::{Code, hinted};

/// How often it is looked whether something has changed, and so the most that is answered.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// Between two comparisons so many times as long as the last took.
const REST: u32 = 4;
/// So many watch a tree at once: each has a connection, and others need some.
const WATCHERS_MAX: usize = 16;

/// Those who watch a tree, and what they wait for.
#[derive(Default)]
pub struct Watchers {
    there: AtomicUsize,
    /// The branches that there are are mounted. While they are not, what they have is not gone.
    settled: AtomicBool,
    ended: AtomicBool,
    /// How long the last comparison took, nanoseconds.
    took_ns: AtomicU64,
}

impl Watchers {
    /// All branches are mounted, or are about to end.
    pub(super) fn settle(&self, settled: bool) {
        self.settled.store(settled, Ordering::SeqCst);
    }

    /// The tree is served no longer.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

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

    /// How long nothing is compared after a comparison.
    pub(super) fn rest(&self) -> Duration {
        let took = Duration::from_nanos(self.took_ns.load(Ordering::Relaxed));
        took.saturating_mul(REST).max(LOOK)
    }
}

/// One of them, until it is dropped.
pub(super) struct Watching<'a>(&'a Watchers);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.there.fetch_sub(1, Ordering::SeqCst);
    }
}
