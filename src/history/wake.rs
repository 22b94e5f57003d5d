//! Waking a thread that works on closed epochs when the machine has nothing else to do, and ending
//! it; and whether the index, which one of them fills, can be used.
//!
//! There is a thread while there is something to do, and a moment longer: a daemon serves many trees,
//! most of which nobody changes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::store::StoreError;
use crate::sys;
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::tasks;

/// How long the indexer leaves a fresh checkpoint alone: who makes one often makes another, or
/// works on at once.
const SETTLE: Duration = Duration::from_millis(300);

/// A thread that has nothing to do ends after so long.
const LINGER: Duration = Duration::from_secs(1);

/// A call of the index that has not returned after this long may be held up by others that want the
/// processor: it is given its share.
const SLOW: Duration = Duration::from_secs(30);
/// One that has not after this long counts as failed.
const STUCK: Duration = Duration::from_secs(120);
/// The end of a mount waits so long for a call of the index.
const STOP_MAX: Duration = Duration::from_secs(20);
/// So many closed epochs in memory cost every look-up: they are taken over at once, with a share of
/// the processor, and at the end of the mount too.
pub(super) const HURRY_EPOCHS: usize = 64;
/// How long the end of a mount waits for that; the next one goes on.
const HURRY_STOP_MAX: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Signals {
    epoch_closed: bool,
    /// Too much waits.
    hurry: bool,
    /// When it was asked to end.
    stop: Option<Instant>,
    /// Those for whom it waits.
    held: u32,
    /// The thread runs, or is being started.
    running: bool,
    /// It has ended for good.
    over: bool,
    thread: Option<i32>,
    /// Since when a call of the index has not returned.
    calling: Option<Instant>,
    /// Why the index cannot be used.
    trouble: Option<Trouble>,
}

impl Signals {
    /// It shall end now.
    fn ends(&self) -> bool {
        self.stop
            .is_some_and(|asked| !self.hurry || asked.elapsed() > HURRY_STOP_MAX)
    }

    /// Whether a thread is to be started, which counts as running then.
    fn needs_thread(&mut self) -> bool {
        let needs = self.epoch_closed && !self.running && !self.over && self.stop.is_none();
        self.running |= needs;
        needs
    }
}

/// Why the index cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) why: String,
    /// There was no room; it may do once there is.
    pub(super) full: bool,
}

/// Wakes a thread that works on closed epochs when the machine has nothing else to do, and ends it.
#[derive(Default)]
pub struct Wake {
    signals: Mutex<Signals>,
    changed: Condvar,
    /// Starts the thread.
    starter: OnceLock<Arc<dyn Fn() + Send + Sync>>,
}

impl Wake {
    /// An epoch was closed.
    pub fn epoch_closed(&self) {
        self.signals.lock().epoch_closed = true;
        if let Err(error) = self.go_on() {
            tracing::warn!(%error, "there is no thread for closed epochs; the next checkpoint tries again");
        }
    }

    /// Wakes the thread, or has one started if that is needed, by another thread: to start one takes
    /// longer than whoever closes an epoch should wait.
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

    /// Until this is dropped the thread begins nothing, unless too much waits: what it does takes
    /// memory and a processor, and whoever asks for it needs both.
    pub fn hold(&self) -> Hold<'_> {
        self.signals.lock().held += 1;
        Hold(self)
    }

    /// Asks the thread to end and waits until it has. It is idle no longer then: on a busy machine
    /// an idle thread may not run for half a minute, and an unmount would wait for it so long.
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
                signals.trouble.get_or_insert(Trouble {
                    why: "it does not answer".into(),
                    full: false,
                });
                return;
            }
            self.changed.wait_for(&mut signals, left);
        }
    }

    /// The index failed, and what it says is not believed any more. `full`: for want of space. The
    /// first reason stays until it works again.
    pub(super) fn index_failed(&self, error: &StoreError, full: bool) {
        self.fail(describe(error), full);
        // If there is only no room for it, its thread makes another.
        self.epoch_closed();
    }

    /// It works again.
    pub(super) fn index_works(&self) {
        self.signals.lock().trouble = None;
        self.epoch_closed();
    }

    fn fail(&self, why: String, full: bool) {
        let mut signals = self.signals.lock();
        if signals.trouble.is_none() {
            tracing::error!(why, full, "the index failed");
            signals.trouble = Some(Trouble { why, full });
        }
    }

    /// The index failed, and only for want of space.
    pub(super) fn lacks_room(&self) -> bool {
        self.signals
            .lock()
            .trouble
            .as_ref()
            .is_some_and(|trouble| trouble.full)
    }

    /// A call of the index was begun, or has returned.
    pub(super) fn calls(&self, since: Option<Instant>) {
        self.signals.lock().calling = since;
    }

    /// Why the index cannot be used, if so, and whether only for want of space.
    pub(super) fn trouble(&self, now: Instant) -> Option<Trouble> {
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
        (since > STUCK).then(|| Trouble {
            why: format!("it has not answered for {} s", since.as_secs()),
            full: false,
        })
    }

    /// Waits; `false`: the thread shall end.
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

    /// Waits for so long; `false`: there is something to do, or the thread shall end.
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

    /// The thread begins: idle, unless somebody waits for its end already.
    fn begin(&self) {
        let mut signals = self.signals.lock();
        if signals.stop.is_none() && !signals.hurry && sys::set_thread_idle().is_ok() {
            signals.thread = Some(sys::own_thread());
        }
    }

    /// It was asked to end.
    pub fn stopping(&self) -> bool {
        self.signals.lock().ends()
    }

    /// Too much waits: it is done at once, even if the thread is to end.
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

    /// Nothing waits any more.
    pub(super) fn caught_up(&self) {
        let mut signals = self.signals.lock();
        if std::mem::take(&mut signals.hurry)
            && signals.stop.is_none()
            && sys::set_thread_idle().is_ok()
        {
            signals.thread = Some(sys::own_thread());
        }
    }

    /// Waits for work; `false`: the thread shall end, for good or until there is some.
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

/// See [`Wake::hold`].
pub struct Hold<'a>(&'a Wake);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.signals.lock().held -= 1;
        self.0.changed.notify_all();
    }
}

/// The error with its causes, in one line.
fn describe(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Tells whoever waits for it that the thread has ended, however it did.
struct Ended<'a> {
    wake: &'a Wake,
    /// Another may be started once there is something to do.
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

impl Wake {
    /// Starts the thread, which has something to do at once. `work` goes on for as long as
    /// [`Wake::wait`] says so, and tells whether it may be begun again. `of` tells where in `holder`
    /// this is.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start<T: Send + Sync + 'static>(
        name: &'static str,
        holder: &Arc<T>,
        of: fn(&T) -> &Wake,
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
    of: fn(&T) -> &Wake,
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
