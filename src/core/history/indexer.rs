//! The indexer thread, which applies closed epochs to the index and frees their tables.
//!
//! It runs only on an idle machine (`SCHED_IDLE`): a checkpoint that follows a busy epoch must not
//! wait for the indexing of that epoch. The index records its progress only at the end of an epoch.
//! An epoch interrupted in the middle is applied again, which is idempotent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::absence::Absences;
use super::catalogue::Catalogue;
use super::checkpoints::CheckpointMap;
use super::content::ContentHashes;
use super::dropped::DroppedVersions;
use super::epochs::Epochs;
use super::operations::Operations;
use super::since::BaselineTracker;
use super::wake::{HURRY_EPOCHS, Hold, IdleThread};
use ckptfs_api::CheckpointId;
use ckptfs_store::{Address, Batch, ExpiredItems, RetentionNeeds, Store, StoreError};
use ckptfs_sys as sys;
use ckptfs_sys::lock::Mutex;

/// Maximum number of keys applied to the index at once.
pub(super) const PIECE_KEYS_MAX: usize = 64;
/// Maximum number of closed epochs in memory without space for the index. Beyond it checkpoints are
/// refused.
const BACKLOG_MAX: usize = 256;

/// Request to omit from index and journal the records that only deleted checkpoints needed.
struct Compaction {
    /// The checkpoints stored when the journal ended at `upto`; everything before that is on disk.
    kept: Vec<CheckpointId>,
    upto: Address,
    /// Left over from an earlier mount.
    resumed: bool,
}

/// Applies closed epochs to the index and frees their tables. See the module.
pub struct Indexer {
    store: Arc<Store>,
    wake: Arc<IdleThread>,
    /// The pending compaction.
    compaction: Mutex<Option<Compaction>>,
    /// Whether the compaction left by the previous mount was resumed.
    resumed: AtomicBool,
    parts: Parts,
}

/// Parts with memory that the index takes over, or with entries that can be removed.
pub(super) struct Parts {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) operations: Arc<Operations>,
    pub(super) absences: Arc<Absences>,
    pub(super) dropped: Arc<DroppedVersions>,
    pub(super) contents: Arc<ContentHashes>,
    pub(super) epochs: Arc<Epochs>,
    pub(super) baseline: Arc<BaselineTracker>,
}

impl Indexer {
    pub(super) fn new(store: Arc<Store>, wake: Arc<IdleThread>, parts: Parts) -> Indexer {
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
        IdleThread::start(
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

    /// Ends the thread and makes the index durable, so that the next open is fast.
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

    /// Notifies the thread of a closed epoch. `waiting` is the number of closed epochs in memory.
    pub(super) fn epoch_closed(&self, waiting: usize) {
        self.wake.epoch_closed();
        self.hurry_if_many(waiting);
    }

    /// Starts indexing at once, with normal priority, if many closed epochs are in memory.
    pub(super) fn hurry_if_many(&self, waiting: usize) {
        if waiting >= HURRY_EPOCHS {
            self.wake.hurry();
        }
    }

    /// See [`IdleThread::hold`].
    pub fn hold(&self) -> Hold<'_> {
        self.wake.hold()
    }

    /// Returns why the index accepts nothing, if so. Closed epochs then stay in memory and
    /// checkpoints are refused, except for a bounded number if only space is lacking.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.wake.trouble(Instant::now())?;
        Some(trouble.why)
    }

    /// Whether a checkpoint can be made: the index works, or lacks only space while the backlog is
    /// within its limit.
    pub fn takes_checkpoints(&self) -> bool {
        match self.wake.trouble(Instant::now()) {
            None => true,
            Some(trouble) => trouble.full && self.parts.epochs.read().closed().len() < BACKLOG_MAX,
        }
    }

    /// Rebuilds the index in memory if it failed for lack of space. Returns `false` if it failed
    /// otherwise, or if the rebuild failed.
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
                // Closed epochs that are not in it are applied as usual.
                self.wake.index_works();
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the index cannot be made anew");
                false
            }
        }
    }

    /// Applies every closed epoch to the index and frees its table.
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
            // Merged first, then applied in pieces: readers of the index wait for one piece only
            // and never see a voided record.
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
            // Freeing ten thousand records takes milliseconds, and this thread has the lowest
            // priority. They are freed without the lock that all threads need.
            drop(indexed);
            index.merge(&|| self.stops())?;
        }
        self.compact()?;
        self.packed(self.store.pack(&|| self.stops()));
        Ok(())
    }

    /// Whether a long operation must end; otherwise reports progress, so the call does not time
    /// out.
    fn stops(&self) -> bool {
        self.wake.calls(Some(Instant::now()));
        self.wake.stopping()
    }

    /// Schedules a compaction. `kept` are the checkpoints stored when the journal ended at `upto`.
    /// Everything before that is on disk, including objects and removals. If the mount ends
    /// earlier, the next one resumes it.
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

    /// Resumes the compaction of the previous mount. Its progress is unknown, so everything is
    /// packed again.
    fn resume_compaction(&self) {
        let layout = &self.store.layout;
        if !layout.noted_unpacked() {
            return;
        }
        // Order: a checkpoint made concurrently is either in `kept` or after `upto`.
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
        let needs = RetentionNeeds {
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
        // With an index in memory nothing was removed.
        if self.compaction.lock().is_none() && !index.is_in_memory() {
            self.store.layout.note_packed()?;
        }
        Ok(())
    }

    /// Logs a failure to pack. The journal is unchanged then.
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

    /// Removes entries that no query can refer to any more; none belongs to a stored checkpoint.
    pub(super) fn forget(&self, forgotten: &ExpiredItems) {
        self.parts.operations.forget(&forgotten.operations);
        self.parts.catalogue.write().forget(&forgotten.lineage);
        self.parts.absences.forget(forgotten);
        self.parts.dropped.forget(forgotten);
    }

    /// Returns the checkpoint that closed the oldest epoch in memory, and the address of its
    /// record.
    fn oldest_closed(&self) -> Option<(CheckpointId, Address)> {
        let tables = self.parts.epochs.read();
        let epoch = tables.closed().front()?.epoch;
        // The checkpoint may have been deleted since. The next stored one determines where to stop.
        let next = |known: &CheckpointMap| {
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
