//! The thread that thins out the history by itself, if the store's configuration says so
//! (`retention.auto`).
//!
//! It asks for a run as anybody else does, a part at a time, so it holds no lock for longer, and
//! ends between two parts. It is no idle thread: one that holds a lock and is not run keeps
//! everybody waiting.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::auto::daemon;
use super::gc::{Collector, GcOptions};
use super::retention::Retention;
use super::worker::Worker;

/// How often the configuration is looked at.
const PERIOD: Duration = Duration::from_secs(2);
/// A mount is left alone at first for so long, at most.
const SETTLE: Duration = Duration::from_secs(10);
/// Does so until the mount ends.
pub(super) fn run(keeper: &Worker, collector: &Weak<Collector>) {
    let (started, mut last) = (Instant::now(), None::<Instant>);
    while keeper.wait(PERIOD) {
        let Some(collector) = collector.upgrade() else {
            return;
        };
        let settings = collector.serving.settings();
        let Some(every) = settings.span("retention.auto") else {
            continue;
        };
        let due = last.map_or_else(
            || started.elapsed() >= every.min(SETTLE),
            |last| last.elapsed() >= every,
        );
        if due {
            thin_out(keeper, &collector, Retention::of(&settings));
            last = Some(Instant::now());
        }
    }
}

fn thin_out(keeper: &Worker, collector: &Collector, retention: Retention) {
    let mut options = GcOptions {
        retention,
        dry_run: false,
        run: None,
        automatic: true,
    };
    while !keeper.is_stopped() {
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
