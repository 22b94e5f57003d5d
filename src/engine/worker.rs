//! What is seen to for as long as a tree is served, now and then ([`crate::sys::tasks`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sys::lock::Mutex;
use crate::sys::tasks::{self, Task};

/// The end of a mount waits so long for a round that is under way: a disk may not answer.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Starts, wakes and ends it.
#[derive(Default)]
pub(super) struct Worker {
    stopped: AtomicBool,
    task: Mutex<Option<Task>>,
}

impl Worker {
    /// Has `round` done after this pause, and then after the pauses that it returns.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn start(
        self: &Arc<Worker>,
        pause: Duration,
        mut round: impl FnMut(&Worker) -> Option<Duration> + Send + 'static,
    ) -> std::io::Result<()> {
        let worker = Arc::clone(self);
        let task = tasks::every(pause, move || round(&worker))?;
        *self.task.lock() = Some(task);
        Ok(())
    }

    /// Has it looked at at once.
    pub(super) fn wake(&self) {
        let task = *self.task.lock();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// It shall end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Ends it, and waits for a round that is under way, but not for ever. `what` it is at: that is
    /// logged if it takes too long. All that it has was let go of then.
    pub(super) fn stop(&self, what: &str) {
        self.stopped.store(true, Ordering::Relaxed);
        let task = self.task.lock().take();
        if task.is_some_and(|task| !task.end(STOP_MAX)) {
            tracing::error!("{what} does not end");
        }
    }
}
