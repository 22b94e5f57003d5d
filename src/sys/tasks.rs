//! Periodic and delayed tasks of a process, on shared threads. With a thread per task most would
//! sleep, and one process serves many trees.
//!
//! One thread, the **leader**, waits until the next task is due. Before running it, the leader
//! passes the lead to another thread, or starts one, so a task may run for any time without
//! delaying others. Two threads remain when no task is due.
//!
//! **Locking.** The state is a leaf. No task runs or is dropped while it is held.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::lock::{Condvar, Mutex, MutexGuard};

/// Runs once and returns the pause before the next run, or `None` to end.
type Round = Box<dyn FnMut() -> Option<Duration> + Send>;

/// Maximum number of threads that wait for the lead.
const WAITING_MAX: usize = 1;

/// The number of a task, valid until the task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task(u64);

struct TaskEntry {
    /// `None` while it runs.
    round: Option<Round>,
    due: Instant,
    /// Run again at once.
    woken: bool,
    /// Do not run again.
    ends: bool,
}

struct State {
    tasks: BTreeMap<Task, TaskEntry>,
    /// Tasks that are not running, by due time.
    due: BTreeSet<(Instant, Task)>,
    /// The highest number in use.
    newest: u64,
    threads: usize,
    /// A leader exists.
    led: bool,
    /// Threads that wait for the lead.
    waiting: usize,
}

struct Tasks {
    state: Mutex<State>,
    /// Another task is due next.
    changed: Condvar,
    /// The lead is free.
    free: Condvar,
    /// A task has ended.
    ended: Condvar,
}

static TASKS: Tasks = Tasks {
    state: Mutex::new(State {
        tasks: BTreeMap::new(),
        due: BTreeSet::new(),
        newest: 0,
        threads: 0,
        led: false,
        waiting: 0,
    }),
    changed: Condvar::new(),
    free: Condvar::new(),
    ended: Condvar::new(),
};

/// Runs `round` after this pause, and again after each pause that it returns, until it returns
/// `None`.
///
/// # Errors
/// No thread exists for it, and none can be started.
pub fn every(
    pause: Duration,
    round: impl FnMut() -> Option<Duration> + Send + 'static,
) -> io::Result<Task> {
    TASKS.add(pause, Box::new(round))
}

/// Runs `work` once, after this pause.
///
/// # Errors
/// As [`every`].
pub fn once(pause: Duration, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut work = Some(work);
    let round = move || {
        if let Some(work) = work.take() {
            work();
        }
        None
    };
    TASKS.add(pause, Box::new(round)).map(drop)
}

impl Task {
    /// Runs the task at once, or again at once if it is running.
    pub fn wake(self) {
        TASKS.wake(self);
    }

    /// Ends the task, and waits until it is not running and its captures have been dropped. Returns
    /// `false` if that takes longer than `limit`.
    #[must_use]
    pub fn end(self, limit: Duration) -> bool {
        TASKS.end(self, limit)
    }
}

impl Tasks {
    fn add(&'static self, pause: Duration, round: Round) -> io::Result<Task> {
        let mut state = self.state.lock();
        if state.threads == 0 {
            state.threads = 1;
            drop(state);
            self.start()?;
            state = self.state.lock();
        }
        state.newest += 1;
        let (task, due) = (Task(state.newest), Instant::now() + pause);
        let entry = TaskEntry {
            round: Some(round),
            due,
            woken: false,
            ends: false,
        };
        state.tasks.insert(task, entry);
        state.due.insert((due, task));
        self.changed.notify_one();
        Ok(task)
    }

    /// Starts a thread, which the caller has counted.
    fn start(&'static self) -> io::Result<()> {
        let started = std::thread::Builder::new()
            .name("tasks".into())
            .spawn(move || self.serve());
        if started.is_err() {
            self.state.lock().threads -= 1;
        }
        started.map(drop)
    }

    fn serve(&'static self) {
        let mut guard = self.state.lock();
        loop {
            while guard.led {
                if guard.waiting >= WAITING_MAX {
                    guard.threads -= 1;
                    return;
                }
                guard.waiting += 1;
                self.free.wait(&mut guard);
                guard.waiting -= 1;
            }
            guard.led = true;
            let task = self.wait_due(&mut guard);
            guard.led = false;
            let round = take(&mut guard, task);
            guard = self.hand_on(guard);
            let Some(mut round) = round else { continue };
            drop(guard);
            let next = catch_unwind(AssertUnwindSafe(&mut round)).unwrap_or_else(|_| {
                tracing::error!("a task panicked, and is not done again");
                None
            });
            guard = self.put_back(task, round, next);
        }
    }

    /// Waits until a task is due.
    fn wait_due(&self, guard: &mut MutexGuard<'_, State>) -> Task {
        loop {
            let Some((at, task)) = guard.due.first().copied() else {
                self.changed.wait(guard);
                continue;
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return task;
            }
            self.changed.wait_for(guard, left);
        }
    }

    /// Passes the lead to a waiting thread, or starts one. If none can be started, due tasks wait
    /// for this thread.
    fn hand_on(&'static self, mut guard: MutexGuard<'static, State>) -> MutexGuard<'static, State> {
        if guard.waiting > 0 {
            self.free.notify_one();
            return guard;
        }
        guard.threads += 1;
        drop(guard);
        if let Err(error) = self.start() {
            tracing::debug!(%error, "tasks wait for one another");
        }
        self.state.lock()
    }

    /// Reschedules a task that has run, or ends it.
    fn put_back(
        &'static self,
        task: Task,
        round: Round,
        next: Option<Duration>,
    ) -> MutexGuard<'static, State> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let (Some(pause), Some(entry)) = (next, state.tasks.get_mut(&task))
            && !entry.ends
        {
            let pause = if std::mem::take(&mut entry.woken) {
                Duration::ZERO
            } else {
                pause
            };
            (entry.due, entry.round) = (Instant::now() + pause, Some(round));
            state.due.insert((entry.due, task));
            self.changed.notify_one();
            return guard;
        }
        drop(guard);
        drop(round);
        guard = self.state.lock();
        guard.tasks.remove(&task);
        self.ended.notify_all();
        guard
    }

    fn wake(&self, task: Task) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(entry) = state.tasks.get_mut(&task) else {
            return;
        };
        if entry.round.is_none() {
            entry.woken = true;
            return;
        }
        let now = Instant::now();
        state.due.remove(&(entry.due, task));
        state.due.insert((now, task));
        entry.due = now;
        self.changed.notify_one();
    }

    fn end(&self, task: Task, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(round) = take(state, task) {
            state.tasks.remove(&task);
            drop(guard);
            drop(round);
            return true;
        }
        if let Some(entry) = state.tasks.get_mut(&task) {
            entry.ends = true;
        }
        while guard.tasks.contains_key(&task) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.ended.wait_for(&mut guard, left);
        }
        true
    }
}

/// Takes the closure of a task out of its entry, unless it is running.
fn take(state: &mut State, task: Task) -> Option<Round> {
    let entry = state.tasks.get_mut(&task)?;
    let round = entry.round.take()?;
    state.due.remove(&(entry.due, task));
    Some(round)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn none_waits_for_another_and_what_has_ended_holds_nothing() {
        let (tell, told) = channel();
        let (go_on, waits) = channel::<()>();
        // Each of them runs until all do.
        for number in 0..20 {
            let tell = tell.clone();
            once(Duration::ZERO, move || tell.send(number).unwrap()).expect("a thread");
        }
        let blocked = every(Duration::ZERO, move || {
            tell.send(20).unwrap();
            waits.recv().ok()?;
            Some(LONG)
        });
        let blocked = blocked.expect("a thread");
        let mut all: Vec<i32> = (0..=20).map(|_| told.recv_timeout(LONG).unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..=20).collect::<Vec<_>>());
        assert!(!blocked.end(Duration::from_millis(1)), "it is being done");
        go_on.send(()).expect("it waits");
        assert!(blocked.end(LONG));
        assert!(told.recv().is_err(), "what it had was dropped");
        assert!(go_on.send(()).is_err());
    }

    #[test]
    fn a_task_that_is_woken_is_done_at_once_and_one_that_panics_never_again() {
        let (tell, told) = channel();
        let task = every(LONG, move || {
            tell.send(()).unwrap();
            Some(LONG)
        });
        let task = task.expect("a thread");
        task.wake();
        told.recv_timeout(LONG).expect("it was done");
        assert!(task.end(LONG));
        assert!(told.recv().is_err());
        let task = every(Duration::ZERO, || panic!("on purpose")).expect("a thread");
        assert!(task.end(LONG));
    }
}
