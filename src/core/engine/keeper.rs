//! Automatic deletion of checkpoints: frees tripwire marks when space is short, and applies the
//! configured retention (`retention.auto`).
//!
//! It requests `gc` in parts as a client does, so it holds no lock for long, and stops between two
//! parts. It is not an idle-class thread: one that holds a lock without being scheduled would block
//! all others.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::auto::daemon;
use super::gc::GarbageCollector;
use super::retention::configured;
use super::worker::Worker;
use ckptfs_api::{GcOptions, Retention};
use ckptfs_store::record::CheckpointState;

/// Interval between reads of the configuration.
pub(super) const PERIOD: Duration = Duration::from_secs(2);

/// Schedules automatic runs.
pub(super) struct RetentionRunner {
    collector: Weak<GarbageCollector>,
    /// `retention.auto` as of the last round.
    every: Option<Duration>,
    /// End of the last run, or start of the mount or of this interval: the first run is one
    /// interval later.
    last: Instant,
}

impl RetentionRunner {
    pub(super) fn new(collector: Weak<GarbageCollector>) -> RetentionRunner {
        RetentionRunner {
            collector,
            every: None,
            last: Instant::now(),
        }
    }

    /// Does all work that is due. Returns the pause until the next round.
    pub(super) fn round(&mut self, worker: &Worker) -> Option<Duration> {
        let collector = self.collector.upgrade()?;
        yield_marks(&collector);
        let settings = collector.serving.settings();
        let every = settings.span("retention.auto");
        if every != self.every {
            (self.every, self.last) = (every, Instant::now());
        }
        let Some(every) = every else {
            return Some(PERIOD);
        };
        if self.last.elapsed() >= every {
            thin_out(worker, &collector, configured(&settings));
            self.last = Instant::now();
        }
        Some(PERIOD)
    }
}

/// Frees confirmed tripwire marks, oldest first, while space is short.
fn yield_marks(collector: &GarbageCollector) {
    let reserve = &collector.timeline().store().reserve;
    if !reserve.is_short() {
        return;
    }
    let yields = |kept: &CheckpointState| {
        kept.reason.is_mark() && kept.tags.is_empty() && kept.pinned.is_none()
    };
    let marks = collector.timeline().catalogue.newest(usize::MAX, yields);
    let mut freed = 0_u64;
    for mark in marks.iter().rev() {
        match collector.checkpoints.free_checkpoint(&daemon(), mark.id) {
            Ok(_) => {
                tracing::warn!(id = %mark.id, "space is short: a mark was freed");
                freed += 1;
            }
            Err(error) => tracing::warn!(%error.message, id = %mark.id, "a mark was not freed"),
        }
        if !reserve.is_short() {
            break;
        }
    }
    if freed > 0 {
        collector.yielded.fetch_add(freed, Ordering::Relaxed);
        collector.snapdir.snapdir_changed();
    }
}

fn thin_out(worker: &Worker, collector: &GarbageCollector, retention: Retention) {
    let mut options = GcOptions {
        retention,
        dry_run: false,
        run: None,
        automatic: true,
    };
    while !worker.is_stopped() {
        match collector.gc_for_a_while(&daemon(), &options) {
            Ok(report) if report.finished => {
                if !report.gone.is_empty() {
                    tracing::info!(
                        checkpoints = report.gone.len(),
                        bytes = report.freed_bytes,
                        "the history was thinned out"
                    );
                }
                return;
            }
            Ok(report) => options.run = Some(report.run),
            Err(error) => {
                tracing::warn!(%error, "the history cannot be thinned out");
                return;
            }
        }
    }
}
