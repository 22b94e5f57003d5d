//! The thread that thins out the history by itself, if the store's configuration says so
//! (`retention.auto`).
//!
//! It asks for a run as anybody else does, a part at a time, so it holds no lock for longer, and
//! ends between two parts. It is no idle thread: one that holds a lock and is not run keeps
//! everybody waiting.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::gc::{Collector, GcOptions};
use super::retention::Retention;
use crate::store::record::Actor;
use crate::sys;
use crate::sys::lock::{Condvar, Mutex};

/// How often the configuration is looked at.
const PERIOD: Duration = Duration::from_secs(2);
/// A mount is left alone at first for so long, at most.
const SETTLE: Duration = Duration::from_secs(10);
/// The end of a mount waits so long for a part of a run.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Starts and ends the thread.
#[derive(Default)]
pub(super) struct Keeper {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stop: bool,
    running: bool,
}

impl Keeper {
    pub(super) fn start(self: &Arc<Keeper>, collector: &Arc<Collector>) -> std::io::Result<()> {
        let (keeper, collector) = (Arc::clone(self), Arc::downgrade(collector));
        self.state.lock().running = true;
        let spawned = std::thread::Builder::new()
            .name("keeper".into())
            .spawn(move || {
                keeper.run(&collector);
                keeper.state.lock().running = false;
                keeper.changed.notify_all();
            });
        if spawned.is_err() {
            self.state.lock().running = false;
        }
        spawned.map(drop)
    }

    /// Asks the thread to end and waits until it has, but not for ever: a disk may not answer.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        self.changed.notify_all();
        let until = Instant::now() + STOP_MAX;
        while state.running && Instant::now() < until {
            self.changed
                .wait_for(&mut state, until.saturating_duration_since(Instant::now()));
        }
    }

    /// Waits for a while; `false`: the thread shall end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        let until = Instant::now() + PERIOD;
        while !state.stop && Instant::now() < until {
            self.changed
                .wait_for(&mut state, until.saturating_duration_since(Instant::now()));
        }
        !state.stop
    }

    fn run(&self, collector: &Weak<Collector>) {
        let (started, mut last) = (Instant::now(), None::<Instant>);
        while self.wait() {
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
                self.thin_out(&collector, Retention::of(&settings));
                last = Some(Instant::now());
            }
        }
    }

    fn thin_out(&self, collector: &Collector, retention: Retention) {
        let (uid, gid) = sys::ids();
        let by = Actor {
            uid,
            gid,
            pid: std::process::id(),
            process: "ckptfs".to_owned(),
        };
        let mut options = GcOptions {
            retention,
            dry_run: false,
            run: None,
            automatic: true,
        };
        while !self.state.lock().stop {
            match collector.gc_for_a_while(&by, &options) {
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
}
