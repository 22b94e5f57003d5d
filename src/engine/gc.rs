//! `gc`: thinning out the history, and freeing what nobody needs.
//!
//! A run first counts what there is (the journal, then the space of each version), then makes its
//! plan, and then frees one checkpoint after the other: its deletion is recorded, then the versions
//! go that only it and those before it in the plan needed. So whatever happens in between, all that
//! a kept checkpoint needs is there; what a run that was cut short has left is needed by nobody,
//! and every run begins with looking for such.
//!
//! As a verification ([`super::check`]) it works for a moment and is asked again. Only the record
//! of a deletion is made under the lock of checkpoints and restores, and nothing under the freeze
//! lock: nobody waits for a version to be removed. What was pinned, tagged or brought back since
//! the plan was made stays, with what it needs.

mod held;
mod plan;
mod tiers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::plan::{Plan, plan};
use self::tiers::Matching;
use super::api::{CheckpointInfo, VerbResult};
use super::checkpoint::Checkpoints;
use super::compare::States;
use super::control::Snapdir;
use super::error;
use super::retention::{Applied, Retention, Rule};
use super::runs::{PART_TIME, Runs, go_on};
use super::serving::Serving;
use super::space::Measuring;
use crate::live::Live;
use crate::store::ids::{CheckpointId, Epoch, ObjectId};
use crate::store::operation::{BY_RULE, Deed};
use crate::store::record::{Actor, Kept, Record};
use crate::sys::{self, Errno, Gently};

/// How long a run waits at its end for removed versions to be closed, and between two looks.
const CLOSE_MAX: Duration = Duration::from_secs(2);
const CLOSE_LOOK: Duration = Duration::from_millis(50);

/// What `gc` is asked to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcOptions {
    /// What is to be kept.
    #[serde(default)]
    pub retention: Retention,
    /// Only tell what would go.
    #[serde(default)]
    pub dry_run: bool,
    /// Go on with the run of this number, which an answer gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// As the daemon runs it by itself (`retention.auto`): checkpoints that no rule keeps are
    /// deleted as `delete` does, to be freed by a later run, those made on request stay, and what
    /// was deleted less than `retention.keep-undone` ago is not freed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
}

impl GcOptions {
    fn applied(&self, now_ns: i64) -> Applied<'_> {
        Applied {
            retention: &self.retention,
            automatic: self.automatic,
            now_ns,
        }
    }
}

/// A checkpoint that stays, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcKept {
    /// Which.
    pub id: CheckpointId,
    /// The rules that keep it.
    pub rules: Vec<Rule>,
}

/// Why a checkpoint goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GcWhy {
    /// It was deleted or undone before, and could come back until now.
    Deleted,
    /// No rule keeps it.
    NoRule,
    /// The history takes more than it may.
    MaxSize,
}

/// A checkpoint that goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcGone {
    /// Which.
    pub id: CheckpointId,
    /// Why.
    pub why: GcWhy,
    /// What comes free with it, after those before it in the list.
    pub bytes: u64,
}

/// What a tier drops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcTier {
    /// Its patterns.
    pub paths: Vec<String>,
    /// How long everything is kept of them, milliseconds.
    pub keep_ms: u64,
    /// Versions that go though checkpoints show them, ...
    pub versions: u64,
    /// ... and what comes free with them.
    pub bytes: u64,
    /// Versions that stay because the file has several names, of which one may be somewhere else.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub linked: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a run has done, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcReport {
    /// Its number: ask again with it until `finished`.
    pub run: u64,
    /// Nothing is left to do.
    pub finished: bool,
    /// Something is being freed already; before, it is counted what there is.
    pub freeing: bool,
    /// How far it is.
    pub done: u64,
    /// How much there is.
    pub total: u64,
    /// It was only asked what would go.
    pub dry_run: bool,
    /// What stays and why, oldest first; when it is finished.
    pub kept: Vec<GcKept>,
    /// What goes, in this order; when it is finished.
    pub gone: Vec<GcGone>,
    /// Versions that no checkpoint needed any more, left by a deletion or a run that was cut short,
    /// ...
    pub leftovers: u64,
    /// ... and what comes free with them.
    pub leftover_bytes: u64,
    /// What goes by tiers, in the order of the configuration; when it is finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<GcTier>,
    /// What comes free in all.
    pub freed_bytes: u64,
    /// What the history took before.
    pub history_bytes: u64,
    /// Of what comes free, what is free only when this process closes the versions that it still
    /// has open.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_bytes: u64,
    /// By how much the history is larger than it may be, because the rest is pinned, tagged or the
    /// newest.
    pub over_bytes: u64,
    /// Checkpoints that were to go and stay: they were pinned, tagged or brought back meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<CheckpointId>,
}

/// A run under way.
enum Run {
    Measuring(Box<Measuring>, Vec<Kept>),
    Matching(Box<Matching>),
    Freeing(Box<Plan>),
}

impl Run {
    /// How far it is.
    fn told(&self, options: &GcOptions) -> GcReport {
        let ((done, total), report) = match self {
            Run::Measuring(measuring, _) => (measuring.progress(), GcReport::default()),
            Run::Matching(matching) => (matching.progress(), GcReport::default()),
            Run::Freeing(plan) => (
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

/// Thins the history out, and tells what it takes.
pub(super) struct Collector {
    pub(super) live: Arc<Live>,
    pub(super) serving: Arc<Serving>,
    pub(super) states: Arc<States>,
    pub(super) snapdir: Arc<Snapdir>,
    pub(super) checkpoints: Arc<Checkpoints>,
    gc_runs: Runs<Run>,
    pub(super) du_runs: Runs<Box<Measuring>>,
    /// By how much the history was larger than it may be, and could not be made smaller, when that
    /// was looked at last.
    pub(super) over_bytes: AtomicU64,
    /// Marks of the tripwire that were freed since the daemon began, because space was short.
    pub(super) yielded: AtomicU64,
}

impl Collector {
    pub(super) fn new(checkpoints: Arc<Checkpoints>) -> Collector {
        Collector {
            live: Arc::clone(&checkpoints.live),
            serving: Arc::clone(&checkpoints.serving),
            states: Arc::clone(&checkpoints.states),
            snapdir: Arc::clone(&checkpoints.snapdir),
            checkpoints,
            gc_runs: Runs::default(),
            du_runs: Runs::default(),
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
                Run::Measuring(measuring, checkpoints) => Run::Matching(Box::new(Matching::new(
                    measuring.finish(self.keeps_extents_whole()),
                    checkpoints,
                    options,
                    &self.held(options.automatic)?,
                )?)),
                Run::Matching(matching) => {
                    let plan = plan(&matching, options, &self.held(options.automatic)?);
                    self.over_bytes
                        .store(plan.report.over_bytes, Ordering::Relaxed);
                    if options.dry_run {
                        break plan.report;
                    }
                    Run::Freeing(Box::new(plan))
                }
                Run::Freeing(mut plan) => {
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

    /// All that is in the timeline, hidden or not, and the versions that were captured.
    fn begin_gc(&self) -> VerbResult<Run> {
        // Read before the census: only a checkpoint that is made in between is missing here, and it is
        // the newest.
        let checkpoints = self.timeline().catalogue.stored();
        Ok(Run::Measuring(Box::new(self.measuring()?), checkpoints))
    }

    /// Versions that are to be measured: all that there are.
    pub(super) fn measuring(&self) -> VerbResult<Measuring> {
        let census = self.timeline().census();
        census.map(Measuring::new).map_err(error::history_unread)
    }

    /// Goes on with a run for a part; `false`: what it is at is done.
    fn work(&self, by: &Actor, run: &mut Run, until: Instant) -> VerbResult<bool> {
        match run {
            Run::Measuring(measuring, _) => go_on(until, || {
                self.measure_next(measuring).map_err(error::version_unread)
            }),
            Run::Matching(matching) => go_on(until, || {
                self.match_next(matching).map_err(error::version_unread)
            }),
            Run::Freeing(plan) => {
                let more = go_on(until, || self.free_next(by, plan))?;
                if more {
                    // The less a filesystem has to write down at once, the shorter others wait for
                    // it.
                    let synced = self.timeline().store().journal.sync();
                    synced.map_err(|error| {
                        error::failed("the deletions are not on the disk")(error.errno())
                    })?;
                }
                Ok(more)
            }
        }
    }

    /// Removes the next version, or deletes the next checkpoint; `false`: there is none.
    fn free_next(&self, by: &Actor, plan: &mut Plan) -> VerbResult<bool> {
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

    /// Deletes a checkpoint, unless it was pinned, tagged or brought back since; returns whether it
    /// is gone. `hides`: it can come back until a later run frees it.
    fn delete_planned(&self, by: &Actor, planned: &Kept, hides: bool) -> VerbResult<bool> {
        {
            let _one_at_a_time = self.checkpoints.checkpointing.lock();
            let catalogue = &self.timeline().catalogue;
            let hidden = || catalogue.hidden_checkpoint(planned.id);
            // Somebody else has deleted it: it is gone.
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
                    Deed::Deleted { id, freed },
                    vec![Record::Hidden { id, hidden: true }],
                ),
                false => operations.free(by, id),
            };
            deleted.map_err(error::failed("a checkpoint was not deleted"))?;
        }
        if !planned.hidden {
            self.snapdir.forget_view(&CheckpointInfo::new(planned));
        }
        Ok(true)
    }

    fn remove_version(&self, object: ObjectId) {
        match self.timeline().store().layers.remove(object) {
            Err(error) if error.errno() == Errno::ENOENT => {}
            // The next run finds it.
            Err(error) => tracing::warn!(%error, ?object, "an unneeded version was not removed"),
            Ok(()) => {}
        }
    }

    /// Removes the directories that are empty now, and sees to it that the space is free when
    /// somebody asks for it; the index follows in idle time. Returns the bytes of removed versions
    /// that are still open here.
    fn end_gc(&self, Plan { epochs, report, .. }: &Plan) -> u64 {
        self.snapdir.snapdir_changed();
        if epochs.is_empty() && report.gone.is_empty() {
            return 0;
        }
        let held_bytes = closed(!epochs.is_empty());
        if !epochs.is_empty() {
            self.checkpoints.drop_kept();
            self.checkpoints.remove_empty_layers(epochs);
        }
        // In this order: a checkpoint that is made meanwhile is kept, or after that.
        let upto = self.timeline().store().journal.position();
        let kept = self
            .timeline()
            .catalogue
            .retained()
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        // Filesystems free what was removed when they write it down.
        match sys::syncfs(&self.serving.store_dir) {
            Ok(()) => self.timeline().indexer.compact_soon(kept, upto),
            Err(errno) => tracing::debug!(%errno, "the filesystem was not synced after a gc"),
        }
        held_bytes
    }
}

/// Waits a while until no removed version is open in this process: the sealer closes one that it
/// hashes when it sees that it is removed, and a client that reads one in a view may keep it open.
/// Returns the bytes of those that are.
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
    /// Removes the directories of these epochs in which nothing is left; never that of the open
    /// one.
    pub(super) fn remove_empty_layers(&self, epochs: &BTreeSet<Epoch>) {
        let mut gently = Gently::default();
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
