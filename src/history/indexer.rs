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

/// Wakes the indexer.
#[derive(Default)]
pub(super) struct Wake {
    signals: Mutex<Signals>,
    changed: Condvar,
}

impl Wake {
    /// An epoch was closed.
    pub(super) fn sealed(&self) {
        self.signals.lock().sealed = true;
        self.changed.notify_all();
    }

    /// Asks the thread to end and waits until it has. It is idle no longer then: on a busy machine an idle thread may not run for half a minute,
    /// and an unmount would wait for it so long.
    pub(super) fn stop(&self) {
        let mut signals = self.signals.lock();
        signals.stop = true;
        if let Some(errno) = signals.thread.and_then(|thread| sys::set_thread_normal(thread).err()) {
            tracing::debug!(%errno, "the indexer stays idle");
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

    fn stopping(&self) -> bool {
        self.signals.lock().stop
    }

    /// Waits for work; `false`: the thread shall end.
    fn wait(&self) -> bool {
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

pub(super) fn start(timeline: Arc<Timeline>) -> std::io::Result<()> {
    timeline.wake.signals.lock().running = true;
    timeline.wake.sealed();
    let worker = Arc::clone(&timeline);
    let spawned = std::thread::Builder::new().name("indexer".into()).spawn(move || {
        worker.wake.begin();
        while worker.wake.wait() {
            if let Err(error) = worker.index_closed() {
                tracing::error!(%error, "the index cannot be written; closed epochs stay in memory until the next mount");
                break;
            }
        }
        let mut signals = worker.wake.signals.lock();
        (signals.running, signals.thread) = (false, None);
        worker.wake.changed.notify_all();
    });
    if spawned.is_err() {
        timeline.wake.signals.lock().running = false;
    }
    spawned.map(drop)
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
            let struck = self.inner.read().struck.clone();
            if !struck.is_empty() {
                index.apply(&mut Batch::voids(&struck))?;
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
