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
mod tiers;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use self::held::Held;
use self::tiers::{Fate, Matching};
use super::api::{CheckpointInfo, VerbResult};
use super::checkpoint::Checkpoints;
use super::compare::States;
use super::control::Snapdir;
use super::error;
use super::retention::{Known, Retention, Rule, order, rules};
use super::runs::Runs;
use super::serving::Serving;
use super::space::Measuring;
use crate::history::needed::{Captured, Census};
use crate::live::Live;
use crate::store::ids::{CheckpointId, Epoch, ObjectId};
use crate::store::record::{Actor, Kept, Reason};
use crate::sys::{self, Errno, Gently};

/// How long one part of a run takes.
const PART_TIME: Duration = Duration::from_millis(200);

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
    /// Nobody asks: the daemon does it by itself.
    #[serde(skip)]
    pub automatic: bool,
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
    /// By how much the history is larger than it may be, because the rest is pinned, tagged or the
    /// newest.
    pub over_bytes: u64,
    /// Checkpoints that were to go and stay: they were pinned, tagged or brought back meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<CheckpointId>,
}

/// A run under way.
pub(super) enum Run {
    Measuring(Box<Measuring>, Vec<Kept>),
    Matching(Box<Matching>),
    Freeing(Box<Plan>),
}

/// What goes next.
struct Step {
    /// A checkpoint, as it was when the plan was made; `None`: what nobody needs.
    checkpoint: Option<Kept>,
    /// A tier, by its number.
    tier: Option<usize>,
    /// The versions that go with it.
    versions: Vec<Captured>,
}

/// What is to go.
pub(super) struct Plan {
    report: GcReport,
    steps: std::vec::IntoIter<Step>,
    /// Versions of the step before that are there still.
    versions: Vec<Captured>,
    /// Only their content goes.
    shown: bool,
    /// All checkpoints that were there when the plan was made.
    kept: Vec<CheckpointId>,
    /// Epochs of which something was removed.
    epochs: BTreeSet<Epoch>,
    gently: Gently,
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
        }
    }

    pub(super) fn gc_for_a_while(&self, by: &Actor, options: &GcOptions) -> VerbResult<GcReport> {
        let started = Instant::now();
        let mut run = match options.run {
            Some(run) => self.gc_runs.take(run)?,
            None => {
                let mut checkpoints = self.live.timeline().catalogue.checkpoints();
                checkpoints.extend(self.live.timeline().catalogue.hidden());
                let census = self
                    .live
                    .timeline()
                    .census()
                    .map_err(|errno| error::failed("the history cannot be read", errno))?;
                Run::Measuring(Box::new(Measuring::new(census)), checkpoints)
            }
        };
        let report = loop {
            let working = || started.elapsed() < PART_TIME;
            run = match run {
                Run::Measuring(mut measuring, checkpoints) => {
                    let mut more = true;
                    while more && working() {
                        more = self.measure_next(&mut measuring).map_err(|errno| {
                            error::failed("a version cannot be looked at", errno)
                        })?;
                    }
                    let (done, total) = measuring.progress();
                    if more {
                        let report = GcReport {
                            done,
                            total,
                            dry_run: options.dry_run,
                            ..GcReport::default()
                        };
                        let run = self
                            .gc_runs
                            .put(options.run, Run::Measuring(measuring, checkpoints));
                        return Ok(GcReport { run, ..report });
                    }
                    Run::Matching(Box::new(Matching::new(
                        measuring.finish(self.keeps_extents_whole()),
                        checkpoints,
                        &options.retention,
                        &self.held(options.automatic)?,
                    )?))
                }
                Run::Matching(mut matching) => {
                    let mut more = true;
                    while more && working() {
                        more = self.match_next(&mut matching).map_err(|errno| {
                            error::failed("a version cannot be looked at", errno)
                        })?;
                    }
                    if more {
                        let (done, total) = matching.progress();
                        let run = self.gc_runs.put(options.run, Run::Matching(matching));
                        return Ok(GcReport {
                            run,
                            done,
                            total,
                            dry_run: options.dry_run,
                            ..GcReport::default()
                        });
                    }
                    let plan = plan(&matching, options, &self.held(options.automatic)?);
                    self.over_bytes
                        .store(plan.report.over_bytes, Ordering::Relaxed);
                    if options.dry_run {
                        break GcReport {
                            finished: true,
                            ..plan.report
                        };
                    }
                    Run::Freeing(Box::new(plan))
                }
                Run::Freeing(mut plan) => {
                    let mut more = true;
                    while more && working() {
                        more = self.free_next(by, &mut plan)?;
                    }
                    if !more {
                        self.end_gc(&plan);
                        break GcReport {
                            finished: true,
                            ..plan.report
                        };
                    }
                    // The less a filesystem has to write down at once, the shorter others wait for
                    // it.
                    self.live
                        .timeline()
                        .store()
                        .journal
                        .sync()
                        .map_err(|error| {
                            error::failed("the deletions are not on the disk", error.errno())
                        })?;
                    let report = GcReport {
                        kept: Vec::new(),
                        gone: Vec::new(),
                        freeing: true,
                        ..plan.report.clone()
                    };
                    let run = self.gc_runs.put(options.run, Run::Freeing(plan));
                    return Ok(GcReport { run, ..report });
                }
            };
        };
        Ok(GcReport {
            run: options.run.unwrap_or(0),
            ..report
        })
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
                        .live
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
        if !self.delete_planned(by, &planned)? {
            plan.report.changed.push(planned.id);
            if let Some(at) = plan
                .report
                .gone
                .iter()
                .position(|gone| gone.id == planned.id)
            {
                let gone = plan.report.gone.remove(at);
                plan.report.freed_bytes = plan.report.freed_bytes.saturating_sub(gone.bytes);
            }
        }
        Ok(true)
    }

    /// Deletes a checkpoint for good, unless it was pinned, tagged or brought back since; whether
    /// it is gone.
    fn delete_planned(&self, by: &Actor, planned: &Kept) -> VerbResult<bool> {
        {
            let _one_at_a_time = self.checkpoints.checkpointing.lock();
            let now = self
                .live
                .timeline()
                .catalogue
                .checkpoint(planned.id)
                .or_else(|| self.live.timeline().catalogue.hidden_checkpoint(planned.id));
            // Somebody else has deleted it: it is gone.
            let Some(now) = now else { return Ok(true) };
            if now.hidden != planned.hidden || now.pinned.is_some() || now.tags != planned.tags {
                return Ok(false);
            }
            self.live
                .timeline()
                .operations
                .free(by, planned.id)
                .map_err(|errno| error::failed("a checkpoint was not deleted", errno))?;
        }
        if !planned.hidden {
            self.snapdir.forget_view(&CheckpointInfo::new(planned));
        }
        Ok(true)
    }

    fn remove_version(&self, object: ObjectId) {
        match self.live.timeline().store().layers.remove(object) {
            Err(error) if error.errno() == Errno::ENOENT => {}
            // The next run finds it.
            Err(error) => tracing::warn!(%error, ?object, "an unneeded version was not removed"),
            Ok(()) => {}
        }
    }

    /// Removes the directories that are empty now, and sees to it that the space is free when
    /// somebody asks for it; the index follows in idle time.
    fn end_gc(&self, Plan { epochs, report, .. }: &Plan) {
        self.snapdir.snapdir_changed();
        if epochs.is_empty() && report.gone.is_empty() {
            return;
        }
        if !epochs.is_empty() {
            self.checkpoints.drop_kept();
            self.checkpoints.remove_empty_layers(epochs);
        }
        // In this order: a checkpoint that is made meanwhile is kept, or after that.
        let upto = self.live.timeline().store().journal.position();
        let kept = self
            .live
            .timeline()
            .catalogue
            .retained()
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        // Filesystems free what was removed when they write it down.
        match sys::syncfs(&self.serving.store_dir) {
            Ok(()) => self.live.timeline().indexer.compact_soon(kept, upto),
            Err(errno) => tracing::debug!(%errno, "the filesystem was not synced after a gc"),
        }
    }
}

impl Checkpoints {
    /// Removes the directories of these epochs in which nothing is left; never that of the open
    /// one.
    pub(super) fn remove_empty_layers(&self, epochs: &BTreeSet<Epoch>) {
        let mut gently = Gently::default();
        for epoch in epochs.range(..self.live.timeline().epochs.epoch()) {
            gently.removed(&self.serving.store_dir);
            if let Err(error) = self
                .live
                .timeline()
                .store()
                .layers
                .remove_epoch_if_empty(*epoch)
            {
                tracing::debug!(%error, "an empty layer was not removed");
            }
        }
    }
}

/// The checkpoints of a census, as they are and as rules see them.
fn known<'k>(census: &Census, checkpoints: &'k [Kept], held: &Held) -> Vec<(&'k Kept, Known)> {
    let by_id: HashMap<CheckpointId, &Kept> =
        checkpoints.iter().map(|kept| (kept.id, kept)).collect();
    let kept = census.kept.iter().filter_map(|id| by_id.get(id).copied());
    kept.map(|kept| {
        let known = Known {
            id: kept.id,
            made_ns: kept.state_ns(),
            manual: kept.reason.is_asked(),
            by_mkdir: matches!(kept.reason, Reason::Directory { .. }),
            tagged: kept.tags.iter().any(|tag| !kept.reason.is_directory(tag)),
            pinned: kept.pinned.is_some(),
            hidden: kept.hidden,
            guard: kept.reason.is_guard_or_mark(),
            needed: held.needs(kept),
        };
        (kept, known)
    })
    .collect()
}

/// With which step each measured version goes: 0 are leftovers, then come the `sure` first of
/// `order`, the tiers, and the rest of `order`.
fn steps_with_tiers(
    matching: &Matching,
    order: &[usize],
    sure: usize,
    tiers: usize,
) -> Vec<Option<usize>> {
    let mut steps = steps_of(&matching.census, &matching.measured, order);
    let mut of_object: HashMap<ObjectId, Option<usize>> = HashMap::new();
    let object = |at: &usize| {
        matching
            .census
            .versions
            .get(*at)
            .map(|version| version.object)
    };
    for ((at, step), fate) in matching
        .measured
        .iter()
        .zip(&mut steps)
        .zip(&matching.fates)
    {
        let after = |step: usize| if step > sure { step + tiers } else { step };
        let by_tier = match fate {
            Fate::Goes(tier) => Some(sure + 1 + tier),
            Fate::Left => Some(0),
            Fate::Linked(_) | Fate::Stays => None,
        };
        *step = [step.map(after), by_tier].into_iter().flatten().min();
        if let Some(object) = object(at) {
            // As one that is two versions: it goes with the last of them.
            let last = of_object.entry(object).or_insert(*step);
            *last = last.zip(*step).map(|(a, b)| a.max(b));
        }
    }
    let of = |at: &usize| {
        object(at)
            .and_then(|object| of_object.get(&object).copied())
            .flatten()
    };
    matching.measured.iter().map(of).collect()
}

fn plan(matching: &Matching, options: &GcOptions, held: &Held) -> Plan {
    let Matching {
        census,
        measured,
        space,
        checkpoints,
        ..
    } = matching;
    let (kept, known): (Vec<&Kept>, Vec<Known>) =
        known(census, checkpoints, held).into_iter().unzip();
    let rules = rules(
        &known,
        &options.retention,
        crate::history::append::now_ns(),
        &TimeZone::system(),
    );
    let (order, sure) = order(&known, &rules);
    let tiers = options.retention.tiers.len();
    let steps = steps_with_tiers(matching, &order, sure, tiers);
    let freed = space.freed(&steps, 1 + order.len() + tiers);
    let freed_at = |step: usize| freed.get(step).copied().unwrap_or(0);
    let history_bytes = space
        .freed(&vec![Some(0); measured.len()], 1)
        .first()
        .copied()
        .unwrap_or(0);
    let mut report = GcReport {
        dry_run: options.dry_run,
        history_bytes,
        ..GcReport::default()
    };
    report.leftover_bytes = freed_at(0);
    report.freed_bytes = report.leftover_bytes;
    report.tiers = told_tiers(matching, &steps, sure, options, freed_at);
    let mut planned = vec![Step {
        checkpoint: None,
        tier: None,
        versions: Vec::new(),
    }];
    let mut goes = vec![false; known.len()];
    // The tiers' turn is after those that go in any case, also if there are none.
    let turn = |number: usize, planned: &mut Vec<Step>, report: &mut GcReport| {
        if number == sure {
            report.freed_bytes = report.tiers.iter().fold(report.freed_bytes, |sum, tier| {
                sum.saturating_add(tier.bytes)
            });
            planned.extend((0..tiers).map(|tier| Step {
                checkpoint: None,
                tier: Some(tier),
                versions: Vec::new(),
            }));
        }
    };
    for (number, at) in order.iter().enumerate() {
        turn(number, &mut planned, &mut report);
        let left = history_bytes.saturating_sub(report.freed_bytes);
        let too_large = options.retention.max_bytes.is_some_and(|max| left > max);
        let (Some(checkpoint), Some(one)) = (kept.get(*at), known.get(*at)) else {
            break;
        };
        if number >= sure && !too_large {
            break;
        }
        let why = if number >= sure {
            GcWhy::MaxSize
        } else if one.hidden {
            GcWhy::Deleted
        } else {
            GcWhy::NoRule
        };
        let bytes = freed_at(planned.len());
        report.freed_bytes = report.freed_bytes.saturating_add(bytes);
        report.gone.push(GcGone {
            id: one.id,
            why,
            bytes,
        });
        planned.push(Step {
            checkpoint: Some((*checkpoint).clone()),
            tier: None,
            versions: Vec::new(),
        });
        if let Some(goes) = goes.get_mut(*at) {
            *goes = true;
        }
    }
    if order.len() == sure {
        turn(sure, &mut planned, &mut report);
    }
    let left = history_bytes.saturating_sub(report.freed_bytes);
    report.over_bytes = options
        .retention
        .max_bytes
        .map_or(0, |max| left.saturating_sub(max));
    let stays = known
        .iter()
        .zip(&rules)
        .zip(&goes)
        .filter(|(_, goes)| !**goes);
    report.kept = stays
        .map(|((one, rules), _)| GcKept {
            id: one.id,
            rules: rules.clone(),
        })
        .collect();
    share_out(matching, &steps, &mut planned);
    report.leftovers = planned.first().map_or(0, |step| step.versions.len() as u64);
    report.total = planned
        .iter()
        .map(|step| step.versions.len() as u64 + u64::from(step.checkpoint.is_some()))
        .sum();
    Plan {
        report,
        steps: planned.into_iter(),
        versions: Vec::new(),
        shown: false,
        kept: census.kept.clone(),
        epochs: BTreeSet::new(),
        gently: Gently::default(),
    }
}

/// Gives each step its versions.
fn share_out(matching: &Matching, steps: &[Option<usize>], planned: &mut [Step]) {
    for (at, step) in matching.measured.iter().zip(steps) {
        let step = step.and_then(|step| planned.get_mut(step));
        if let (Some(step), Some(version)) = (step, matching.census.versions.get(*at)) {
            step.versions.push(version.clone());
        }
    }
}

fn told_tiers(
    matching: &Matching,
    steps: &[Option<usize>],
    sure: usize,
    options: &GcOptions,
    freed_at: impl Fn(usize) -> u64,
) -> Vec<GcTier> {
    let tell = |(number, tier): (usize, &super::tiers::Tier)| GcTier {
        paths: tier.paths.clone(),
        keep_ms: tier.keep_ms,
        versions: steps
            .iter()
            .filter(|step| **step == Some(sure + 1 + number))
            .count() as u64,
        bytes: freed_at(sure + 1 + number),
        linked: matching
            .fates
            .iter()
            .filter(|fate| **fate == Fate::Linked(number))
            .count() as u64,
    };
    options
        .retention
        .tiers
        .iter()
        .enumerate()
        .map(tell)
        .collect()
}

/// With which step each measured version goes, 0 being before the first checkpoint of `order`;
/// `None`: with none, somebody who stays needs it.
fn steps_of(census: &Census, measured: &[usize], order: &[usize]) -> Vec<Option<usize>> {
    let mut step_of: Vec<Option<usize>> = vec![None; census.kept.len()];
    for (number, at) in order.iter().enumerate() {
        if let Some(step) = step_of.get_mut(*at) {
            *step = Some(number + 1);
        }
    }
    // The last of a range, `None` being later than any: at [level][i] of the 2^level from i on.
    let later = |a: Option<usize>, b: Option<usize>| a.zip(b).map(|(a, b)| a.max(b));
    let mut levels: Vec<Vec<Option<usize>>> = vec![step_of];
    while let Some(below) = levels
        .last()
        .filter(|below| below.len() > 1 << (levels.len() - 1))
    {
        let half = 1 << (levels.len() - 1);
        let next = below
            .iter()
            .zip(below.iter().skip(half))
            .map(|(a, b)| later(*a, *b))
            .collect();
        levels.push(next);
    }
    let last = |range: &std::ops::Range<usize>| {
        let Some(level) = range.len().checked_ilog2() else {
            return Some(0);
        };
        let row = levels.get(level as usize)?;
        later(
            *row.get(range.start)?,
            *row.get(range.end.checked_sub(1 << level)?)?,
        )
    };
    let mut steps: Vec<Option<usize>> = measured
        .iter()
        .map(|at| {
            census
                .versions
                .get(*at)
                .filter(|version| !(version.open && version.by.is_empty()))
                .and_then(|version| last(&version.by))
        })
        .collect();
    // What was captured ahead became a version later: should one object ever be two versions, it
    // goes with the last of them.
    let mut of_object: HashMap<ObjectId, Option<usize>> = HashMap::new();
    let object = |at: &usize| census.versions.get(*at).map(|version| version.object);
    for (at, step) in measured.iter().zip(&steps) {
        if let Some(object) = object(at) {
            of_object
                .entry(object)
                .and_modify(|known| *known = later(*known, *step))
                .or_insert(*step);
        }
    }
    for (at, step) in measured.iter().zip(&mut steps) {
        *step = object(at)
            .and_then(|object| of_object.get(&object).copied())
            .flatten();
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ids::{ObjectOrigin, Slot};

    fn census(kept: u64, ranges: &[std::ops::Range<usize>]) -> Census {
        let object = |number: usize| ObjectId {
            epoch: Epoch(1),
            slot: Slot(number as u64),
            serial: 0,
            origin: ObjectOrigin::Cloned,
        };
        let versions = ranges.iter().enumerate().map(|(number, by)| Captured {
            by: by.clone(),
            ..Captured::new(object(number))
        });
        Census {
            kept: (1..=kept).map(CheckpointId).collect(),
            versions: versions.collect(),
            ..Census::default()
        }
    }

    #[test]
    fn a_version_goes_with_the_last_checkpoint_that_needs_it() {
        let ranges = [0..0, 0..1, 0..5, 1..4, 2..3, 4..7, 6..7, 3..7];
        let census = census(7, &ranges);
        let all: Vec<usize> = (0..ranges.len()).collect();
        for order in [
            vec![0, 1, 2, 3, 4, 5, 6],
            vec![2, 0, 4],
            vec![6, 5, 4, 3],
            vec![],
        ] {
            let naive = |range: &std::ops::Range<usize>| {
                let steps: Option<Vec<usize>> = range
                    .clone()
                    .map(|at| {
                        order
                            .iter()
                            .position(|gone| *gone == at)
                            .map(|step| step + 1)
                    })
                    .collect();
                steps.map(|steps| steps.into_iter().max().unwrap_or(0))
            };
            let expected: Vec<Option<usize>> = ranges.iter().map(naive).collect();
            assert_eq!(steps_of(&census, &all, &order), expected, "{order:?}");
        }
    }
}
