//! Start, wake-up and end of the idle threads that process closed epochs, and the health of the
//! index, which one of them fills.
//!
//! A thread exists only while it has work, and a moment longer: a daemon serves many trees, most of
//! which are idle.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ckptfs_store::StoreError;
use ckptfs_sys as sys;
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::tasks;

/// Delay of the indexer after a checkpoint: often another checkpoint or more work follows at once.
const SETTLE: Duration = Duration::from_millis(300);

/// A thread without work ends after this time.
const LINGER: Duration = Duration::from_secs(1);

/// After this time a pending call of the index may be starved of processor time; its thread gets
/// normal priority.
const SLOW: Duration = Duration::from_secs(30);
/// After this time a pending call of the index counts as failed.
const STUCK: Duration = Duration::from_secs(120);
/// Maximum time that an unmount waits for a call of the index.
const STOP_MAX: Duration = Duration::from_secs(20);
/// Number of closed epochs in memory from which look-ups become slow. They are indexed at once,
/// with normal priority, even during an unmount.
pub(super) const HURRY_EPOCHS: usize = 64;
/// Maximum time that an unmount waits for that; the next mount continues.
const HURRY_STOP_MAX: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Signals {
    epoch_closed: bool,
    /// The backlog is too long.
    hurry: bool,
    /// When the end was requested.
    stop: Option<Instant>,
    /// Number of [`Hold`]s.
    held: u32,
    /// The thread is running or being started.
    running: bool,
    /// The thread has ended permanently.
    over: bool,
    thread: Option<i32>,
    /// Start of the pending call of the index.
    calling: Option<Instant>,
    /// Why the index is unusable.
    trouble: Option<IndexFailure>,
}

impl Signals {
    /// Whether the thread must end now.
    fn ends(&self) -> bool {
        self.stop
            .is_some_and(|asked| !self.hurry || asked.elapsed() > HURRY_STOP_MAX)
    }

    /// Whether a thread must be started; it then counts as running.
    fn needs_thread(&mut self) -> bool {
        let needs = self.epoch_closed && !self.running && !self.over && self.stop.is_none();
        self.running |= needs;
        needs
    }
}

/// Why the index is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexFailure {
    pub(super) why: String,
    /// Only space was lacking; it may work again later.
    pub(super) full: bool,
}

/// Wakes and ends an idle thread that processes closed epochs.
#[derive(Default)]
pub struct IdleThread {
    signals: Mutex<Signals>,
    changed: Condvar,
    /// Starts the thread.
    starter: OnceLock<Arc<dyn Fn() + Send + Sync>>,
}

impl IdleThread {
    /// Notifies the thread of a closed epoch.
    pub fn epoch_closed(&self) {
        self.signals.lock().epoch_closed = true;
        if let Err(error) = self.go_on() {
            tracing::warn!(%error, "there is no thread for closed epochs; the next checkpoint tries again");
        }
    }

    /// Wakes the thread, or has another thread start it, because starting one takes too long for
    /// the caller.
    fn go_on(&self) -> std::io::Result<()> {
        let Some(starter) = self.starter.get() else {
            return Ok(());
        };
        if !self.signals.lock().needs_thread() {
            self.changed.notify_all();
            return Ok(());
        }
        let starter = Arc::clone(starter);
        tasks::once(Duration::ZERO, move || starter())
            .inspect_err(|_| self.signals.lock().running = false)
    }

    /// Prevents the thread from starting work until the guard is dropped, unless the backlog is too
    /// long. The caller needs the memory and processor time.
    pub fn hold(&self) -> Hold<'_> {
        self.signals.lock().held += 1;
        Hold(self)
    }

    /// Requests the end of the thread and waits for it, with normal priority. On a busy machine an
    /// idle thread may not run for half a minute, which would delay an unmount.
    pub fn stop(&self) {
        let mut signals = self.signals.lock();
        signals.stop.get_or_insert_with(Instant::now);
        if let Some(errno) = signals
            .thread
            .and_then(|thread| sys::set_thread_normal(thread).err())
        {
            tracing::debug!(%errno, "a thread stays idle");
        }
        self.changed.notify_all();
        let until = Instant::now() + STOP_MAX;
        while signals.running {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::error!("the index does not answer; it is left as it is");
                signals.trouble.get_or_insert(IndexFailure {
                    why: "it does not answer".into(),
                    full: false,
                });
                return;
            }
            self.changed.wait_for(&mut signals, left);
        }
    }

    /// Marks the index as failed; its answers are no longer used. `full`: for lack of space. The
    /// first reason is kept until the index works again.
    pub(super) fn index_failed(&self, error: &StoreError, full: bool) {
        self.fail(describe(error), full);
        // If only space was lacking, its thread rebuilds it.
        self.epoch_closed();
    }

    /// Marks the index as working.
    pub(super) fn index_works(&self) {
        self.signals.lock().trouble = None;
        self.epoch_closed();
    }

    fn fail(&self, why: String, full: bool) {
        let mut signals = self.signals.lock();
        if signals.trouble.is_none() {
            tracing::error!(why, full, "the index failed");
            signals.trouble = Some(IndexFailure { why, full });
        }
    }

    /// Whether the index failed only for lack of space.
    pub(super) fn lacks_room(&self) -> bool {
        self.signals
            .lock()
            .trouble
            .as_ref()
            .is_some_and(|trouble| trouble.full)
    }

    /// Notes the start (`Some`) or the return (`None`) of a call of the index.
    pub(super) fn calls(&self, since: Option<Instant>) {
        self.signals.lock().calling = since;
    }

    /// Returns why the index is unusable, if so, and whether only for lack of space.
    pub(super) fn trouble(&self, now: Instant) -> Option<IndexFailure> {
        let mut signals = self.signals.lock();
        if signals.trouble.is_some() {
            return signals.trouble.clone();
        }
        let since = now.saturating_duration_since(signals.calling?);
        if since > SLOW
            && let Some(thread) = signals.thread.take()
        {
            let _ = sys::set_thread_normal(thread);
        }
        (since > STUCK).then(|| IndexFailure {
            why: format!("it has not answered for {} s", since.as_secs()),
            full: false,
        })
    }

    /// Waits; returns `false` if the thread must end.
    pub fn pause(&self, limit: Duration) -> bool {
        let mut signals = self.signals.lock();
        let until = Instant::now() + limit;
        while signals.stop.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            self.changed.wait_for(&mut signals, left);
        }
        false
    }

    /// Waits for `limit`; returns `false` if work is pending or the thread must end.
    pub fn rest(&self, limit: Duration) -> bool {
        let mut signals = self.signals.lock();
        let until = Instant::now() + limit;
        while signals.stop.is_none() && !signals.epoch_closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            self.changed.wait_for(&mut signals, left);
        }
        false
    }

    /// Starts with idle priority, unless its end was requested or the backlog is too long.
    fn begin(&self) {
        let mut signals = self.signals.lock();
        if signals.stop.is_none() && !signals.hurry && sys::set_thread_idle().is_ok() {
            signals.thread = Some(sys::own_thread());
        }
    }

    /// Whether its end was requested and must not be delayed.
    pub fn stopping(&self) -> bool {
        self.signals.lock().ends()
    }

    /// Processes the backlog at once, even if the thread is to end.
    pub(super) fn hurry(&self) {
        let mut signals = self.signals.lock();
        if std::mem::replace(&mut signals.hurry, true) {
            return;
        }
        if let Some(errno) = signals
            .thread
            .take()
            .and_then(|thread| sys::set_thread_normal(thread).err())
        {
            tracing::debug!(%errno, "a thread stays idle");
        }
        drop(signals);
        self.epoch_closed();
    }

    /// Notes that the backlog is empty.
    pub(super) fn caught_up(&self) {
        let mut signals = self.signals.lock();
        if std::mem::take(&mut signals.hurry)
            && signals.stop.is_none()
            && sys::set_thread_idle().is_ok()
        {
            signals.thread = Some(sys::own_thread());
        }
    }

    /// Waits for work; returns `false` if the thread must end, permanently or until work is
    /// pending.
    pub fn wait(&self) -> bool {
        let mut signals = self.signals.lock();
        let until = Instant::now() + LINGER;
        while !signals.epoch_closed && signals.stop.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut signals, left);
        }
        if signals.stop.is_none() && !signals.hurry {
            self.changed.wait_for(&mut signals, SETTLE);
        }
        while signals.held > 0 && signals.stop.is_none() && !signals.hurry {
            self.changed.wait(&mut signals);
        }
        signals.epoch_closed = false;
        !signals.ends()
    }
}

/// Guard of [`IdleThread::hold`].
pub struct Hold<'a>(&'a IdleThread);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.signals.lock().held -= 1;
        self.0.changed.notify_all();
    }
}

/// Formats an error with its causes in one line.
fn describe(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Notifies waiters of the end of the thread, including a panic.
struct Ended<'a> {
    wake: &'a IdleThread,
    /// The thread may be started again when work is pending.
    again: bool,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut signals = self.wake.signals.lock();
        (signals.running, signals.thread) = (false, None);
        signals.over |= !self.again;
        let more = signals.epoch_closed;
        drop(signals);
        if more {
            self.wake.epoch_closed();
        }
        self.wake.changed.notify_all();
    }
}

impl IdleThread {
    /// Starts the thread, which has work at once. `work` runs while [`IdleThread::wait`] returns
    /// `true`, and returns whether it may be started again. `of` returns the `IdleThread` in
    /// `holder`.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start<T: Send + Sync + 'static>(
        name: &'static str,
        holder: &Arc<T>,
        of: fn(&T) -> &IdleThread,
        work: fn(&T) -> bool,
    ) -> std::io::Result<()> {
        let (wake, weak) = (of(holder), Arc::downgrade(holder));
        let starter = move || {
            if let Some(holder) = weak.upgrade() {
                run(name, &holder, of, work);
            }
        };
        let _ = wake.starter.set(Arc::new(starter));
        wake.signals.lock().epoch_closed = true;
        wake.go_on()
    }
}

fn run<T: Send + Sync + 'static>(
    name: &str,
    holder: &Arc<T>,
    of: fn(&T) -> &IdleThread,
    work: fn(&T) -> bool,
) {
    let worker = Arc::clone(holder);
    let spawned = std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            let wake = of(&worker);
            let mut ended = Ended { wake, again: false };
            wake.begin();
            ended.again = work(&worker);
        });
    if let Err(error) = spawned {
        tracing::warn!(%error, name, "a thread cannot be started; the next checkpoint tries again");
        of(holder).signals.lock().running = false;
        of(holder).changed.notify_all();
    }
}
