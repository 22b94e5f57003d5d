//! The thread that moves closed epochs into the index and lets go of their tables.
//!
//! It runs only when the machine has nothing else to do (`SCHED_IDLE`): a checkpoint that follows a busy epoch must not wait for the indexing of
//! that epoch. The index says how far it got only at the end of an epoch; one that was begun and not ended is applied again, to the same effect.

use std::sync::Arc;
use std::time::Duration;

use super::table::Table;
use super::timeline::Timeline;
use crate::store::ids::Epoch;
use crate::store::{Address, Batch, StoreError};
use crate::sys;
use crate::sys::lock::{Condvar, Mutex};

/// Keys that are put into the index at once.
const PIECE_KEYS_MAX: usize = 64;
/// How long the indexer leaves a fresh checkpoint alone: who makes one often makes another, or works on at once.
const SETTLE: Duration = Duration::from_millis(300);

#[derive(Default)]
struct Signals {
    sealed: bool,
    stop: bool,
    /// The thread, while it runs.
    running: bool,
    thread: Option<i32>,
}

/// Wakes a thread that works on closed epochs when the machine has nothing else to do, and ends it.
#[derive(Default)]
pub struct Wake {
    signals: Mutex<Signals>,
    changed: Condvar,
}

impl Wake {
    /// An epoch was closed.
    pub fn sealed(&self) {
        self.signals.lock().sealed = true;
        self.changed.notify_all();
    }

    /// Asks the thread to end and waits until it has. It is idle no longer then: on a busy machine an idle thread may not run for half a minute,
    /// and an unmount would wait for it so long.
    pub fn stop(&self) {
        let mut signals = self.signals.lock();
        signals.stop = true;
        if let Some(errno) = signals.thread.and_then(|thread| sys::set_thread_normal(thread).err()) {
            tracing::debug!(%errno, "a thread stays idle");
        }
        self.changed.notify_all();
        while signals.running {
            self.changed.wait(&mut signals);
        }
    }

    /// The thread begins: idle, unless somebody waits for its end already.
    fn begin(&self) {
        let mut signals = self.signals.lock();
        if !signals.stop && sys::set_thread_idle().is_ok() {
            signals.thread = Some(sys::own_thread());
        }
    }

    /// It was asked to end.
    pub fn stopping(&self) -> bool {
        self.signals.lock().stop
    }

    /// Waits so long, or until the thread is asked to end.
    pub fn pause(&self, time: Duration) {
        let mut signals = self.signals.lock();
        if !signals.stop {
            self.changed.wait_for(&mut signals, time);
        }
    }

    /// Waits for work; `false`: the thread shall end.
    pub fn wait(&self) -> bool {
        let mut signals = self.signals.lock();
        while !signals.sealed && !signals.stop {
            self.changed.wait(&mut signals);
        }
        if !signals.stop {
            self.changed.wait_for(&mut signals, SETTLE);
        }
        signals.sealed = false;
        !signals.stop
    }
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
        wake.sealed();
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
            while timeline.wake.wait() {
                if let Err(error) = timeline.index_closed() {
                    tracing::error!(%error, "the index cannot be written; closed epochs stay in memory until the next mount");
                    break;
                }
            }
        },
    )
}

impl Timeline {
    /// Applies every closed epoch to the index and drops its table.
    fn index_closed(&self) -> Result<(), StoreError> {
        let index = &self.store.index;
        while let Some((id, end)) = self.oldest_sealed() {
            let mut batch = Batch::new();
            for frame in self.store.journal.scan(index.applied()?, None) {
                let (address, record) = frame?;
                if address > end {
                    break;
                }
                batch.add(address, &record)?;
            }
            // Merged first, then applied in pieces: readers of the index wait for one piece only, and never see a record that was voided.
            for mut piece in batch.pieces(PIECE_KEYS_MAX) {
                if self.wake.stopping() {
                    return Ok(());
                }
                index.apply(&mut piece)?;
            }
            let indexed = self.take_indexed(id.epoch());
            // Ten thousand records take milliseconds to free, and this thread is the last to run: not under the lock that everybody needs.
            drop(indexed);
        }
        Ok(())
    }

    /// Takes the tables of epochs up to this one out of memory.
    fn take_indexed(&self, upto: Epoch) -> Vec<Arc<Table>> {
        let mut inner = self.inner.write();
        let count = inner.sealed.partition_point(|table| table.epoch <= upto);
        inner.sealed.drain(..count).collect()
    }

    /// The checkpoint that closed the oldest epoch still in memory, and where its record is.
    fn oldest_sealed(&self) -> Option<(crate::store::ids::CheckpointId, Address)> {
        let inner = self.inner.read();
        let epoch = inner.sealed.front()?.epoch;
        // A deleted checkpoint closed its epoch all the same; the next one kept tells where to stop.
        inner.checkpoints.range(epoch.checkpoint()..).next().map(|(id, (_, address))| (*id, *address))
    }
}
