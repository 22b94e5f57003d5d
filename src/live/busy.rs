//! Calls on files that may wait for somebody else's process, and how nobody else comes to wait with them.
//!
//! The kernel locks a file while a process writes to it, and on XFS while one reads it; and a process that is copying from or to its memory meanwhile may wait
//! for as long as another likes that serves the memory (a mapping of a file of a FUSE filesystem). What else wants that lock then waits too: FICLONE,
//! truncate(2), chmod(2), setxattr(2), and whatever changes a name of the file. Where the kernel does the I/O (passthrough) an ordinary user can do that
//! to us, through a file that is open ([`Live::may_wait`]). So nothing of the kind is called under the freeze lock, the tree, or a stripe without a look:
//!
//! - **A capture** is made with no lock at all, under a **claim**: nobody changes the content of a claimed file, because whoever would must capture it first.
//!   The file was open to nobody for writing, so what was captured is what is recorded when the locks are taken again. The same goes for any large file, which takes
//!   its time to copy or to write back.
//! - **A change** first has the lock of the file taken and given back by a call that changes nothing ([`Live::probe`]), on another thread, at most
//!   [`WAIT_MAX`] long: then it fails with EBUSY, and nothing was done.
//! - **The cut**, in which all files must be of one instant, is made on another thread too, and given up when it has waited for so long.
//!
//! A call that is given up is still there, in the kernel, and ends some day. What it was to make is then removed by whoever made it; until that, its file stays claimed,
//! so that there is one such call for each file. Who waits does so on a thread that others do not depend on ([`crate::sys::wait`]).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::Live;
use super::find::At;
use super::nodes::{IoMode, Node, Nodes};
use crate::store::ids::{ObjectId, Slot};
use crate::store::record::Key;
use crate::sys::lock::{Condvar, Mutex, RwLockWriteGuard};
use crate::sys::{self, Errno, Kind, Open, SysResult, wait};

/// How long something waits for a process of somebody else before it fails.
pub const WAIT_MAX: Duration = Duration::from_millis(700);
/// How long changes that come may wait for those under way, before a freeze lets them pass and tries again.
const FREEZE_LOCK_WAIT: Duration = Duration::from_millis(250);
/// How long a checkpoint waits for a process that is in its way, with nothing frozen.
const WAY_WAIT_MAX: Duration = Duration::from_secs(2);
/// Between two tries.
const FREEZE_LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Tries of a freeze.
const FREEZE_LOCK_TRIES: u32 = 12;
/// How often it is asked whether to go on waiting.
const LOOK: Duration = Duration::from_millis(10);
/// A file of at most this many bytes is captured in less time than it takes to hand that to another thread and hear of it.
const CAPTURED_AT_ONCE_MAX: u64 = 1024 * 1024;
/// Threads that are kept for the next call.
const IDLE_MAX: usize = 2;
/// Calls that may be under way at once on threads of ours.
const LENT_MAX: usize = 500;
/// How long a close that is on its way is waited for.
const CLOSE_WAIT: Duration = Duration::from_micros(80);

type Job = Box<dyn FnOnce() + Send>;

/// What is under way. The mutexes are leaves.
#[derive(Default)]
pub(super) struct Busy {
    calls: Mutex<HashMap<Slot, Arc<Call>>>,
    ended: Condvar,
    count: AtomicUsize,
    idle: Mutex<Vec<Sender<Job>>>,
    lent: AtomicUsize,
    /// A handle was closed; goes with the lock of the nodes.
    pub(super) closed: Condvar,
    /// What was last given up because of it.
    in_the_way: Mutex<Option<Slot>>,
}

#[derive(Default)]
struct Call {
    given_up: AtomicBool,
    /// Somebody gives it up when it waits ([`Pace`]): for as long as it works it is waited for.
    paced: AtomicBool,
    /// The file was changed by who is alone in the tree.
    void: AtomicBool,
}

/// A file is claimed until this is dropped.
pub(super) struct Claim {
    busy: Weak<Busy>,
    slot: Slot,
    call: Arc<Call>,
}

impl Claim {
    /// What is done under it is a step of a [`Pace`].
    pub(super) fn paced(self) -> Claim {
        self.call.paced.store(true, Ordering::SeqCst);
        self
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(busy) = self.busy.upgrade() else { return };
        busy.calls.lock().remove(&self.slot);
        busy.count.fetch_sub(1, Ordering::SeqCst);
        busy.ended.notify_all();
    }
}

/// What must be done before something is tried again.
#[derive(Clone, Copy)]
enum Want {
    /// And whether the content may yet stay as it is.
    Capture(Slot, bool),
    /// And whether a close that is on its way is to be waited for.
    Probe(Slot, bool),
}

thread_local! {
    static WANT: Cell<Option<Want>> = const { Cell::new(None) };
    /// Files whose lock was free since the operation of this thread began.
    static PROBED: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
}

fn later(want: Want) -> Errno {
    WANT.set(Some(want));
    Errno::LATER
}

/// What passes between a thread that waits and the one that works for it.
struct Shared<T> {
    value: Option<T>,
    given_up: bool,
}

impl Busy {
    /// Claims a file; `None`: it is claimed.
    pub(super) fn claim(self: &Arc<Busy>, slot: Slot) -> Option<Claim> {
        let mut calls = self.calls.lock();
        if calls.contains_key(&slot) {
            return None;
        }
        let call = Arc::new(Call::default());
        calls.insert(slot, Arc::clone(&call));
        self.count.fetch_add(1, Ordering::SeqCst);
        Some(Claim { busy: Arc::downgrade(self), slot, call })
    }

    /// A call is under way on the file.
    pub(super) fn is_claimed(&self, slot: Slot) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && self.calls.lock().contains_key(&slot)
    }

    /// Claims a file as soon as nobody else does.
    ///
    /// # Errors
    /// EBUSY: a call on it was given up and has not ended, or `limit` is over for one that nobody gives up.
    pub(super) fn await_claim(self: &Arc<Busy>, slot: Slot, limit: Option<Duration>) -> SysResult<Claim> {
        let began = Instant::now();
        loop {
            if let Some(claim) = self.claim(slot) {
                return Ok(claim);
            }
            let mut calls = self.calls.lock();
            match calls.get(&slot) {
                Some(call)
                    if call.given_up.load(Ordering::SeqCst)
                        || (!call.paced.load(Ordering::SeqCst) && limit.is_some_and(|limit| began.elapsed() > limit)) =>
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
    fn blame(&self, slot: Slot) -> Errno {
        *self.in_the_way.lock() = Some(slot);
        Errno::EBUSY
    }

    /// Has another thread do `work`, for as long as `patient` says; then it is given up, and `late` gets what comes of it.
    pub(super) fn lend<T: Send + 'static>(
        self: &Arc<Busy>,
        mut patient: impl FnMut() -> bool,
        work: impl FnOnce() -> T + Send + 'static,
        late: impl FnOnce(T) + Send + 'static,
    ) -> SysResult<T> {
        let shared = Arc::new((Mutex::new(Shared { value: None, given_up: false }), Condvar::default()));
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

    fn start(self: &Arc<Busy>, job: Job) -> SysResult<()> {
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
        let busy = Arc::downgrade(self);
        let run = move || {
            let mut next = job;
            while let Some(job) = next.take() {
                job();
                let Some(busy) = busy.upgrade() else { return };
                let (sender, receiver) = channel();
                {
                    let mut idle = busy.idle.lock();
                    if idle.len() >= IDLE_MAX {
                        break;
                    }
                    idle.push(sender);
                }
                drop(busy);
                next = receiver.recv().ok();
            }
            if let Some(busy) = busy.upgrade() {
                busy.lent.fetch_sub(1, Ordering::SeqCst);
            }
        };
        thread::Builder::new().name("lent".to_owned()).spawn(run).map(drop).map_err(|error| {
            self.lent.fetch_sub(1, Ordering::SeqCst);
            error.into()
        })
    }
}

/// How far a [`Live::cut`] is, for who waits for it.
///
/// A call that works on, however long, is not taken for one that waits: the kernel runs its thread now and then, or wakes it when the disk has done something.
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
    /// How often the thread had been run when it was last looked at, and when it had last been run since.
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
        *self.now.lock() = Some(Step { slot, thread: sys::own_thread(), runs: None, idle_since: Instant::now() });
        let done = call();
        let step = self.now.lock().take();
        *self.waited.lock() += step.map_or(Duration::ZERO, |step| step.idle());
        if self.given_up.load(Ordering::SeqCst) { done.and(Err(Errno::EBUSY)) } else { done }
    }

    /// It has not waited for too long.
    pub(super) fn is_patient(&self) -> bool {
        let waited = *self.waited.lock();
        let mut now = self.now.lock();
        let Some(step) = now.as_mut().filter(|step| !step.idle().is_zero()) else { return waited < WAIT_MAX };
        let runs = sys::runs_of_thread(step.thread);
        if runs != step.runs {
            (step.runs, step.idle_since) = (runs, Instant::now());
        }
        waited + step.idle() < WAIT_MAX
    }
}

/// The kernel does the I/O of this file for such handles.
fn is_held_through(nodes: &Nodes, slot: Slot, handles: impl Fn(&Node) -> u32) -> bool {
    nodes.get(slot).is_some_and(|node| node.kind == Kind::File && node.io() == Some(IoMode::Passthrough) && handles(node) > 0)
}

/// Handles through which a file may be read, or mapped.
fn readers(node: &Node) -> u32 {
    node.handles().saturating_sub(node.writers()) + node.mappable()
}

/// The freeze lock, held for writing.
pub struct Freeze<'a> {
    live: &'a Live,
    /// When it was asked for: whoever came since waits.
    asked: Instant,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl Freeze<'_> {
    /// How long changes have waited by now.
    pub fn lasted(&self) -> Duration {
        self.asked.elapsed()
    }
}

impl Drop for Freeze<'_> {
    fn drop(&mut self) {
        self.live.frozen.store(false, Ordering::SeqCst);
    }
}

impl Live {
    /// A process may hold the lock of this file for as long as it likes: it has it open, and the kernel does its I/O. The caller holds the file's stripe,
    /// or the tree for writing, so that nobody opens it meanwhile.
    pub(super) fn may_wait(&self, slot: Slot) -> bool {
        is_held_through(&self.nodes.lock(), slot, Node::handles)
    }

    /// As [`Live::may_wait`], for what the kernel asked for: it lets nobody write to the file meanwhile, but it does let them read.
    fn may_wait_for_reader(&self, slot: Slot) -> bool {
        is_held_through(&self.nodes.lock(), slot, readers)
    }

    /// This thread, which holds the freeze lock, is alone in the tree, and whoever wants to change something waits for it.
    fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// Does `attempt`, again whenever something was to be waited for that must be waited for without a lock. It must not have changed anything then.
    pub(super) fn patiently<T>(&self, mut attempt: impl FnMut() -> SysResult<T>) -> SysResult<T> {
        PROBED.with_borrow_mut(Vec::clear);
        loop {
            match attempt() {
                Err(Errno::LATER) => match WANT.take() {
                    Some(Want::Capture(slot, provisional)) => wait::aside(|| self.capture_apart(slot, provisional))?,
                    Some(Want::Probe(slot, true)) if self.is_closed_soon(slot) => {}
                    Some(Want::Probe(slot, _)) => {
                        wait::aside(|| self.probe(slot))?;
                        PROBED.with_borrow_mut(|probed| probed.push(slot));
                    }
                    None => return Err(Errno::LATER),
                },
                result => return result,
            }
        }
    }

    /// Most files are closed just before their name is changed, and the kernel tells of the close beside.
    fn is_closed_soon(&self, slot: Slot) -> bool {
        let until = Instant::now() + CLOSE_WAIT;
        let mut nodes = self.nodes.lock();
        while is_held_through(&nodes, slot, readers) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.busy.closed.wait_for(&mut nodes, left);
        }
        true
    }

    /// The content of this file is to be changed: LATER, if it must be captured before, and that is done without any lock. The caller holds the freeze lock and the
    /// file's stripe.
    pub(super) fn capture_first(&self, slot: Slot, provisional: bool, size: impl FnOnce() -> SysResult<u64>) -> SysResult<()> {
        if !self.timeline.epochs.needs(&Key::Data(slot)) || self.is_dead(slot) || self.is_frozen() {
            return Ok(());
        }
        let apart = self.is_claimed(slot) || self.may_wait(slot) || size()? > CAPTURED_AT_ONCE_MAX;
        if apart { Err(later(Want::Capture(slot, provisional))) } else { Ok(()) }
    }

    /// Something is to be called that wants the lock of this file: LATER, if it is to be seen before that the lock can be had. The caller holds what
    /// [`Live::may_wait`] wants.
    pub(super) fn probe_first(&self, slot: Slot) -> SysResult<()> {
        self.probed(slot, false)
    }

    /// As [`Live::probe_first`], for a change of names: whoever changes attributes has the file open most of the time, whoever changes names has closed it.
    pub(super) fn probe_first_for_name(&self, slot: Slot) -> SysResult<()> {
        self.probed(slot, true)
    }

    fn probed(&self, slot: Slot, closes: bool) -> SysResult<()> {
        if self.is_frozen() {
            return self.probe_frozen(slot);
        }
        let free = !self.may_wait_for_reader(slot) || PROBED.with_borrow(|probed| probed.contains(&slot));
        if free { Ok(()) } else { Err(later(Want::Probe(slot, closes))) }
    }

    /// Before a call outside of all locks that wants the lock of a file: waits until it can be had, at most `WAIT_MAX`.
    ///
    /// # Errors
    /// EBUSY.
    pub fn await_free(&self, slot: Slot) -> SysResult<()> {
        self.patiently(|| {
            let _tree = self.tree.read();
            let _stripe = self.stripe(slot);
            self.probe_first(slot)
        })
    }

    /// Waits until the lock of a file can be had, at most `WAIT_MAX`.
    fn probe(&self, slot: Slot) -> SysResult<()> {
        let claim = self.busy.await_claim(slot, Some(WAIT_MAX))?;
        // Whoever cannot name it any more fails by itself.
        let Ok(fd) = self.fd(At::from(slot)) else { return Ok(()) };
        self.probe_fd(claim, &fd).map_err(|_| self.busy.blame(slot))
    }

    /// Removing an attribute that nobody has takes the lock of the file, and changes nothing.
    fn probe_fd(&self, claim: Claim, fd: &Arc<OwnedFd>) -> SysResult<()> {
        let (fd, began, call) = (Arc::clone(fd), Instant::now(), Arc::clone(&claim.call));
        let take_lock = move || {
            let _ = sys::removexattr(&fd, b"user.ckptfs.none");
            drop(claim);
        };
        self.busy.lend(|| began.elapsed() < WAIT_MAX, take_lock, drop).inspect_err(|_| call.given_up.store(true, Ordering::SeqCst))
    }

    /// Makes sure that the content of a file is kept, as [`Live::capture`] does, but with no lock held while that takes its time.
    fn capture_apart(&self, slot: Slot, provisional: bool) -> SysResult<()> {
        loop {
            let claim = self.busy.await_claim(slot, None)?;
            let file = {
                let _changing = self.freeze_lock.read();
                let _tree = self.tree.read();
                let _stripe = self.stripe(slot);
                if !self.timeline.epochs.needs(&Key::Data(slot)) || self.is_dead(slot) {
                    return Ok(());
                }
                self.open_file(slot.into(), Open::READ)?.0
            };
            let epoch = self.timeline.epochs.epoch();
            let kept = self.capture_object_in(epoch, slot, &file, sys::stat_fd(&file)?.size);
            let _changing = self.freeze_lock.read();
            let _tree = self.tree.read();
            let _stripe = self.stripe(slot);
            let object = match kept {
                // The layer of an epoch that was closed meanwhile may be gone.
                Err(_) if self.timeline.epochs.epoch() != epoch => continue,
                kept => kept?,
            };
            let stands = !claim.call.void.load(Ordering::SeqCst) && self.timeline.epochs.needs(&Key::Data(slot)) && !self.is_dead(slot);
            let recorded = if stands { self.record_apart(slot, &file, object, provisional) } else { Err(Errno::ESTALE) };
            if recorded.is_err() {
                object.into_iter().for_each(|object| self.drop_object(object));
            }
            if stands {
                return recorded;
            }
        }
    }

    /// Records what was captured apart, in the epoch that is open now. The caller holds the locks and the claim.
    fn record_apart(&self, slot: Slot, file: &File, object: Option<ObjectId>, provisional: bool) -> SysResult<()> {
        let (now, before) = (self.timeline.epochs.epoch(), object);
        let object = match object {
            Some(object) if object.epoch != now => Some(self.move_object(object, now)?),
            object => object,
        };
        let recorded = self.record_capture(slot.into(), file, object, &sys::stat_fd(file)?, provisional);
        if let (Err(_), Some(moved)) = (&recorded, object.filter(|_| object != before)) {
            self.drop_object(moved);
        }
        recorded
    }

    /// As [`Live::await_free`], by who is alone in the tree.
    ///
    /// # Errors
    /// EBUSY.
    pub fn probe_frozen(&self, slot: Slot) -> SysResult<()> {
        if self.may_wait(slot) { self.probe(slot) } else { Ok(()) }
    }

    /// Waits, with nothing held, until what was given up because of [`Live::in_the_way`] has ended, so that it can be tried again; `false`: it does not end.
    pub fn await_way(&self) -> bool {
        let (began, slot) = (Instant::now(), self.in_the_way());
        while slot.is_some_and(|slot| self.is_claimed(slot)) && began.elapsed() < WAY_WAIT_MAX {
            thread::sleep(LOOK);
        }
        slot.is_some_and(|slot| !self.is_claimed(slot))
    }

    /// A call is under way on the file that may wait.
    pub(super) fn is_claimed(&self, slot: Slot) -> bool {
        self.busy.is_claimed(slot)
    }

    /// The content of a file is changed by who is alone in the tree: a capture that is being made beside is none.
    pub(super) fn void_claim(&self, slot: Slot) {
        if let Some(call) = self.busy.calls.lock().get(&slot) {
            call.void.store(true, Ordering::SeqCst);
        }
    }

    /// Takes the freeze lock for writing: every change waits. Changes that come wait a moment at most for those under way that take long.
    ///
    /// # Errors
    /// EBUSY: one did not end.
    pub fn freeze(&self) -> SysResult<Freeze<'_>> {
        *self.busy.in_the_way.lock() = None;
        for _ in 0..FREEZE_LOCK_TRIES {
            let asked = Instant::now();
            if let Some(guard) = self.freeze_lock.try_write_for(FREEZE_LOCK_WAIT) {
                self.frozen.store(true, Ordering::SeqCst);
                return Ok(Freeze { live: self, asked, _guard: guard });
            }
            thread::sleep(FREEZE_LOCK_PAUSE);
        }
        Err(Errno::EBUSY)
    }

    /// The file for which something was given up with EBUSY.
    pub fn in_the_way(&self) -> Option<Slot> {
        *self.busy.in_the_way.lock()
    }

    /// A cut, on a thread of its own, was given up while it waited for this file.
    pub(super) fn give_up(&self, pace: &Pace) -> Errno {
        pace.given_up.store(true, Ordering::SeqCst);
        let Some(slot) = pace.now.lock().as_ref().map(|step| step.slot) else { return Errno::EBUSY };
        if let Some(call) = self.busy.calls.lock().get(&slot) {
            call.given_up.store(true, Ordering::SeqCst);
        }
        self.busy.blame(slot)
    }
}
