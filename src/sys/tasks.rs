//! Threads that everything in a process shares which does something now and then, or once: a thread
//! for each of them would sleep most of the time, and a process serves many trees.
//!
//! One thread, the **leader**, waits for the moment at which the next task is due. Before it does
//! the task it gives the lead to another thread, or starts one: a task may take as long as it
//! likes, and none waits for another. Two threads stay where nothing is due.
//!
//! **Locking.** The state is a leaf. No task runs, or is dropped, while it is held.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::lock::{Condvar, Mutex, MutexGuard};

/// Does something, and tells when to do so again; `None`: never.
type Round = Box<dyn FnMut() -> Option<Duration> + Send>;

/// Threads that wait for the lead.
const WAITING_MAX: usize = 1;

/// A task, until it is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task(u64);

struct Entry {
    /// `None` while it is being done.
    round: Option<Round>,
    due: Instant,
    /// It is to be done again at once.
    woken: bool,
    /// It is not to be done again.
    ends: bool,
}

struct State {
    tasks: BTreeMap<Task, Entry>,
    /// Those that are not being done.
    due: BTreeSet<(Instant, Task)>,
    /// The number of the newest.
    newest: u64,
    threads: usize,
    /// There is a leader.
    led: bool,
    /// Threads that wait for the lead.
    waiting: usize,
}

struct Tasks {
    state: Mutex<State>,
    /// Something else is due next.
    changed: Condvar,
    /// The lead is free.
    free: Condvar,
    /// A task is at its end.
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

/// Has `round` done after this pause, and again after the pause that it returns, until it returns
/// none.
///
/// # Errors
/// There is no thread for it, and none can be started.
pub fn every(
    pause: Duration,
    round: impl FnMut() -> Option<Duration> + Send + 'static,
) -> io::Result<Task> {
    TASKS.add(pause, Box::new(round))
}

/// Has `work` done once, after this pause.
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
    /// Has it done at once, or again at once if it is being done.
    pub fn wake(self) {
        TASKS.wake(self);
    }

    /// Has it not done again, and waits until it is not being done and all that it holds was let go
    /// of. `false`: that took longer than `limit`.
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
        let entry = Entry {
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

    /// Starts a thread, which was counted.
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

    /// Gives the lead to a thread that waits for it, or starts one. Where none can be started, what
    /// is due waits for this one.
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

    /// A task was done: it is due again, or at its end.
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

/// Takes what a task does, unless it is being done.
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
        // Each of them is being done until all are.
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
