//! Creation and deletion of checkpoints: freeze, close the epoch, thaw.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bases::HeldBases;
use super::compare::StateComparer;
use super::error;
use super::hooks::Hooks;
use super::hooks::around;
use super::request::{CacheInvalidation, NodeId};
use super::requester::Requester;
use super::serving::ServingEnv;
use super::snapdir::Snapdir;
use crate::engine::checkpoint_info::checkpoint_info;
use crate::history::attribution::NumberedProcess;
use crate::live::Freeze;
use crate::live::Live;
use ckptfs_api::{
    Actor, CheckpointId, CheckpointInfo, CheckpointOptions, Reason, SlowFile, TreePath, VerbError,
    VerbResult, microseconds,
};
use ckptfs_store::ids::{ObjectId, Slot};
use ckptfs_store::journal::codec::{NOTE_MAX, TAGS_MAX};
use ckptfs_store::operation::OperationEffect;
use ckptfs_store::record::{Checkpoint, CheckpointState, INCOMPLETE_PREFIX, Record, is_tag};
use ckptfs_sys::lock::MutexGuard;
use ckptfs_sys::lock::{Mutex, Rank};
use ckptfs_sys::{self as sys, Errno, SysResult};

/// Interval at which a waiting request checks that its client still waits.
const LOOK: Duration = Duration::from_millis(5);
/// Limit of rounds that flush mapped files; then the tree is frozen although stores may be missing.
const FLUSH_ROUNDS_MAX: u32 = 64;
/// Time limit of these rounds.
const FLUSH_MAX: Duration = Duration::from_millis(50);
/// Limit of waits, outside the freeze, for a process that blocks the checkpoint.
const WAYS_CLEARED_MAX: u32 = 3;
/// Limit of a tag in bytes: it is a name in `.snapshots`.
pub const TAG_BYTES_MAX: usize = 100;

/// Files open for writing at a cut.
pub(super) struct CutFiles {
    /// Number of files that it captured.
    files: u64,
    /// Recorded files with their processes, and the number of others.
    pub(super) open: Vec<(Slot, Arc<NumberedProcess>)>,
    pub(super) more: u64,
    /// The file whose capture took longest.
    slowest: Option<(Slot, Duration)>,
}

/// A new checkpoint.
struct NewCheckpoint {
    checkpoint: Checkpoint,
    opened: CutFiles,
    /// With `quiesce`: nothing was being changed.
    calm: Option<bool>,
    frozen: Duration,
}

/// Makes, names and deletes checkpoints.
pub(super) struct Checkpoints {
    pub(super) live: Arc<Live>,
    pub(super) serving: Arc<ServingEnv>,
    pub(super) states: Arc<StateComparer>,
    pub(super) snapdir: Arc<Snapdir>,
    /// Serializes checkpoints and restores.
    pub(super) checkpointing: Mutex<()>,
    pub(super) hooks: Option<Hooks>,
}

impl Checkpoints {
    pub(super) fn new(
        live: Arc<Live>,
        serving: Arc<ServingEnv>,
        states: Arc<StateComparer>,
        snapdir: Arc<Snapdir>,
        hooks: Option<Hooks>,
    ) -> Checkpoints {
        Checkpoints {
            live,
            serving,
            states,
            snapdir,
            checkpointing: Mutex::ranked(Rank::Checkpointing, ()),
            hooks,
        }
    }

    /// Closes the epoch. See [`CheckpointOptions`].
    pub(super) fn make_checkpoint(
        &self,
        by: &Actor,
        options: &CheckpointOptions,
        reason: Reason,
    ) -> VerbResult<CheckpointInfo> {
        let started = Instant::now();
        let tags = self.checked_tags(&options.tags)?;
        if !self.timeline().indexer.takes_checkpoints() {
            return Err(error::index_failed(
                &self.timeline().indexer.trouble().unwrap_or_default(),
            ));
        }
        check_note(&options.note)?;
        let prepared = options.sync.then(|| self.live.durability.prepare_sync());
        let (made, _one_at_a_time) = self.close_frozen(by, options, &tags, &reason)?;
        let NewCheckpoint {
            checkpoint,
            opened,
            calm,
            frozen,
        } = made;
        let (open_files, slowest) = (opened.files, opened.slowest);
        self.tell_open(checkpoint.id, opened);
        if let Some(prepared) = prepared {
            // After the thaw, outside the freeze: on return the state at the freeze is on disk,
            // perhaps with later changes.
            let synced = self
                .live
                .durability
                .sync_tree(&prepared, checkpoint.created_ns);
            synced.map_err(error::failed(
                "the checkpoint was made, but cannot be synced",
            ))?;
        }
        let atomic = checkpoint.atomic;
        let kept = self.timeline().catalogue.checkpoint(checkpoint.id);
        let mut info = checkpoint_info(
            &kept.unwrap_or_else(|| CheckpointState::new(checkpoint, Some(by.clone()))),
        );
        info.duration_us = Some(microseconds(started.elapsed()));
        info.frozen_us = Some(microseconds(frozen));
        info.slowest_file = slowest.and_then(|(slot, took)| {
            Some(Box::new(SlowFile {
                path: TreePath(self.live.inodes.path_of(slot)?),
                duration_us: microseconds(took),
            }))
        });
        info.open_files = Some(open_files);
        info.quiesced = calm.map(|calm| calm && atomic);
        Ok(info)
    }

    /// Freezes the tree, closes the epoch, and thaws. Waits for a process that blocks the freeze,
    /// because most large writes end soon.
    fn close_frozen(
        &self,
        by: &Actor,
        options: &CheckpointOptions,
        tags: &[String],
        reason: &Reason,
    ) -> VerbResult<(NewCheckpoint, MutexGuard<'_, ()>)> {
        let (mut waits, quiesce) = (0, options.quiesce_ms.map(Duration::from_millis));
        loop {
            let made = self.freeze_within(quiesce).and_then(|tree| {
                let (tags, reason) = (tags.to_vec(), reason.clone());
                let closed = self.close_epoch(Some(by), &options.note, tags, reason, tree.flushed);
                let frozen = tree.freeze.lasted();
                drop(tree.freeze);
                self.live.cuts.drop_unneeded();
                let (checkpoint, opened) = closed?;
                let made = NewCheckpoint {
                    checkpoint,
                    opened,
                    calm: tree.calm,
                    frozen,
                };
                Ok((made, tree._one_at_a_time))
            });
            match made {
                Err(Errno::EBUSY) if waits < WAYS_CLEARED_MAX && self.live.calls.await_way() => {
                    waits += 1
                }
                made => {
                    return made.map_err(|errno| self.failed("the checkpoint was not made", errno));
                }
            }
        }
    }

    /// Makes a checkpoint between its hooks.
    pub(super) fn checkpoint_with_hooks(
        &self,
        by: &Actor,
        options: &CheckpointOptions,
        reason: Reason,
    ) -> VerbResult<CheckpointInfo> {
        let variables = vec![
            ("CKPTFS_NOTE", options.note.clone()),
            ("CKPTFS_TAGS", options.tags.join(" ")),
        ];
        around(
            self.hooks.as_ref(),
            &self.serving,
            by,
            ("checkpoint", variables),
            || self.make_checkpoint(by, options, reason),
            |made| vec![("CKPTFS_ID", made.id.to_string())],
        )
    }

    /// Blocks every change while the guard lives. Work possible before the freeze is done first:
    /// files no longer mapped are settled, hot ones written back and captured, and dirty pages of
    /// mappings flushed from the kernel's cache as writes. Returns whether the tree contains every
    /// store through such a mapping that preceded a change it contains.
    ///
    /// # Errors
    /// EBUSY: see [`crate::live::LockWaits::freeze`].
    pub(super) fn freeze(&self) -> SysResult<(Freeze<'_>, bool)> {
        self.live.hot.await_closes();
        self.live.settling.settle_mapped();
        self.live.hot.preflush();
        self.live
            .cuts
            .prepare_cut(self.timeline().epochs.epoch().next());
        let (started, mut rounds) = (Instant::now(), 0);
        loop {
            self.live.mapped.watch_stores();
            self.flush_mapped();
            rounds += 1;
            let last = rounds == FLUSH_ROUNDS_MAX || started.elapsed() > FLUSH_MAX;
            if !last && !self.live.mapped.stores_are_flushed() {
                continue;
            }
            let freeze = self.live.busy.freeze()?;
            let flushed = self.live.mapped.stores_are_flushed();
            if last || flushed {
                self.live.mapped.unwatch_stores();
                return Ok((freeze, flushed));
            }
        }
    }

    /// Prepares the live tree for a comparison: settles files no longer mapped, and flushes stores
    /// from the kernel's cache.
    pub(super) fn settle(&self) {
        self.live.settling.settle_mapped();
        self.flush_mapped();
    }

    /// Makes the kernel write back and invalidate the data of all files that the daemon serves and
    /// that may be mapped.
    fn flush_mapped(&self) {
        let Some(caches) = self.serving.caches.get() else {
            return;
        };
        let mapped: Vec<CacheInvalidation> = self
            .live
            .nodes
            .mapped_through_daemon()
            .into_iter()
            .map(|slot| CacheInvalidation::Data(NodeId(slot.0)))
            .collect();
        if !mapped.is_empty() {
            caches.forget(mapped);
        }
    }

    /// Closes the open epoch. The caller holds the freeze lock for writing.
    pub(super) fn close_epoch(
        &self,
        by: Option<&Actor>,
        note: &str,
        tags: Vec<String>,
        reason: Reason,
        flushed: bool,
    ) -> SysResult<(Checkpoint, CutFiles)> {
        let epoch = self.timeline().epochs.epoch();
        let cut = self.live.cuts.cut(epoch.next())?;
        let now = sys::now();
        let checkpoint = Checkpoint {
            id: epoch.checkpoint(),
            tags,
            note: note.to_owned(),
            created_ns: now.nanoseconds(),
            atomic: cut.atomic && flushed,
            dirty: self.timeline().epochs.dirty(),
            reason,
        };
        let objects = cut.objects();
        self.timeline()
            .close_epoch(by, checkpoint.clone(), cut.ahead, &cut.open)
            .inspect_err(|_| self.live.cuts.drop_cut(&objects))?;
        self.live.cuts.epoch_closed(&cut.stats);
        Ok((
            checkpoint,
            CutFiles {
                files: cut.files,
                open: cut.open,
                more: cut.open_more,
                slowest: cut.slowest,
            },
        ))
    }

    /// Returns the tags sorted and without duplicates, after checking that they are valid and
    /// unused.
    fn checked_tags(&self, tags: &[String]) -> VerbResult<Vec<String>> {
        let mut tags = tags.to_vec();
        tags.sort();
        tags.dedup();
        if tags.len() > TAGS_MAX {
            let message = format!("{} tags are too many", tags.len());
            return Err(error::hinted(
                error::Code::BadTag,
                message,
                format!("a checkpoint has at most {TAGS_MAX} tags"),
            ));
        }
        for tag in &tags {
            check_tag(tag)?;
            if let Some(id) = self.timeline().catalogue.tagged(tag) {
                return Err(error::tag_taken(tag, id));
            }
        }
        Ok(tags)
    }

    /// Hides a checkpoint. Its data remains until it is freed, so that the deletion can be undone.
    pub(super) fn delete_checkpoint(
        &self,
        by: &Actor,
        id: CheckpointId,
    ) -> VerbResult<CheckpointInfo> {
        let _one_at_a_time = self.checkpointing.lock();
        self.hide_checkpoint(by, None, id)
    }

    /// As [`Checkpoints::delete_checkpoint`]; the caller holds `checkpointing`.
    pub(super) fn hide_checkpoint(
        &self,
        by: &Actor,
        undoes: Option<u64>,
        id: CheckpointId,
    ) -> VerbResult<CheckpointInfo> {
        let Some(kept) = self.timeline().catalogue.checkpoint(id) else {
            return Err(self.states.no_checkpoint(&id.to_string()));
        };
        if let Some(reason) = &kept.pinned {
            return Err(error::pinned(id, reason));
        }
        HeldBases::of(&self.live)?.check(id)?;
        let hidden = self.timeline().operations.operate(
            by,
            undoes,
            OperationEffect::Deleted { id, freed: false },
            vec![Record::Hidden { id, hidden: true }],
        );
        hidden.map_err(error::not_deleted)?;
        let deleted = checkpoint_info(&kept);
        self.snapdir.forget_view(&deleted);
        Ok(deleted)
    }

    /// Permanently deletes a checkpoint, hidden or not, with the versions that only it needed.
    pub(super) fn free_checkpoint(
        &self,
        by: &Actor,
        id: CheckpointId,
    ) -> VerbResult<CheckpointInfo> {
        let _one_at_a_time = self.checkpointing.lock();
        let timeline = self.timeline();
        let catalogue = &timeline.catalogue;
        let hidden = || catalogue.hidden_checkpoint(id);
        let Some(kept) = catalogue.checkpoint(id).or_else(hidden) else {
            return Err(self.states.no_checkpoint(&id.to_string()));
        };
        if let Some(reason) = &kept.pinned {
            return Err(error::pinned(id, reason));
        }
        HeldBases::of(&self.live)?.check(id)?;
        let unneeded = timeline
            .unneeded_without(id)
            .map_err(error::history_unread)?;
        let freed = if kept.reason.is_auto() {
            timeline.operations.free(by, id)
        } else {
            timeline.operations.operate(
                by,
                None,
                OperationEffect::Deleted { id, freed: true },
                vec![Record::Deleted { id }],
            )
        };
        freed.map_err(error::not_deleted)?;
        Ok(self.remove_unneeded(&kept, &unneeded))
    }

    /// Removes the versions that only a freed checkpoint needed, and invalidates its view in the
    /// kernel.
    pub(super) fn remove_unneeded(
        &self,
        kept: &CheckpointState,
        unneeded: &[ObjectId],
    ) -> CheckpointInfo {
        for object in unneeded {
            match self.timeline().store().layers.remove(*object) {
                // Removed with an earlier checkpoint.
                Err(error) if error.errno() == Errno::ENOENT => {}
                Err(error) => {
                    tracing::warn!(%error, ?object, "an unneeded version was not removed")
                }
                Ok(()) => {}
            }
        }
        self.remove_empty_layers(&unneeded.iter().map(|object| object.epoch).collect());
        if !unneeded.is_empty() {
            self.drop_kept();
        }
        let deleted = checkpoint_info(kept);
        self.snapdir.forget_view(&deleted);
        deleted
    }

    /// Drops the clones made for the next absence, which may share extents with the freed versions.
    pub(super) fn drop_kept(&self) {
        if let Err(errno) = self.live.kept.drop_all() {
            tracing::warn!(%errno, "what was kept while nothing was mounted was not removed");
        }
    }

    /// Waits until no checkpoint or restore runs, while the client still waits.
    pub(super) fn wait_turn(&self, requester: &Requester) -> VerbResult<MutexGuard<'_, ()>> {
        loop {
            requester.still_wants()?;
            if let Some(turn) = self.checkpointing.try_lock() {
                return Ok(turn);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Returns the error for an errno, naming the file that a process blocks.
    pub(super) fn failed(&self, what: &str, errno: Errno) -> VerbError {
        let path = self
            .live
            .calls
            .in_the_way()
            .filter(|_| errno == Errno::EBUSY)
            .and_then(|slot| self.live.inodes.path_of(slot));
        path.map_or_else(
            || error::failed(what)(errno),
            |path| error::in_the_way(what, &path),
        )
    }
}

/// Rejects a note too long for the record.
pub(super) fn check_note(note: &str) -> VerbResult<()> {
    if note.len() <= NOTE_MAX {
        return Ok(());
    }
    Err(error::note_too_long(note.len(), NOTE_MAX))
}

/// Checks that a tag is a valid name in `.snapshots` and neither a number nor a reserved word.
///
/// # Errors
/// `bad-tag`.
pub fn check_tag(tag: &str) -> VerbResult<()> {
    if !is_tag(tag)
        || tag.starts_with(INCOMPLETE_PREFIX)
        || tag.starts_with('-')
        || tag.len() > TAG_BYTES_MAX
    {
        return Err(error::hinted(
            error::Code::BadTag,
            format!("{tag:?} cannot be a tag"),
            format!(
                "a tag has 1 to {TAG_BYTES_MAX} bytes and no '/'; it does not begin with '-' or '{INCOMPLETE_PREFIX}', and is not a number, 'latest' or 'live'"
            ),
        ));
    }
    Ok(())
}
