//! Checkpoints reach the disk: with `--sync` before they are answered, else by themselves a while
//! later; and what a power cut left of those that had not.
//!
//! A checkpoint is whole on the disk once the tree was synced after it was made: files that did not
//! change since are the tree's own, and a filesystem brings their data to the disk when it likes.
//! The store notes up to when everything was synced. At mount it is known whether the last daemon
//! ran on this very mount of the filesystem; if not, the power may have been cut, and checkpoints
//! made after the last sync are named as not whole.

use std::time::{Duration, Instant};

use super::checkpoint::Checkpoints;
use crate::live::Live;
use crate::store::record::INCOMPLETE_PREFIX;
use crate::sys::{self, SysResult};

/// A checkpoint that nobody synced is synced when it is so old: long enough that the kernel has
/// written most of it, and that many are synced at once.
const SYNCED_AFTER: Duration = Duration::from_secs(10);
/// Syncing takes one part in so many of the time at most.
const PACE: u32 = 20;
/// Files with captures to be synced, beyond which the tree is synced without a checkpoint.
const UNDURABLE_MAX: usize = 10_000;

/// When the tree was synced, and how long that took.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<(Instant, Duration)>);

impl Pace {
    /// Syncs the tree if it is time to: at the first call where the daemon before may have left
    /// unsynced captures, and later when a checkpoint has been unsynced for [`SYNCED_AFTER`].
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

/// Syncs the tree, and so every checkpoint made before.
pub(super) fn sync_checkpoints(live: &Live) -> SysResult<()> {
    let prepared = live.durability.prepare_sync();
    // Whoever was capturing has done so when the freeze lock is had.
    drop(live.busy.freeze()?);
    live.durability
        .sync_tree(&prepared, sys::now().nanoseconds())
}

impl Checkpoints {
    /// Names the checkpoints that the power may have been cut before.
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
