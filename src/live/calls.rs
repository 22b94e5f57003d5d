//! Calls that another thread makes, because they may wait for a process of somebody else: see
//! `busy`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::store::ids::Slot;
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::{self, Errno, SysResult};

/// How long something waits for a process of somebody else before it fails.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(700);
/// How often it is asked whether to go on waiting.
const LOOK: Duration = Duration::from_millis(10);
/// Calls that may be under way at once on threads of ours.
const LENT_MAX: usize = 500;
/// Threads that are kept for the next call.
const IDLE_MAX: usize = 2;
/// How long a checkpoint waits for a process that is in its way, with nothing frozen.
const WAY_WAIT_MAX: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

/// What is under way. The mutexes are leaves.
#[derive(Default)]
pub struct Calls {
    calls: Mutex<HashMap<Slot, Arc<Call>>>,
    ended: Condvar,
    count: AtomicUsize,
    idle: Mutex<Vec<Sender<Job>>>,
    lent: AtomicUsize,
    /// What was last given up because of it.
    in_the_way: Mutex<Option<Slot>>,
}

#[derive(Default)]
pub(super) struct Call {
    given_up: AtomicBool,
    /// Somebody gives it up when it waits ([`Pace`]): for as long as it works it is waited for.
    paced: AtomicBool,
    /// The file was changed by who is alone in the tree.
    void: AtomicBool,
}

/// A file is claimed until this is dropped.
pub(super) struct Claim {
    calls: Weak<Calls>,
    slot: Slot,
    call: Arc<Call>,
}

impl Call {
    /// Nobody waits for it any more.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }
}

impl Claim {
    /// The call that it is for.
    pub(super) fn call(&self) -> Arc<Call> {
        Arc::clone(&self.call)
    }

    /// The file was changed by who is alone in the tree.
    pub(super) fn is_void(&self) -> bool {
        self.call.void.load(Ordering::SeqCst)
    }

    /// What is done under it is a step of a [`Pace`].
    pub(super) fn paced(self) -> Claim {
        self.call.paced.store(true, Ordering::SeqCst);
        self
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(calls) = self.calls.upgrade() else {
            return;
        };
        calls.calls.lock().remove(&self.slot);
        calls.count.fetch_sub(1, Ordering::SeqCst);
        calls.ended.notify_all();
    }
}

/// What passes between a thread that waits and the one that works for it.
struct Shared<T> {
    value: Option<T>,
    given_up: bool,
}

impl Calls {
    /// Claims a file; `None`: it is claimed.
    pub(super) fn claim(self: &Arc<Calls>, slot: Slot) -> Option<Claim> {
        let mut calls = self.calls.lock();
        if calls.contains_key(&slot) {
            return None;
        }
        let call = Arc::new(Call::default());
        calls.insert(slot, Arc::clone(&call));
        self.count.fetch_add(1, Ordering::SeqCst);
        Some(Claim {
            calls: Arc::downgrade(self),
            slot,
            call,
        })
    }

    /// A call is under way on the file.
    pub(super) fn is_claimed(&self, slot: Slot) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && self.calls.lock().contains_key(&slot)
    }

    /// Claims a file as soon as nobody else does.
    ///
    /// # Errors
    /// EBUSY: a call on it was given up and has not ended, or `limit` is over for one that nobody
    /// gives up.
    pub(super) fn await_claim(
        self: &Arc<Calls>,
        slot: Slot,
        limit: Option<Duration>,
    ) -> SysResult<Claim> {
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

    /// The file is in the way.
    pub(super) fn blame(&self, slot: Slot) -> Errno {
        *self.in_the_way.lock() = Some(slot);
        Errno::EBUSY
    }

    /// Has another thread do `work`, for as long as `patient` says; then it is given up, and `late`
    /// gets what comes of it.
    pub(super) fn lend<T: Send + 'static>(
        self: &Arc<Calls>,
        mut patient: impl FnMut() -> bool,
        work: impl FnOnce() -> T + Send + 'static,
        late: impl FnOnce(T) + Send + 'static,
    ) -> SysResult<T> {
        let shared = Arc::new((
            Mutex::new(Shared {
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

    fn start(self: &Arc<Calls>, job: Job) -> SysResult<()> {
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
    /// The content of a file is changed by who is alone in the tree: a capture that is being made
    /// beside is none.
    pub(super) fn void(&self, slot: Slot) {
        if let Some(call) = self.calls.lock().get(&slot) {
            call.void.store(true, Ordering::SeqCst);
        }
    }

    /// The file for which something was given up with EBUSY.
    pub fn in_the_way(&self) -> Option<Slot> {
        *self.in_the_way.lock()
    }

    /// Waits, with nothing held, until what was given up because of [`Calls::in_the_way`] has
    /// ended, so that it can be tried again; `false`: it does not end.
    pub fn await_way(&self) -> bool {
        let (began, slot) = (Instant::now(), self.in_the_way());
        while slot.is_some_and(|slot| self.is_claimed(slot)) && began.elapsed() < WAY_WAIT_MAX {
            thread::sleep(LOOK);
        }
        slot.is_some_and(|slot| !self.is_claimed(slot))
    }

    /// Something is tried anew.
    pub(super) fn forget_way(&self) {
        *self.in_the_way.lock() = None;
    }

    /// A cut, on a thread of its own, was given up while it waited for this file.
    pub(super) fn give_up(&self, pace: &Pace) -> Errno {
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

/// How far a `Cuts::cut` is, for who waits for it.
///
/// A call that works on, however long, is not taken for one that waits: the kernel runs its thread
/// now and then, or wakes it when the disk has done something.
#[derive(Default)]
pub(super) struct Pace {
    now: Mutex<Option<Step>>,
    /// How long calls did nothing, together.
    waited: Mutex<Duration>,
    /// Nobody waits any more.
    given_up: AtomicBool,
}

struct Step {
    slot: Slot,
    thread: i32,
    /// How often the thread had been run when it was last looked at, and when it had last been run
    /// since.
    runs: Option<u64>,
    idle_since: Instant,
}

impl Step {
    fn idle(&self) -> Duration {
        self.idle_since.elapsed().saturating_sub(OWN_TIME)
    }
}

/// What a call takes by itself, in a cut.
const OWN_TIME: Duration = Duration::from_millis(10);

impl Pace {
    /// Makes a call on a file, timed.
    pub(super) fn step<T>(&self, slot: Slot, call: impl FnOnce() -> SysResult<T>) -> SysResult<T> {
        *self.now.lock() = Some(Step {
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

    /// It has not waited for too long.
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
