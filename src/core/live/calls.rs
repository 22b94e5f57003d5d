//! System calls made on another thread because they may wait for another user's process: see
//! `busy`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::{self as sys, Errno, SysResult};

/// Longest wait for another user's process.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(700);
/// Interval at which a waiting thread checks its limit.
const LOOK: Duration = Duration::from_millis(10);
/// Maximum number of threads for such calls.
const LENT_MAX: usize = 500;
/// Idle threads kept for later calls.
const IDLE_MAX: usize = 2;
/// How long a checkpoint waits, without the freeze, for a process that blocks it.
const WAY_WAIT_MAX: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

/// Claimed files and running calls. The mutexes are leaves.
#[derive(Default)]
pub struct BlockingCalls {
    calls: Mutex<HashMap<Slot, Arc<BlockingCall>>>,
    ended: Condvar,
    count: AtomicUsize,
    idle: Mutex<Vec<Sender<Job>>>,
    lent: AtomicUsize,
    /// The file that last caused EBUSY.
    in_the_way: Mutex<Option<Slot>>,
}

#[derive(Default)]
pub(super) struct BlockingCall {
    given_up: AtomicBool,
    /// A [`StallWatch`] decides when to abandon the call: while it makes progress, others wait for
    /// it.
    paced: AtomicBool,
    /// A holder of the freeze lock changed the content of the file, so a concurrent capture is
    /// invalid.
    void: AtomicBool,
}

/// A claim on a file; dropping it releases the file.
pub(super) struct FileClaim {
    calls: Weak<BlockingCalls>,
    slot: Slot,
    call: Arc<BlockingCall>,
}

impl BlockingCall {
    /// Marks the call as abandoned.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }
}

impl FileClaim {
    /// Returns the call of this claim.
    pub(super) fn call(&self) -> Arc<BlockingCall> {
        Arc::clone(&self.call)
    }

    /// Returns whether the content changed during the claim, under the freeze lock.
    pub(super) fn is_void(&self) -> bool {
        self.call.void.load(Ordering::SeqCst)
    }

    /// Marks the claim as a step of a [`StallWatch`].
    pub(super) fn paced(self) -> FileClaim {
        self.call.paced.store(true, Ordering::SeqCst);
        self
    }
}

impl Drop for FileClaim {
    fn drop(&mut self) {
        let Some(calls) = self.calls.upgrade() else {
            return;
        };
        calls.calls.lock().remove(&self.slot);
        calls.count.fetch_sub(1, Ordering::SeqCst);
        calls.ended.notify_all();
    }
}

/// State shared by a waiting thread and its worker thread.
struct ThreadResult<T> {
    value: Option<T>,
    given_up: bool,
}

impl BlockingCalls {
    /// Claims a file. Returns `None` if it is claimed already.
    pub(super) fn claim(self: &Arc<BlockingCalls>, slot: Slot) -> Option<FileClaim> {
        let mut calls = self.calls.lock();
        if calls.contains_key(&slot) {
            return None;
        }
        let call = Arc::new(BlockingCall::default());
        calls.insert(slot, Arc::clone(&call));
        self.count.fetch_add(1, Ordering::SeqCst);
        Some(FileClaim {
            calls: Arc::downgrade(self),
            slot,
            call,
        })
    }

    /// Returns whether the file is claimed.
    pub(super) fn is_claimed(&self, slot: Slot) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && self.calls.lock().contains_key(&slot)
    }

    /// Waits until the file is free, and claims it.
    ///
    /// # Errors
    /// EBUSY: a call on the file was abandoned and has not ended, or `limit` has passed for a call
    /// that has no [`StallWatch`].
    pub(super) fn await_claim(
        self: &Arc<BlockingCalls>,
        slot: Slot,
        limit: Option<Duration>,
    ) -> SysResult<FileClaim> {
        let began = Instant::now();
        loop {
            if let Some(claim) = self.claim(slot) {
                return Ok(claim);
            }
            let mut calls = self.calls.lock();
            match calls.get(&slot) {
                Some(call)
                    if call.given_up.load(Ordering::SeqCst)
                        || (!call.paced.load(Ordering::SeqCst)
                            && limit.is_some_and(|limit| began.elapsed() > limit)) =>
                {
                    drop(calls);
                    return Err(self.blame(slot));
                }
                Some(_) => self.ended.wait_for(&mut calls, LOOK),
                None => {}
            }
        }
    }

    /// Records the file as the cause of EBUSY, and returns EBUSY.
    pub(super) fn blame(&self, slot: Slot) -> Errno {
        *self.in_the_way.lock() = Some(slot);
        Errno::EBUSY
    }

    /// Runs `work` on another thread and returns its result. When `patient` returns `false` the
    /// call is abandoned with EBUSY, and `late` receives the result.
    pub(super) fn lend<T: Send + 'static>(
        self: &Arc<BlockingCalls>,
        mut patient: impl FnMut() -> bool,
        work: impl FnOnce() -> T + Send + 'static,
        late: impl FnOnce(T) + Send + 'static,
    ) -> SysResult<T> {
        let shared = Arc::new((
            Mutex::new(ThreadResult {
                value: None,
                given_up: false,
            }),
            Condvar::default(),
        ));
        let theirs = Arc::clone(&shared);
        self.start(Box::new(move || {
            let value = work();
            let (state, done) = &*theirs;
            let mut state = state.lock();
            if state.given_up {
                drop(state);
                return late(value);
            }
            state.value = Some(value);
            done.notify_all();
        }))?;
        let (state, done) = &*shared;
        loop {
            let goes_on = patient();
            let mut state = state.lock();
            if let Some(value) = state.value.take() {
                return Ok(value);
            }
            if !goes_on {
                state.given_up = true;
                return Err(Errno::EBUSY);
            }
            done.wait_for(&mut state, LOOK);
            if let Some(value) = state.value.take() {
                return Ok(value);
            }
        }
    }

    fn start(self: &Arc<BlockingCalls>, job: Job) -> SysResult<()> {
        let mut job = Some(job);
        while let Some(idle) = { self.idle.lock().pop() } {
            match job.take().map(|job| idle.send(job)) {
                Some(Err(refused)) => job = Some(refused.0),
                _ => return Ok(()),
            }
        }
        if self.lent.fetch_add(1, Ordering::SeqCst) >= LENT_MAX {
            self.lent.fetch_sub(1, Ordering::SeqCst);
            return Err(Errno::EBUSY);
        }
        let calls = Arc::downgrade(self);
        let run = move || {
            let mut next = job;
            while let Some(job) = next.take() {
                job();
                let Some(calls) = calls.upgrade() else { return };
                let (sender, receiver) = channel();
                {
                    let mut idle = calls.idle.lock();
                    if idle.len() >= IDLE_MAX {
                        break;
                    }
                    idle.push(sender);
                }
                drop(calls);
                next = receiver.recv().ok();
            }
            if let Some(calls) = calls.upgrade() {
                calls.lent.fetch_sub(1, Ordering::SeqCst);
            }
        };
        thread::Builder::new()
            .name("lent".to_owned())
            .spawn(run)
            .map(drop)
            .map_err(|error| {
                self.lent.fetch_sub(1, Ordering::SeqCst);
                error.into()
            })
    }
    /// Invalidates a concurrent capture of a file whose content is about to change under the freeze
    /// lock.
    pub(super) fn void(&self, slot: Slot) {
        if let Some(call) = self.calls.lock().get(&slot) {
            call.void.store(true, Ordering::SeqCst);
        }
    }

    /// Returns the file that last caused EBUSY.
    pub fn in_the_way(&self) -> Option<Slot> {
        *self.in_the_way.lock()
    }

    /// Waits, without locks, for the end of the call on [`BlockingCalls::in_the_way`]. Returns
    /// whether a retry can succeed.
    pub fn await_way(&self) -> bool {
        let (began, slot) = (Instant::now(), self.in_the_way());
        while slot.is_some_and(|slot| self.is_claimed(slot)) && began.elapsed() < WAY_WAIT_MAX {
            thread::sleep(LOOK);
        }
        slot.is_some_and(|slot| !self.is_claimed(slot))
    }

    /// Clears [`BlockingCalls::in_the_way`] before a new attempt.
    pub(super) fn forget_way(&self) {
        *self.in_the_way.lock() = None;
    }

    /// Abandons a cut that runs on another thread, and records the file that it waits for.
    pub(super) fn give_up(&self, pace: &StallWatch) -> Errno {
        pace.given_up.store(true, Ordering::SeqCst);
        let Some(slot) = pace.now.lock().as_ref().map(|step| step.slot) else {
            return Errno::EBUSY;
        };
        if let Some(call) = self.calls.lock().get(&slot) {
            call.give_up();
        }
        self.blame(slot)
    }
}

/// Progress of a `Cuts::cut`, for the thread that waits for it.
///
/// A long call that makes progress does not count as waiting: its thread runs on a CPU now and
/// then, also when it is woken after disk I/O.
#[derive(Default)]
pub(super) struct StallWatch {
    now: Mutex<Option<StallStep>>,
    /// Total time without progress.
    waited: Mutex<Duration>,
    /// The waiting thread has abandoned the cut.
    given_up: AtomicBool,
}

struct StallStep {
    slot: Slot,
    thread: i32,
    /// How often the thread had been scheduled at the last check, and the time of the last observed
    /// progress.
    runs: Option<u64>,
    idle_since: Instant,
}

impl StallStep {
    fn idle(&self) -> Duration {
        self.idle_since.elapsed().saturating_sub(OWN_TIME)
    }
}

/// Time of a call that does not count as waiting.
const OWN_TIME: Duration = Duration::from_millis(10);

impl StallWatch {
    /// Runs a call on a file, and adds its waiting time to the total.
    pub(super) fn step<T>(&self, slot: Slot, call: impl FnOnce() -> SysResult<T>) -> SysResult<T> {
        *self.now.lock() = Some(StallStep {
            slot,
            thread: sys::own_thread(),
            runs: None,
            idle_since: Instant::now(),
        });
        let done = call();
        let step = self.now.lock().take();
        *self.waited.lock() += step.map_or(Duration::ZERO, |step| step.idle());
        if self.given_up.load(Ordering::SeqCst) {
            done.and(Err(Errno::EBUSY))
        } else {
            done
        }
    }

    /// Returns whether the total waiting time is below the limit.
    pub(super) fn is_patient(&self) -> bool {
        let waited = *self.waited.lock();
        let mut now = self.now.lock();
        let Some(step) = now.as_mut().filter(|step| !step.idle().is_zero()) else {
            return waited < WAIT_MAX;
        };
        let runs = sys::runs_of_thread(step.thread);
        if runs != step.runs {
            (step.runs, step.idle_since) = (runs, Instant::now());
        }
        waited + step.idle() < WAIT_MAX
    }
}
