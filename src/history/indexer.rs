//! The thread that moves closed epochs into the index and lets go of their tables.
//!
//! It runs only when the machine has nothing else to do (`SCHED_IDLE`): a checkpoint that follows a busy epoch must not wait for the indexing of
//! that epoch. The index says how far it got only at the end of an epoch; one that was begun and not ended is applied again, to the same effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::table::Table;
use super::timeline::Timeline;
use crate::store::ids::{CheckpointId, Epoch};
use crate::store::record::Kept;
use crate::store::{Address, Batch, Needs, StoreError};
use crate::sys;
use crate::sys::lock::{Condvar, Mutex};

/// Keys that are put into the index at once.
pub(super) const PIECE_KEYS_MAX: usize = 64;
/// How long the indexer leaves a fresh checkpoint alone: who makes one often makes another, or works on at once.
const SETTLE: Duration = Duration::from_millis(300);

/// A call of the index that has not returned after this long may be held up by others that want the processor: it is given its share.
const SLOW: Duration = Duration::from_secs(30);
/// One that has not after this long counts as failed.
const STUCK: Duration = Duration::from_secs(120);
/// The end of a mount waits so long for a call of the index.
const STOP_MAX: Duration = Duration::from_secs(20);
/// So many closed epochs in memory cost every look-up: they are taken over at once, with a share of the processor, and at the end of the mount too.
pub(super) const HURRY_EPOCHS: usize = 64;
/// How long the end of a mount waits for that; the next one goes on.
const HURRY_STOP_MAX: Duration = Duration::from_secs(3);
/// Closed epochs that are kept in memory because there is no room for the index, before checkpoints are refused.
const BACKLOG_MAX: usize = 256;

#[derive(Default)]
struct Signals {
    epoch_closed: bool,
    /// Too much waits.
    hurry: bool,
    /// When it was asked to end.
    stop: Option<Instant>,
    /// Those for whom it waits.
    held: u32,
    /// The thread, while it runs.
    running: bool,
    thread: Option<i32>,
    /// Since when a call of the index has not returned.
    calling: Option<Instant>,
    /// Why the index cannot be used.
    trouble: Option<Trouble>,
}

impl Signals {
    /// It shall end now.
    fn ends(&self) -> bool {
        self.stop.is_some_and(|asked| !self.hurry || asked.elapsed() > HURRY_STOP_MAX)
    }
}

/// What only deleted checkpoints needed is to be left out of index and journal.
pub(super) struct Compaction {
    /// The checkpoints that were kept when the journal ended at `upto`, before which everything is on the disk.
    kept: Vec<CheckpointId>,
    upto: Address,
    /// A mount before has begun it.
    resumed: bool,
}

/// Why the index cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Trouble {
    why: String,
    /// There was no room; it may do once there is.
    full: bool,
}

/// Wakes a thread that works on closed epochs when the machine has nothing else to do, and ends it.
#[derive(Default)]
pub struct Wake {
    signals: Mutex<Signals>,
    changed: Condvar,
}

impl Wake {
    /// An epoch was closed.
    pub fn epoch_closed(&self) {
        self.signals.lock().epoch_closed = true;
        self.changed.notify_all();
    }

    /// Until this is dropped the thread begins nothing, unless too much waits: what it does takes memory and a processor, and whoever asks for it needs both.
    pub fn hold(&self) -> Hold<'_> {
        self.signals.lock().held += 1;
        Hold(self)
    }

    /// Asks the thread to end and waits until it has. It is idle no longer then: on a busy machine an idle thread may not run for half a minute,
    /// and an unmount would wait for it so long.
    pub fn stop(&self) {
        let mut signals = self.signals.lock();
        signals.stop.get_or_insert_with(Instant::now);
        if let Some(errno) = signals.thread.and_then(|thread| sys::set_thread_normal(thread).err()) {
            tracing::debug!(%errno, "a thread stays idle");
        }
        self.changed.notify_all();
        let until = Instant::now() + STOP_MAX;
        while signals.running {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::error!("the index does not answer; it is left as it is");
                signals.trouble.get_or_insert(Trouble { why: "it does not answer".into(), full: false });
                return;
            }
            self.changed.wait_for(&mut signals, left);
        }
    }

    /// The index failed. The first reason stays until it works again.
    pub(super) fn fail(&self, why: String, full: bool) {
        let mut signals = self.signals.lock();
        if signals.trouble.is_none() {
            tracing::error!(why, full, "the index failed");
            signals.trouble = Some(Trouble { why, full });
        }
    }

    /// The index failed, and only for want of space.
    pub(super) fn lacks_room(&self) -> bool {
        self.signals.lock().trouble.as_ref().is_some_and(|trouble| trouble.full)
    }

    fn calls(&self, since: Option<Instant>) {
        self.signals.lock().calling = since;
    }

    /// Why the index cannot be used, if so, and whether only for want of space.
    fn trouble(&self, now: Instant) -> Option<Trouble> {
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
        (since > STUCK).then(|| Trouble { why: format!("it has not answered for {} s", since.as_secs()), full: false })
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
        if let Some(errno) = signals.thread.take().and_then(|thread| sys::set_thread_normal(thread).err()) {
            tracing::debug!(%errno, "a thread stays idle");
        }
        signals.epoch_closed = true;
        self.changed.notify_all();
    }

    /// Nothing waits any more.
    fn caught_up(&self) {
        let mut signals = self.signals.lock();
        if std::mem::take(&mut signals.hurry) && signals.stop.is_none() && sys::set_thread_idle().is_ok() {
            signals.thread = Some(sys::own_thread());
        }
    }

    /// Waits for work; `false`: the thread shall end.
    pub fn wait(&self) -> bool {
        let mut signals = self.signals.lock();
        while !signals.epoch_closed && signals.stop.is_none() {
            self.changed.wait(&mut signals);
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
struct Ended<'a>(&'a Wake);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut signals = self.0.signals.lock();
        (signals.running, signals.thread) = (false, None);
        self.0.changed.notify_all();
    }
}

impl Wake {
    /// Starts the thread, which has something to do at once; `work` goes on until it is asked to end. `of` tells where in `holder` this is.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start<T: Send + Sync + 'static>(name: &str, holder: &Arc<T>, of: fn(&T) -> &Wake, work: fn(&T)) -> std::io::Result<()> {
        let wake = of(holder);
        wake.signals.lock().running = true;
        wake.epoch_closed();
        let worker = Arc::clone(holder);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
            let wake = of(&worker);
            let _ended = Ended(wake);
            wake.begin();
            work(&worker);
        });
        if spawned.is_err() {
            drop(Ended(wake));
        }
        spawned.map(drop)
    }
}

pub(super) fn start(timeline: &Arc<Timeline>) -> std::io::Result<()> {
    Wake::start(
        "indexer",
        timeline,
        |timeline| &timeline.wake,
        |timeline| {
            timeline.resume_compaction();
            while timeline.wake.wait() {
                let indexed = if timeline.wake.lacks_room() { Err(StoreError::IndexClosed) } else { timeline.index_closed() };
                timeline.wake.calls(None);
                timeline.wake.caught_up();
                if let Err(error) = indexed
                    && !timeline.index_failed(&error)
                {
                    break;
                }
            }
        },
    )
}

impl Timeline {
    /// See [`Wake::hold`].
    pub fn hold_indexer(&self) -> Hold<'_> {
        self.wake.hold()
    }

    /// Why no more can be put into the index, if so: closed epochs then stay in memory, and to make more of them is refused. Where there is only no
    /// room for it, a bounded number is not.
    pub fn index_trouble(&self) -> Option<String> {
        let trouble = self.wake.trouble(Instant::now())?;
        Some(trouble.why)
    }

    /// A checkpoint can be made although the index may have failed: there is only no room for it, and not yet too much waits in memory.
    pub fn takes_checkpoints(&self) -> bool {
        match self.wake.trouble(Instant::now()) {
            None => true,
            Some(trouble) => trouble.full && self.inner.read().closed.len() < BACKLOG_MAX,
        }
    }

    /// The index failed: what it says is not believed any more, and the journal is read instead.
    pub(super) fn index_fault(&self, error: StoreError) {
        self.wake.fail(describe(&error), self.store.reserve.is_full());
        // If there is only no room for it, its thread makes another.
        self.wake.epoch_closed();
    }

    /// Makes the index anew in memory, if it is for want of space that it failed; `false`: it is not, or that failed too.
    fn index_failed(&self, error: &StoreError) -> bool {
        self.wake.fail(describe(error), self.store.reserve.is_full());
        if !self.wake.lacks_room() || self.store.index.is_in_memory() {
            return false;
        }
        let done = self.store.index_into_memory(error).and_then(|()| {
            let mut struck = Batch::voids(&self.inner.read().struck);
            self.store.index.apply(&mut struck)
        });
        match done {
            Ok(()) => {
                self.wake.signals.lock().trouble = None;
                // What is closed and not in it is taken over as ever.
                self.wake.epoch_closed();
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the index cannot be made anew");
                false
            }
        }
    }

    /// Applies every closed epoch to the index and drops its table.
    pub(super) fn index_closed(&self) -> Result<(), StoreError> {
        let index = &self.store.index;
        while let Some((id, end)) = self.oldest_closed() {
            let mut batch = Batch::after(index.last_checkpoint()?);
            self.wake.calls(Some(Instant::now()));
            for frame in self.store.journal.scan(index.applied()?, None) {
                let (address, record) = frame?;
                if address > end {
                    break;
                }
                batch.add(address, &record)?;
            }
            batch.strike(&self.inner.read().struck);
            // Merged first, then applied in pieces: readers of the index wait for one piece only, and never see a record that was voided.
            for mut piece in batch.pieces(PIECE_KEYS_MAX) {
                if self.wake.stopping() {
                    return Ok(());
                }
                self.wake.calls(Some(Instant::now()));
                index.apply(&mut piece)?;
            }
            self.track(id.epoch());
            let indexed = sys::awake(|| {
                self.inner.write().contents.indexed(end);
                self.take_indexed(id.epoch())
            });
            // Ten thousand records take milliseconds to free, and this thread is the last to run: not under the lock that everybody needs.
            drop(indexed);
            index.merge(&|| self.stops())?;
        }
        self.compact()?;
        self.packed(self.store.pack(&|| self.stops()));
        Ok(())
    }

    /// Something that takes its time is to end; if not, it goes on, however long it takes.
    fn stops(&self) -> bool {
        self.wake.calls(Some(Instant::now()));
        self.wake.stopping()
    }

    /// What only deleted checkpoints needed may be left out of the index, some time: `kept` were kept when the journal ended at `upto`, and
    /// everything before is on the disk, objects and removals too.
    /// A mount that ends before leaves it to the next.
    pub fn compact_soon(&self, kept: Vec<CheckpointId>, upto: Address) {
        *self.compact.lock() = Some(Compaction { kept, upto, resumed: false });
        if let Err(error) = self.store.layout.note_unpacked() {
            tracing::debug!(%error, "the next mount will not know of it");
        }
        self.wake.epoch_closed();
    }

    /// What the last mount left of that is taken up. How far it came is not known: all is packed anew.
    fn resume_compaction(&self) {
        let layout = &self.store.layout;
        if !layout.noted_unpacked() {
            return;
        }
        // In this order: a checkpoint that is made meanwhile is kept, or after that.
        let upto = self.store.journal.position();
        let kept = self.retained().into_iter().map(|(id, _)| id).collect();
        match sys::syncfs(layout.dir()) {
            Ok(()) => drop(self.compact.lock().get_or_insert(Compaction { kept, upto, resumed: true })),
            Err(errno) => tracing::debug!(%errno, "the filesystem was not synced after a gc"),
        }
    }

    fn compact(&self) -> Result<(), StoreError> {
        let Some(Compaction { kept, upto, resumed }) = self.compact.lock().take() else { return Ok(()) };
        let is_gone = |object| matches!(self.store.layers.stat(object), Ok(None));
        let stop = || self.stops();
        if stop() {
            return Ok(());
        }
        self.forget_superseded()?;
        let needs = Needs { kept: &kept, is_gone: &is_gone, upto };
        let index = &self.store.index;
        if index.compact(&needs, &stop)? || index.has_forgettable(&needs)? || resumed {
            self.packed(self.store.repack(&needs, &stop, |forgotten| sys::awake(|| self.inner.write().forget(forgotten))));
        }
        if stop() {
            return Ok(());
        }
        index.shrink()?;
        // With an index in memory nothing was forgotten.
        if self.compact.lock().is_none() && !index.is_in_memory() {
            self.store.layout.note_packed()?;
        }
        Ok(())
    }

    /// What could not be packed stays as it is.
    fn packed(&self, packed: Result<(), StoreError>) {
        if let Err(error) = packed
            && !error.errno().is_no_room()
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "the journal was not packed");
        }
    }

    /// What these epochs changed is noted before their tables go.
    fn track(&self, upto: Epoch) {
        let tables: Vec<Arc<Table>> = self.inner.read().closed.iter().take_while(|table| table.epoch <= upto).cloned().collect();
        tables.iter().for_each(|table| self.tracked.lock().take(table));
    }

    /// Takes the tables of epochs up to this one out of memory.
    fn take_indexed(&self, upto: Epoch) -> Vec<Arc<Table>> {
        let mut inner = self.inner.write();
        let count = inner.closed.partition_point(|table| table.epoch <= upto);
        inner.closed.drain(..count).collect()
    }

    /// The checkpoint that closed the oldest epoch still in memory, and where its record is.
    fn oldest_closed(&self) -> Option<(CheckpointId, Address)> {
        let inner = self.inner.read();
        let epoch = inner.closed.front()?.epoch;
        // A deleted checkpoint closed its epoch all the same; the next one that is there tells where to stop.
        let next =
            |known: &BTreeMap<CheckpointId, (Kept, Address)>| known.range(epoch.checkpoint()..).next().map(|(id, (_, address))| (*id, *address));
        next(&inner.checkpoints).into_iter().chain(next(&inner.hidden)).min()
    }
}
