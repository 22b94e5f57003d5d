//! `gc`: applies the retention rules, and frees unneeded data.
//!
//! A run measures the history (the journal, then the space of each version), makes a plan, and
//! frees one checkpoint after the other. Each deletion is recorded first; then the versions are
//! removed that only this checkpoint and those before it in the plan needed. Data of kept
//! checkpoints is therefore complete at any time. Versions left by an interrupted run are unneeded,
//! and every run first looks for such versions.
//!
//! Like a verification ([`super::check`]) it works in slices. Only the record of a deletion is
//! written under the lock of checkpoints and restores, and nothing under the freeze lock: the
//! removal of versions blocks no request. Checkpoints pinned, tagged or undeleted since the plan
//! stay, with their data.

mod plan;
mod protected;
mod tiers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use self::plan::{GcPlan, plan};
use self::tiers::TierMatching;
use super::checkpoint::Checkpoints;
use super::compare::StateComparer;
use super::error;
use super::runs::{PART_TIME, SlicedRuns, go_on};
use super::serving::ServingEnv;
use super::snapdir::Snapdir;
use super::space::SpaceMeasurement;
use crate::engine::checkpoint_info::checkpoint_info;
use crate::live::Live;
use ckptfs_api::{Actor, CheckpointId, Epoch, GcOptions, GcReport, VerbResult};
use ckptfs_store::ids::ObjectId;
use ckptfs_store::operation::{BY_RULE, OperationEffect};
use ckptfs_store::record::{CheckpointState, Record};
use ckptfs_sys::{self as sys, Errno, ThrottledUnlink};

/// Time that a run waits at its end for removed versions to be closed, and the polling interval.
const CLOSE_MAX: Duration = Duration::from_secs(2);
const CLOSE_LOOK: Duration = Duration::from_millis(50);

/// A run in progress.
enum GcRun {
    Measuring(Box<SpaceMeasurement>, Vec<CheckpointState>),
    Matching(Box<TierMatching>),
    Freeing(Box<GcPlan>),
}

impl GcRun {
    /// Returns the progress.
    fn told(&self, options: &GcOptions) -> GcReport {
        let ((done, total), report) = match self {
            GcRun::Measuring(measuring, _) => (measuring.progress(), GcReport::default()),
            GcRun::Matching(matching) => (matching.progress(), GcReport::default()),
            GcRun::Freeing(plan) => (
                (plan.report.done, plan.report.total),
                GcReport {
                    kept: Vec::new(),
                    gone: Vec::new(),
                    freeing: true,
                    ..plan.report.clone()
                },
            ),
        };
        GcReport {
            done,
            total,
            dry_run: options.dry_run,
            ..report
        }
    }
}

/// Applies retention rules and measures the history.
pub(super) struct GarbageCollector {
    pub(super) live: Arc<Live>,
    pub(super) serving: Arc<ServingEnv>,
    pub(super) states: Arc<StateComparer>,
    pub(super) snapdir: Arc<Snapdir>,
    pub(super) checkpoints: Arc<Checkpoints>,
    gc_runs: SlicedRuns<GcRun>,
    pub(super) du_runs: SlicedRuns<Box<SpaceMeasurement>>,
    /// Bytes by which the history exceeded its limit after the last plan.
    pub(super) over_bytes: AtomicU64,
    /// Number of tripwire marks freed for lack of space since the daemon started.
    pub(super) yielded: AtomicU64,
}

impl GarbageCollector {
    pub(super) fn new(checkpoints: Arc<Checkpoints>) -> GarbageCollector {
        GarbageCollector {
            live: Arc::clone(&checkpoints.live),
            serving: Arc::clone(&checkpoints.serving),
            states: Arc::clone(&checkpoints.states),
            snapdir: Arc::clone(&checkpoints.snapdir),
            checkpoints,
            gc_runs: SlicedRuns::default(),
            du_runs: SlicedRuns::default(),
            over_bytes: AtomicU64::new(0),
            yielded: AtomicU64::new(0),
        }
    }

    pub(super) fn gc_for_a_while(&self, by: &Actor, options: &GcOptions) -> VerbResult<GcReport> {
        let until = Instant::now() + PART_TIME;
        let mut run = self.gc_runs.resume(options.run, || {
            if !options.dry_run {
                self.empty_trash(options.automatic)?;
            }
            self.begin_gc()
        })?;
        let report = loop {
            if self.work(by, &mut run, until)? {
                let report = run.told(options);
                let run = self.gc_runs.put(options.run, run);
                return Ok(GcReport { run, ..report });
            }
            run = match run {
                GcRun::Measuring(measuring, checkpoints) => {
                    GcRun::Matching(Box::new(TierMatching::new(
                        measuring.finish(self.keeps_extents_whole()),
                        checkpoints,
                        options,
                        &self.held(options.automatic)?,
                    )?))
                }
                GcRun::Matching(matching) => {
                    let plan = plan(&matching, options, &self.held(options.automatic)?);
                    self.over_bytes
                        .store(plan.report.over_bytes, Ordering::Relaxed);
                    if options.dry_run {
                        break plan.report;
                    }
                    GcRun::Freeing(Box::new(plan))
                }
                GcRun::Freeing(mut plan) => {
                    plan.report.held_bytes = self.end_gc(&plan);
                    let GcReport {
                        history_bytes,
                        freed_bytes,
                        ..
                    } = plan.report;
                    let left = history_bytes.saturating_sub(freed_bytes);
                    self.serving.upkeep.collected(left);
                    break plan.report;
                }
            };
        };
        Ok(GcReport {
            run: options.run.unwrap_or(0),
            finished: true,
            ..report
        })
    }

    /// Begins a run with all checkpoints, hidden or not, and all captured versions.
    fn begin_gc(&self) -> VerbResult<GcRun> {
        // Before the census: only a checkpoint made between the two is missing, and it is the
        // newest.
        let checkpoints = self.timeline().catalogue.stored();
        Ok(GcRun::Measuring(Box::new(self.measuring()?), checkpoints))
    }

    /// Begins to measure all versions.
    pub(super) fn measuring(&self) -> VerbResult<SpaceMeasurement> {
        let census = self.timeline().census();
        census
            .map(SpaceMeasurement::new)
            .map_err(error::history_unread)
    }

    /// Continues a run for one part. Returns `false` when its current stage is complete.
    fn work(&self, by: &Actor, run: &mut GcRun, until: Instant) -> VerbResult<bool> {
        match run {
            GcRun::Measuring(measuring, _) => go_on(until, || {
                self.measure_next(measuring).map_err(error::version_unread)
            }),
            GcRun::Matching(matching) => go_on(until, || {
                self.match_next(matching).map_err(error::version_unread)
            }),
            GcRun::Freeing(plan) => {
                let more = go_on(until, || self.free_next(by, plan))?;
                if more {
                    // Small commits of the filesystem block other processes for a shorter time.
                    let synced = self.timeline().store().journal.sync();
                    synced.map_err(|error| {
                        error::failed("the deletions are not on the disk")(error.errno())
                    })?;
                }
                Ok(more)
            }
        }
    }

    /// Removes the next version, or deletes the next checkpoint; `false` at the end.
    fn free_next(&self, by: &Actor, plan: &mut GcPlan) -> VerbResult<bool> {
        if let Some(version) = plan.versions.pop() {
            plan.report.done += 1;
            let stays = |id: &CheckpointId| {
                plan.kept
                    .get(version.by.clone())
                    .is_some_and(|by| by.contains(id))
            };
            if plan.shown
                || !version.by.is_empty()
                    && self
                        .timeline()
                        .dropped
                        .is_dropped(version.object)
                        .unwrap_or(true)
            {
                self.remove_content(version.object);
                plan.epochs.insert(version.object.epoch);
            } else if !plan.report.changed.iter().any(stays) {
                self.remove_version(version.object);
                plan.epochs.insert(version.object.epoch);
            }
            plan.gently.removed(&self.serving.store_dir);
            return Ok(true);
        }
        let Some(step) = plan.steps.next() else {
            return Ok(false);
        };
        plan.shown = step.tier.is_some();
        plan.versions = step.versions;
        if let Some(tier) = step.tier.and_then(|tier| plan.report.tiers.get_mut(tier)) {
            let planned = std::mem::take(&mut plan.versions);
            if !planned.is_empty() {
                plan.versions = self.drop_planned(tier, planned, &plan.kept)?;
                tier.versions = plan.versions.len() as u64;
            }
            return Ok(true);
        }
        let Some(planned) = step.checkpoint else {
            return Ok(true);
        };
        plan.report.done += 1;
        if !self.delete_planned(by, &planned, step.hides)? {
            plan.report.changed.push(planned.id);
            let mut gone = plan.report.gone.iter();
            if let Some(at) = gone.position(|gone| gone.id == planned.id) {
                let gone = plan.report.gone.remove(at);
                plan.report.freed_bytes = plan.report.freed_bytes.saturating_sub(gone.bytes);
            }
        }
        Ok(true)
    }

    /// Deletes a checkpoint, unless it was pinned, tagged or undeleted since the plan. Returns
    /// whether it no longer exists. `hides`: it can be restored until a later run frees it.
    fn delete_planned(
        &self,
        by: &Actor,
        planned: &CheckpointState,
        hides: bool,
    ) -> VerbResult<bool> {
        {
            let _one_at_a_time = self.checkpoints.checkpointing.lock();
            let catalogue = &self.timeline().catalogue;
            let hidden = || catalogue.hidden_checkpoint(planned.id);
            // Deleted concurrently.
            let Some(now) = catalogue.checkpoint(planned.id).or_else(hidden) else {
                return Ok(true);
            };
            let changed = now.hidden != planned.hidden || now.tags != planned.tags;
            if changed || now.pinned.is_some() || self.bases()?.has(planned.id) {
                return Ok(false);
            }
            let operations = &self.timeline().operations;
            let (id, freed) = (planned.id, false);
            let deleted = match hides {
                true => operations.operate(
                    by,
                    BY_RULE,
                    OperationEffect::Deleted { id, freed },
                    vec![Record::Hidden { id, hidden: true }],
                ),
                false => operations.free(by, id),
            };
            deleted.map_err(error::failed("a checkpoint was not deleted"))?;
        }
        if !planned.hidden {
            self.snapdir.forget_view(&checkpoint_info(planned));
        }
        Ok(true)
    }

    fn remove_version(&self, object: ObjectId) {
        match self.timeline().store().layers.remove(object) {
            Err(error) if error.errno() == Errno::ENOENT => {}
            // The next run removes it.
            Err(error) => tracing::warn!(%error, ?object, "an unneeded version was not removed"),
            Ok(()) => {}
        }
    }

    /// Removes empty layers, and syncs so that the space is free on return; the index is compacted
    /// in idle time. Returns the bytes of removed versions that are still open in this process.
    fn end_gc(&self, GcPlan { epochs, report, .. }: &GcPlan) -> u64 {
        self.snapdir.snapdir_changed();
        if epochs.is_empty() && report.gone.is_empty() {
            return 0;
        }
        let held_bytes = closed(!epochs.is_empty());
        if !epochs.is_empty() {
            self.checkpoints.drop_kept();
            self.checkpoints.remove_empty_layers(epochs);
        }
        // In this order: a concurrent checkpoint is in `kept` or after `upto`.
        let upto = self.timeline().store().journal.position();
        let kept = self
            .timeline()
            .catalogue
            .retained()
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        // Filesystems free removed extents at commit.
        match sys::syncfs(&self.serving.store_dir) {
            Ok(()) => self.timeline().indexer.compact_soon(kept, upto),
            Err(errno) => tracing::debug!(%errno, "the filesystem was not synced after a gc"),
        }
        held_bytes
    }
}

/// Waits with a timeout until this process has no removed version open: the sealer closes one when
/// it notices the removal, but a client may keep one open in a view. Returns the bytes still open.
fn closed(removed: bool) -> u64 {
    let until = Instant::now() + CLOSE_MAX;
    let is_version = |path: &[u8]| {
        let path = String::from_utf8_lossy(path);
        path.contains("/layers/") && path.contains("/objects/")
    };
    loop {
        match removed.then(|| sys::host::removed_but_open(is_version)) {
            Some(bytes) if bytes > 0 && Instant::now() < until => std::thread::sleep(CLOSE_LOOK),
            held => return held.unwrap_or(0),
        }
    }
}

impl Checkpoints {
    /// Removes the empty layers of these epochs, except that of the open epoch.
    pub(super) fn remove_empty_layers(&self, epochs: &BTreeSet<Epoch>) {
        let mut gently = ThrottledUnlink::default();
        for epoch in epochs.range(..self.timeline().epochs.epoch()) {
            gently.removed(&self.serving.store_dir);
            if let Err(error) = self.timeline().store().layers.remove_epoch_if_empty(*epoch) {
                tracing::debug!(%error, "an empty layer was not removed");
            }
        }
    }
}

#[cfg(test)]
mod tests;
