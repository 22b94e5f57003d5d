//! A thread that sees to something for as long as a tree is served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys::lock::{Condvar, Mutex};

/// The end of a mount waits so long for a round that is under way: a disk may not answer.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Starts, wakes and ends the thread.
#[derive(Default)]
pub(super) struct Worker {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stop: bool,
    running: bool,
    woken: bool,
}

impl Worker {
    /// Starts the thread. It is at its end when `work` is, and when that and all that it holds has
    /// been let go of.
    pub(super) fn start(
        self: &Arc<Worker>,
        name: &str,
        work: impl FnOnce(&Worker) + Send + 'static,
    ) -> std::io::Result<()> {
        let worker = Arc::clone(self);
        self.state.lock().running = true;
        let spawned = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                work(&worker);
                worker.state.lock().running = false;
                worker.changed.notify_all();
            });
        if spawned.is_err() {
            self.state.lock().running = false;
        }
        spawned.map(drop)
    }

    /// Has the thread look at once.
    pub(super) fn wake(&self) {
        self.state.lock().woken = true;
        self.changed.notify_all();
    }

    /// The thread shall end.
    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Asks the thread to end and waits until it has, but not for ever. `what` it is at: that is
    /// logged if it takes too long.
    pub(super) fn stop(&self, what: &str) {
        let mut state = self.state.lock();
        state.stop = true;
        self.changed.notify_all();
        let until = Instant::now() + STOP_MAX;
        while state.running {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::error!("{what} does not end");
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Waits for so long, or until it is woken; `false`: the thread shall end.
    pub(super) fn wait(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        let until = Instant::now() + pause;
        loop {
            if state.stop {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if std::mem::take(&mut state.woken) || left.is_zero() {
                return true;
            }
            self.changed.wait_for(&mut state, left);
        }
    }
}
