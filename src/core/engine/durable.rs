//! Durability of checkpoints: with `--sync` before the reply, else some time later; and their state
//! after a power cut.
//!
//! A checkpoint is completely on disk once the tree was synced after its creation, because files
//! unchanged since belong to the live tree, and the filesystem delays their writeback. The store
//! records the time of the last sync. At mount it is known whether the last daemon ran on the same
//! mount of the filesystem. If not, a power cut is possible, and checkpoints newer than the last
//! sync are tagged as incomplete.

use std::time::{Duration, Instant};

use super::checkpoint::Checkpoints;
use crate::live::Live;
use ckptfs_store::record::INCOMPLETE_PREFIX;
use ckptfs_sys::{self as sys, SysResult};

/// Age at which a checkpoint is synced: old enough that the kernel has written most of it, and that
/// several are synced together.
const SYNCED_AFTER: Duration = Duration::from_secs(10);
/// Syncing uses at most one part in this number of the time.
const PACE: u32 = 20;
/// Number of files with unsynced captures above which the tree is synced without a checkpoint.
const UNDURABLE_MAX: usize = 10_000;

/// End and duration of the last sync.
#[derive(Debug, Default)]
pub(super) struct SyncPace(Option<(Instant, Duration)>);

impl SyncPace {
    /// Syncs the tree if due: at the first call if the previous daemon may have left unsynced
    /// captures, and later when a checkpoint has been unsynced for [`SYNCED_AFTER`].
    pub(super) fn sync_if_due(&mut self, live: &Live) {
        let waits =
            |ended: Instant, took: Duration| ended.elapsed() < SYNCED_AFTER.max(took * PACE);
        if self.0.is_some_and(|(ended, took)| waits(ended, took)) {
            return;
        }
        let before = sys::now()
            .nanoseconds()
            .saturating_sub(i64::try_from(SYNCED_AFTER.as_nanos()).unwrap_or(i64::MAX));
        let old = live
            .timeline()
            .catalogue
            .unsynced()
            .next()
            .is_some_and(|checkpoint| checkpoint.created_ns < before);
        let durability = &live.durability;
        if !old && durability.count() < UNDURABLE_MAX && !durability.needs_first_commit() {
            return;
        }
        let started = Instant::now();
        if let Err(errno) = sync_checkpoints(live) {
            tracing::warn!(%errno, "the tree cannot be synced: the newest checkpoints may not survive a power cut");
        }
        self.0 = Some((Instant::now(), started.elapsed()));
    }
}

/// Syncs the tree, and with it every earlier checkpoint.
pub(super) fn sync_checkpoints(live: &Live) -> SysResult<()> {
    let prepared = live.durability.prepare_sync();
    // The freeze lock is granted after all captures in progress.
    drop(live.busy.freeze()?);
    live.durability
        .sync_tree(&prepared, sys::now().nanoseconds())
}

impl Checkpoints {
    /// Tags the checkpoints that a power cut may have left incomplete.
    pub(super) fn name_incomplete(&self) -> SysResult<()> {
        if self.timeline().store().layout.same_mount() {
            return Ok(());
        }
        let mut named = Vec::new();
        for checkpoint in self.timeline().catalogue.unsynced() {
            let tag = format!("{INCOMPLETE_PREFIX}{}", checkpoint.id);
            named.push(checkpoint.id.to_string());
            if !checkpoint.tags.contains(&tag) {
                let mut tags = checkpoint.tags.clone();
                tags.push(tag);
                tags.sort();
                self.timeline().catalogue.set_tags(checkpoint.id, tags)?;
            }
        }
        if !named.is_empty() {
            let list = named.join(", ");
            tracing::warn!(
                checkpoints = list,
                "not on disk yet when the last daemon ended, and the filesystem was mounted anew since"
            );
            self.serving.warnings.lock().push(format!(
                "the filesystem was mounted anew before all of these checkpoints was on disk, as after a power cut; files in them may be missing or \
                 empty: {list}"
            ));
        }
        Ok(())
    }
}
