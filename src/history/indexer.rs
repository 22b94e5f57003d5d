//! The thread that moves closed epochs into the index and lets go of their tables.
//!
//! It runs only when the machine has nothing else to do (`SCHED_IDLE`): a checkpoint that follows a
//! busy epoch must not wait for the indexing of that epoch. The index says how far it got only at
//! the end of an epoch; one that was begun and not ended is applied again, to the same effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::absence::Absences;
use super::catalogue::Catalogue;
use super::checkpoints::Known;
use super::content::Contents;
use super::dropped::DroppedVersions;
use super::epochs::Epochs;
use super::operations::Operations;
use super::since::Baseline;
use super::wake::{HURRY_EPOCHS, Hold, Wake};
use crate::store::ids::CheckpointId;
use crate::store::{Address, Batch, Forgotten, Needs, Store, StoreError};
use crate::sys;
use crate::sys::lock::Mutex;

/// Keys that are put into the index at once.
pub(super) const PIECE_KEYS_MAX: usize = 64;
/// Closed epochs that are kept in memory because there is no room for the index, before checkpoints
/// are refused.
const BACKLOG_MAX: usize = 256;

/// What only deleted checkpoints needed is to be left out of index and journal.
struct Compaction {
    /// The checkpoints that were kept when the journal ended at `upto`, before which everything is
    /// on the disk.
    kept: Vec<CheckpointId>,
    upto: Address,
    /// A mount before has begun it.
    resumed: bool,
}

/// Puts closed epochs into the index and lets go of what is in it. See the module.
pub struct Indexer {
    store: Arc<Store>,
    wake: Arc<Wake>,
    /// The checkpoints that the index may go down to, and up to where.
    compaction: Mutex<Option<Compaction>>,
    /// What the last mount left was looked for.
    resumed: AtomicBool,
    parts: Parts,
}

/// What has something in memory that the index takes over, or that can be forgotten.
pub(super) struct Parts {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) operations: Arc<Operations>,
    pub(super) absences: Arc<Absences>,
    pub(super) dropped: Arc<DroppedVersions>,
    pub(super) contents: Arc<Contents>,
    pub(super) epochs: Arc<Epochs>,
    pub(super) baseline: Arc<Baseline>,
}

impl Indexer {
    pub(super) fn new(store: Arc<Store>, wake: Arc<Wake>, parts: Parts) -> Indexer {
        Indexer {
            store,
            wake,
            compaction: Mutex::default(),
            resumed: AtomicBool::new(false),
            parts,
        }
    }

    /// Starts the thread. It ends with [`Indexer::stop`].
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(self: &Arc<Indexer>) -> std::io::Result<()> {
        Wake::start(
            "indexer",
            self,
            |indexer| &indexer.wake,
            |indexer| {
                if !indexer.resumed.swap(true, Ordering::Relaxed) {
                    indexer.resume_compaction();
                }
                while indexer.wake.wait() {
                    let indexed = if indexer.wake.lacks_room() {
                        Err(StoreError::IndexClosed)
                    } else {
                        indexer.index_closed()
                    };
                    indexer.wake.calls(None);
                    indexer.wake.caught_up();
                    if let Err(error) = indexed
                        && !indexer.index_failed(&error)
                    {
                        return false;
                    }
                }
                true
            },
        )
    }

    /// Ends the thread and makes the index durable, so that the next opening is quick.
    pub fn stop(&self) {
        self.wake.stop();
        let journal = &self.store.journal;
        let synced = journal.sync().and_then(|()| {
            self.store
                .layout
                .note_end(journal.position(), journal.last())
        });
        if self.trouble().is_some() && !self.wake.lacks_room() {
            self.store.index.distrust();
        } else if let Err(error) = synced.and_then(|()| self.store.index.flush_durable()) {
            tracing::warn!(%error, "the index was not made durable; the next mount will rebuild what is missing");
        }
    }

    /// An epoch was closed; so many wait in memory now.
    pub(super) fn epoch_closed(&self, waiting: usize) {
        self.wake.epoch_closed();
        self.hurry_if_many(waiting);
    }

    /// So many closed epochs wait in memory.
    pub(super) fn hurry_if_many(&self, waiting: usize) {
        if waiting >= HURRY_EPOCHS {
            self.wake.hurry();
        }
    }

    /// See [`Wake::hold`].
    pub fn hold(&self) -> Hold<'_> {
        self.wake.hold()
    }

    /// Why no more can be put into the index, if so: closed epochs then stay in memory, and to make
    /// more of them is refused. Where there is only no room for it, a bounded number is not.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.wake.trouble(Instant::now())?;
        Some(trouble.why)
    }

    /// A checkpoint can be made although the index may have failed: there is only no room for it,
    /// and not yet too much waits in memory.
    pub fn takes_checkpoints(&self) -> bool {
        match self.wake.trouble(Instant::now()) {
            None => true,
            Some(trouble) => trouble.full && self.parts.epochs.read().closed().len() < BACKLOG_MAX,
        }
    }

    /// Makes the index anew in memory, if it is for want of space that it failed; `false`: it is
    /// not, or that failed too.
    fn index_failed(&self, error: &StoreError) -> bool {
        self.wake.index_failed(error, self.store.reserve.is_full());
        if !self.wake.lacks_room() || self.store.index.is_in_memory() {
            return false;
        }
        let done = self.store.index_into_memory(error).and_then(|()| {
            let mut struck = Batch::voids(self.parts.epochs.read().struck());
            self.store.index.apply(&mut struck)
        });
        match done {
            Ok(()) => {
                // What is closed and not in it is taken over as ever.
                self.wake.index_works();
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
        self.store.index_where_due()?;
        while let Some((id, end)) = self.oldest_closed() {
            let mut batch = Batch::after(index.catalogue().last_checkpoint()?);
            self.wake.calls(Some(Instant::now()));
            for frame in self.store.journal.scan(index.applied()?, None) {
                let (address, record) = frame?;
                if address > end {
                    break;
                }
                batch.add(address, &record)?;
            }
            batch.strike(self.parts.epochs.read().struck());
            // Merged first, then applied in pieces: readers of the index wait for one piece only,
            // and never see a record that was voided.
            for mut piece in batch.pieces(PIECE_KEYS_MAX) {
                if self.wake.stopping() {
                    return Ok(());
                }
                self.wake.calls(Some(Instant::now()));
                index.apply(&mut piece)?;
            }
            let upto = id.epoch();
            self.parts
                .epochs
                .closed_upto(upto)
                .iter()
                .for_each(|table| self.parts.baseline.note_indexed(table));
            let indexed = sys::awake(|| {
                self.parts.contents.indexed(end);
                self.parts.epochs.take_indexed(upto)
            });
            // Ten thousand records take milliseconds to free, and this thread is the last to run:
            // not under the lock that everybody needs.
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

    /// What only deleted checkpoints needed may be left out of the index, some time: `kept` were
    /// kept when the journal ended at `upto`, and everything before is on the disk, objects and
    /// removals too. A mount that ends before leaves it to the next.
    pub fn compact_soon(&self, kept: Vec<CheckpointId>, upto: Address) {
        *self.compaction.lock() = Some(Compaction {
            kept,
            upto,
            resumed: false,
        });
        if let Err(error) = self.store.layout.note_unpacked() {
            tracing::debug!(%error, "the next mount will not know of it");
        }
        self.wake.epoch_closed();
    }

    /// What the last mount left of that is taken up. How far it came is not known: all is packed
    /// anew.
    fn resume_compaction(&self) {
        let layout = &self.store.layout;
        if !layout.noted_unpacked() {
            return;
        }
        // In this order: a checkpoint that is made meanwhile is kept, or after that.
        let upto = self.store.journal.position();
        let kept = self.parts.catalogue.stored_ids();
        match sys::syncfs(layout.dir()) {
            Ok(()) => drop(self.compaction.lock().get_or_insert(Compaction {
                kept,
                upto,
                resumed: true,
            })),
            Err(errno) => tracing::debug!(%errno, "the filesystem was not synced after a gc"),
        }
    }

    fn compact(&self) -> Result<(), StoreError> {
        let Some(Compaction {
            kept,
            upto,
            resumed,
        }) = self.compaction.lock().take()
        else {
            return Ok(());
        };
        let is_gone = |object| matches!(self.store.layers.stat(object), Ok(None));
        let stop = || self.stops();
        if stop() {
            return Ok(());
        }
        let needs = Needs {
            kept: &kept,
            is_gone: &is_gone,
            upto,
        };
        let index = &self.store.index;
        if index.compact(&needs, &stop)? || index.has_forgettable(&needs)? || resumed {
            self.packed(self.store.repack(&needs, &stop, |forgotten| {
                sys::awake(|| self.forget(forgotten))
            }));
        }
        if stop() {
            return Ok(());
        }
        index.shrink()?;
        // With an index in memory nothing was forgotten.
        if self.compaction.lock().is_none() && !index.is_in_memory() {
            self.store.layout.note_packed()?;
        }
        Ok(())
    }

    /// What could not be packed stays as it is.
    fn packed(&self, packed: Result<(), StoreError>) {
        if let Err(error) = packed
            && !error.errno().is_no_room()
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the journal was not packed"
            );
        }
    }

    /// What nobody can ask for any more; none of it is among the checkpoints.
    pub(super) fn forget(&self, forgotten: &Forgotten) {
        self.parts.operations.forget(&forgotten.operations);
        self.parts.catalogue.write().forget(&forgotten.lineage);
        self.parts.absences.forget(forgotten);
        self.parts.dropped.forget(forgotten);
    }

    /// The checkpoint that closed the oldest epoch still in memory, and where its record is.
    fn oldest_closed(&self) -> Option<(CheckpointId, Address)> {
        let tables = self.parts.epochs.read();
        let epoch = tables.closed().front()?.epoch;
        // A deleted checkpoint closed its epoch all the same; the next one that is there tells
        // where to stop.
        let next = |known: &Known| {
            known
                .range(epoch.checkpoint()..)
                .next()
                .map(|(id, (_, address))| (*id, *address))
        };
        let checkpoints = self.parts.catalogue.read();
        next(checkpoints.seen())
            .into_iter()
            .chain(next(checkpoints.hidden()))
            .min()
    }
}
