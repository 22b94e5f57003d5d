//! Assignment of requests to threads.
//!
//! A few threads, the **readers**, read requests and execute them. A request that may take long is
//! handed to a **helper**, because it would keep a reader from serving others. These are:
//! - requests that wait for the disk by nature,
//! - requests that may wait for the reply to another request,
//! - every kind of request that recently waited (a cold cache). When the kind becomes fast again,
//!   readers execute it again.
//!
//! A sync of a file or directory stays on its reader while another reader is not in a sync, because
//! for a program that syncs constantly the wakeup of a helper dominates the cost. A reader also
//! never waits for another user's process: a helper executes the request again, and another helper
//! replaces the one that waits ([`ckptfs_sys::wait`]).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::eio_log;
use ckptfs_api::microseconds;
use ckptfs_core::engine::counts::{RequestCounts, RequestKind as Kind};
use ckptfs_core::engine::request::NodeId;
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::wait::{self, WaitPool};
use ckptfs_sys::{self as sys};

/// A kind of request that waits longer than this is handed to helpers: about twice the cost of
/// waking one.
const SLOW: Duration = Duration::from_micros(120);
/// Upper bound of a sample, so that one request that waited for the disk does not redirect
/// hundreds.
const COUNTED_MAX: Duration = Duration::from_micros(600);
/// After a sync that took longer, the next one goes to a helper: the reader would be blocked too
/// long, and the cost of a wakeup is negligible in comparison.
const SYNC_LONG: Duration = Duration::from_millis(5);
/// The latest request has the weight 1/`PACE_WEIGHT` in the moving average of its kind.
const PACE_WEIGHT: u32 = 8;
/// Maximum number of helpers, created on demand.
const HELPERS_MAX: usize = 16;
/// Maximum number of helpers that wait for another user's process; they are not counted in
/// [`HELPERS_MAX`].
const WAITING_MAX: usize = 500;
/// After a slow request, the next requests of its kind, up to this number, are checked for whether
/// they wait or only compete for the CPU.
const WATCHED: u32 = 64;

/// Idle time after which a helper ends.
const LINGER: Duration = Duration::from_secs(1);

/// Maximum time for helpers to finish at the end of the session.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// A queue from which any free helper takes the next job. The mutex is a leaf.
///
/// It is not a channel: a thread that waits on a channel, or on the lock of its receiver, first
/// spins on the CPU that the client needs.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

#[derive(Default)]
struct Jobs {
    next: VecDeque<Job>,
    /// No more jobs come.
    ended: bool,
}

impl Queue {
    fn put(&self, job: Job) {
        self.jobs.lock().next.push_back(job);
        self.more.notify_one();
    }

    /// Waits for a job. `None`: no more jobs come, or none came for [`LINGER`]. Calls `ends` in
    /// that case, before another job can be added.
    fn take(&self, ends: impl FnOnce()) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        let until = Instant::now() + LINGER;
        loop {
            if let Some(job) = jobs.next.pop_front() {
                return Some(job);
            }
            let left = until.saturating_duration_since(Instant::now());
            if jobs.ended || left.is_zero() {
                ends();
                return None;
            }
            self.more.wait_for(&mut jobs, left);
        }
    }

    /// Takes the next job without waiting.
    fn next(&self) -> Option<Job> {
        self.jobs.lock().next.pop_front()
    }
}

/// Chooses the thread of each request, counts requests, and executes them.
pub struct Dispatcher {
    counts: Arc<RequestCounts>,
    readers: usize,
    /// Readers that are in a sync, or about to be; always fewer than all.
    syncing: AtomicUsize,
    /// Duration of the last sync in microseconds.
    last_sync: AtomicU64,
    /// Moving average of the waiting time of each kind in nanoseconds; 0 if none waited.
    paces: [AtomicU32; Kind::ALL.len()],
    /// Requests of each kind still to be checked after a slow one.
    watched: [AtomicU32; Kind::ALL.len()],
    helpers: Arc<Helpers>,
}

impl Dispatcher {
    pub fn new(counts: Arc<RequestCounts>, readers: usize) -> Self {
        Self {
            counts,
            readers,
            syncing: AtomicUsize::new(0),
            last_sync: AtomicU64::new(0),
            paces: [const { AtomicU32::new(0) }; Kind::ALL.len()],
            watched: [const { AtomicU32::new(0) }; Kind::ALL.len()],
            helpers: Arc::default(),
        }
    }

    /// Returns whether a request of this kind, read by a reader, goes to a helper. If not, the
    /// caller executes it with [`Dispatcher::here`]; for a sync this call has reserved the reader.
    pub fn hands_on(&self, kind: Kind) -> bool {
        if is_sync(kind) {
            let reserve = |syncing| (syncing + 1 < self.readers).then_some(syncing + 1);
            let is_long = Duration::from_micros(self.last_sync.load(Ordering::Relaxed)) > SYNC_LONG;
            return is_long
                || self
                    .syncing
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve)
                    .is_err();
        }
        waits_for_disk(kind) || self.pace(kind) > SLOW
    }

    fn pace(&self, kind: Kind) -> Duration {
        Duration::from_nanos(
            self.paces
                .get(kind as usize)
                .map_or(0, |pace| pace.load(Ordering::Relaxed))
                .into(),
        )
    }

    /// Executes a request on this thread, which has read it. If the handler panics, its reply has
    /// sent EIO by the time this returns.
    pub fn here(&self, kind: Kind, handler: impl FnOnce()) {
        self.counts.count(kind);
        self.timed(kind, None, handler);
        if is_sync(kind) {
            self.syncing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Hands a request to a helper, and returns at once.
    pub fn apart(self: &Arc<Self>, kind: Kind, handler: impl FnOnce() + Send + 'static) {
        self.counts.count(kind);
        self.again(kind, handler);
    }

    /// As [`Dispatcher::apart`], for a request that a reader could not complete.
    pub fn again(self: &Arc<Self>, kind: Kind, handler: impl FnOnce() + Send + 'static) {
        let (this, node) = (Arc::clone(self), eio_log::hand_on());
        self.helpers
            .give(Box::new(move || this.timed(kind, node, handler)));
    }

    /// Waits until helpers have finished their jobs, up to [`IDLE_WAIT_MAX`]: after the end of the
    /// session the kernel waits for no reply.
    pub fn wait_idle(&self) {
        let began = Instant::now();
        while self.helpers.under_way.load(Ordering::Relaxed) > 0 && began.elapsed() < IDLE_WAIT_MAX
        {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a handler and updates the pace of its kind. Only requests that waited count: on a busy
    /// machine every request is slow at times, and a handover would delay it further.
    fn timed(&self, kind: Kind, node: Option<NodeId>, handler: impl FnOnce()) {
        let (Some(pace), Some(watched)) = (
            self.paces.get(kind as usize),
            self.watched.get(kind as usize),
        ) else {
            return;
        };
        let watching = watched.load(Ordering::Relaxed);
        let waits = if watching > 0 {
            sys::waits_of_thread()
        } else {
            None
        };
        let began = Instant::now();
        eio_log::begin(kind, node);
        if catch_unwind(AssertUnwindSafe(handler)).is_err() {
            tracing::error!(
                request = kind.name(),
                "a request panicked and was answered with EIO"
            );
        }
        eio_log::end();
        let took = began.elapsed();
        if is_sync(kind) {
            self.last_sync.store(microseconds(took), Ordering::Relaxed);
        }
        // Concurrent updates by two threads lose one of two samples.
        if took > SLOW {
            watched.store(WATCHED, Ordering::Relaxed);
        } else if watching > 0 {
            watched.store(watching - 1, Ordering::Relaxed);
        }
        let waited =
            took > SLOW && waits.is_some_and(|before| sys::waits_of_thread() != Some(before));
        let sample = if waited {
            u32::try_from(took.min(COUNTED_MAX).as_nanos()).unwrap_or(u32::MAX)
        } else {
            0
        };
        let before = pace.load(Ordering::Relaxed);
        if before | sample != 0 {
            pace.store(
                before - before.div_ceil(PACE_WEIGHT) + sample / PACE_WEIGHT,
                Ordering::Relaxed,
            );
        }
    }
}

/// Requests that a reader may execute although they wait for the disk.
fn is_sync(kind: Kind) -> bool {
    matches!(kind, Kind::Fsync | Kind::Fsyncdir)
}

/// Requests that wait for the disk by nature.
fn waits_for_disk(kind: Kind) -> bool {
    matches!(kind, Kind::Fallocate | Kind::CopyFileRange)
}

/// Threads that execute the jobs handed to them. After a drop they finish the queued jobs and end.
#[derive(Default)]
struct Helpers {
    queue: Arc<Queue>,
    /// Jobs queued or running: each has a helper, up to the maximum.
    under_way: AtomicUsize,
    made: AtomicUsize,
    /// Helpers that wait for another user's process, and are replaced by others.
    waiting: AtomicUsize,
}

/// The pool as its helpers reference it: they end when it is dropped.
struct Pool(Weak<Helpers>);

impl WaitPool for Pool {
    fn leave(&self) -> bool {
        let Some(helpers) = self.0.upgrade() else {
            return true;
        };
        if helpers.waiting.fetch_add(1, Ordering::SeqCst) >= WAITING_MAX {
            helpers.waiting.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        helpers.make_if_needed();
        true
    }

    fn back(&self) {
        if let Some(helpers) = self.0.upgrade() {
            helpers.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Helpers {
    fn give(self: &Arc<Self>, job: Job) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        // In this order: a helper that ends for lack of jobs must be uncounted before the job is
        // added.
        self.queue.put(job);
        self.make_if_needed();
        if self.made.load(Ordering::SeqCst) > 0 {
            return;
        }
        // Without any helper the job would never run.
        if let Some(job) = self.queue.next() {
            job();
            self.under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Current maximum number of helpers.
    fn helpers_max(&self) -> usize {
        HELPERS_MAX + self.waiting.load(Ordering::SeqCst)
    }

    fn make_if_needed(self: &Arc<Self>) {
        let made = self.made.load(Ordering::SeqCst);
        if self.under_way.load(Ordering::SeqCst) > made && made < self.helpers_max() {
            self.make();
        }
    }

    fn make(self: &Arc<Self>) {
        let queue = Arc::clone(&self.queue);
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let pool = Arc::downgrade(self);
        let work = move || {
            wait::relieved_by(Arc::new(Pool(Weak::clone(&pool))));
            let ends = || {
                if let Some(helpers) = pool.upgrade() {
                    helpers.made.fetch_sub(1, Ordering::SeqCst);
                }
            };
            while let Some(job) = queue.take(ends) {
                job();
                let Some(helpers) = pool.upgrade() else {
                    continue;
                };
                helpers.under_way.fetch_sub(1, Ordering::SeqCst);
                if helpers.made.load(Ordering::SeqCst) > helpers.helpers_max() {
                    helpers.made.fetch_sub(1, Ordering::SeqCst);
                    return;
                }
            }
        };
        if let Err(error) = thread::Builder::new()
            .name(format!("fuse-helper-{number}"))
            .spawn(work)
        {
            self.made.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "no thread for slow requests");
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.queue.jobs.lock().ended = true;
        self.queue.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn dispatcher() -> Arc<Dispatcher> {
        Arc::new(Dispatcher::new(Arc::default(), 2))
    }

    #[test]
    fn a_reader_syncs_by_itself_and_one_never_does() {
        let dispatcher = dispatcher();
        assert!(!dispatcher.hands_on(Kind::Fsync));
        assert!(
            dispatcher.hands_on(Kind::Fsync) && dispatcher.hands_on(Kind::Fsyncdir),
            "the other reader is for everybody else"
        );
        assert!(!dispatcher.hands_on(Kind::Lookup));
        dispatcher.here(Kind::Fsync, || panic!("on purpose"));
        let took = |time| {
            dispatcher
                .last_sync
                .store(microseconds(time), Ordering::Relaxed)
        };
        for _ in 0..20 {
            took(4 * SLOW);
            assert!(
                !dispatcher.hands_on(Kind::Fsyncdir),
                "that it takes long is no news"
            );
            dispatcher.here(Kind::Fsyncdir, || {});
        }
        took(Duration::ZERO);
        assert!(!dispatcher.hands_on(Kind::Fsync));
        dispatcher.here(Kind::Fsync, || thread::sleep(2 * SYNC_LONG));
        assert!(
            dispatcher.hands_on(Kind::Fsync),
            "so long nobody may miss a reader"
        );
        took(4 * SLOW);
        assert!(
            !dispatcher.hands_on(Kind::Fsync),
            "the last was quick, and what was handed on has reserved nothing"
        );
        assert!(
            Dispatcher::new(Arc::default(), 1).hands_on(Kind::Fsync),
            "there is no other"
        );
    }

    #[test]
    fn a_kind_that_is_slow_is_handed_on_until_it_is_quick_again() {
        let dispatcher = dispatcher();
        assert!(!dispatcher.hands_on(Kind::Lookup));
        let busy = || {
            let began = Instant::now();
            while began.elapsed() < 4 * SLOW {}
        };
        (0..20).for_each(|_| dispatcher.here(Kind::Getattr, busy));
        dispatcher.here(Kind::Lookup, || thread::sleep(Duration::from_millis(1)));
        assert!(!dispatcher.hands_on(Kind::Lookup), "once is no habit");
        for _ in 0..4 {
            dispatcher.here(Kind::Lookup, || thread::sleep(Duration::from_millis(1)));
        }
        assert!(dispatcher.hands_on(Kind::Lookup));
        assert!(
            !dispatcher.hands_on(Kind::Getattr),
            "what works long does not wait"
        );
        let mut quick = 0;
        while dispatcher.hands_on(Kind::Lookup) && quick < 1_000 {
            dispatcher.here(Kind::Lookup, || {});
            quick += 1;
        }
        assert!(quick < 1_000);
    }

    #[test]
    fn helpers_do_not_wait_for_each_other() {
        let dispatcher = dispatcher();
        let (go, wait) = mpsc::channel::<()>();
        let (done, results) = mpsc::channel();
        let first = done.clone();
        dispatcher.apart(Kind::Fsync, move || {
            let _ = wait.recv();
            first.send(1).expect("send");
        });
        dispatcher.apart(Kind::Fsync, move || done.send(2).expect("send"));
        assert_eq!(
            results.recv(),
            Ok(2),
            "the second does not wait for the first"
        );
        go.send(()).expect("send");
        dispatcher.wait_idle();
        assert_eq!(
            results.try_recv(),
            Ok(1),
            "who waits for helpers finds their work done"
        );
    }

    #[test]
    fn helpers_that_wait_for_somebody_else_are_replaced() {
        let dispatcher = dispatcher();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..3 * HELPERS_MAX {
            let wait = Arc::clone(&wait);
            dispatcher.apart(Kind::Open, move || {
                let waited = wait::aside(|| {
                    let _ = wait.lock().recv();
                    Ok(())
                });
                waited.expect("not too many");
            });
        }
        let (done, results) = mpsc::channel();
        dispatcher.apart(Kind::Fsync, move || done.send(()).expect("send"));
        assert_eq!(
            results.recv_timeout(Duration::from_secs(10)),
            Ok(()),
            "others are served meanwhile"
        );
        drop(go);
        dispatcher.wait_idle();
        (0..2 * HELPERS_MAX).for_each(|_| dispatcher.apart(Kind::Fsync, || {}));
        dispatcher.wait_idle();
        assert!(
            dispatcher.helpers.made.load(Ordering::SeqCst) <= HELPERS_MAX,
            "those that are too many end"
        );
    }

    #[test]
    fn a_panic_ends_neither_the_reader_nor_a_helper() {
        let dispatcher = dispatcher();
        dispatcher.here(Kind::Lookup, || panic!("on purpose"));
        dispatcher.apart(Kind::Fsync, || panic!("on purpose"));
        let (done, results) = mpsc::channel();
        dispatcher.apart(Kind::Fsync, move || done.send(()).expect("send"));
        assert_eq!(results.recv(), Ok(()));
    }
}
