//! Periodic background tasks of a served tree ([`ckptfs_sys::tasks`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ckptfs_sys::lock::Mutex;
use ckptfs_sys::tasks::{self, Task};

/// Time that an unmount waits for a running round: a disk may not respond.
const STOP_MAX: Duration = Duration::from_secs(20);

/// A background task.
#[derive(Default)]
pub(super) struct Worker {
    stopped: AtomicBool,
    task: Mutex<Option<Task>>,
}

impl Worker {
    /// Runs `round` after `pause`, and then after each pause that it returns.
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

    /// Runs the next round at once.
    pub(super) fn wake(&self) {
        let task = *self.task.lock();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Returns whether the task must end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Ends the task, and waits for a running round with a timeout; logs `what` if it takes longer.
    /// Otherwise its resources are released on return.
    pub(super) fn stop(&self, what: &str) {
        self.stopped.store(true, Ordering::Relaxed);
        let task = self.task.lock().take();
        if task.is_some_and(|task| !task.end(STOP_MAX)) {
            tracing::error!("{what} does not end");
        }
    }
}
