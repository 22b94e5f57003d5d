//! The plan of a run: checkpoints kept and their rules, and the steps of the removal.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::tz::TimeZone;

use super::super::retention::RuleContext;
use super::super::retention::{RuleSubject, order, rules};
use super::protected::ProtectedCheckpoints;
use super::tiers::{TierMatching, TierOutcome};
use crate::history::append::now_ns;
use crate::history::version_census::{Captured, Census};
use ckptfs_api::{
    CheckpointId, Epoch, GcKept, GcOptions, GcReason, GcRemoved, GcReport, GcTier, Reason, Rule,
};
use ckptfs_store::ids::ObjectId;
use ckptfs_store::record::CheckpointState;
use ckptfs_sys::ThrottledUnlink;

/// A step of the removal.
#[derive(Default)]
pub(super) struct GcStep {
    /// A checkpoint as of the plan; `None`: unneeded versions or a tier.
    pub(super) checkpoint: Option<CheckpointState>,
    /// The checkpoint is only hidden; a later run frees it.
    pub(super) hides: bool,
    /// Represents a checkpoint deleted earlier that a later run frees.
    waits: bool,
    /// Number of a tier.
    pub(super) tier: Option<usize>,
    /// The versions freed by this step.
    pub(super) versions: Vec<Captured>,
}

impl GcStep {
    /// Returns whether a later run frees its versions.
    fn frees_later(&self) -> bool {
        self.hides || self.waits
    }
}

/// The removal.
pub(super) struct GcPlan {
    pub(super) report: GcReport,
    pub(super) steps: std::vec::IntoIter<GcStep>,
    /// Versions left of the current step.
    pub(super) versions: Vec<Captured>,
    /// Only their content is removed.
    pub(super) shown: bool,
    /// All checkpoints at the time of the plan.
    pub(super) kept: Vec<CheckpointId>,
    /// Epochs of removed versions.
    pub(super) epochs: BTreeSet<Epoch>,
    pub(super) gently: ThrottledUnlink,
}

/// Returns the checkpoints of a census with their properties for the rules.
pub(super) fn known<'k>(
    census: &Census,
    checkpoints: &'k [CheckpointState],
    held: &ProtectedCheckpoints,
    named: &[CheckpointId],
) -> Vec<(&'k CheckpointState, RuleSubject)> {
    let by_id: HashMap<CheckpointId, &CheckpointState> =
        checkpoints.iter().map(|kept| (kept.id, kept)).collect();
    let kept = census.kept.iter().filter_map(|id| by_id.get(id).copied());
    kept.map(|kept| {
        let known = RuleSubject {
            id: kept.id,
            made_ns: kept.state_ns(),
            manual: kept.reason.is_asked(),
            by_mkdir: matches!(kept.reason, Reason::Directory { .. }),
            tagged: kept.tags.iter().any(|tag| !kept.reason.is_directory(tag)),
            pinned: kept.pinned.is_some(),
            base: held.bases.has(kept.id),
            named: named.contains(&kept.id),
            hidden: kept.hidden,
            guard: kept.reason.is_guard_or_mark(),
            needed: held.needs(kept),
            undecided: held.is_undecided(kept),
        };
        (kept, known)
    })
    .collect()
}

/// Returns the step of each measured version: 0 for leftovers, then the first `sure` of `order`,
/// the tiers, and the rest of `order`.
fn steps_with_tiers(
    matching: &TierMatching,
    order: &[usize],
    sure: usize,
    tiers: usize,
) -> Vec<Option<usize>> {
    let mut steps = steps_of(&matching.census, &matching.measured, order);
    for (step, fate) in steps.iter_mut().zip(&matching.fates) {
        let after = |step: usize| if step > sure { step + tiers } else { step };
        let by_tier = match fate {
            TierOutcome::Goes(tier) => Some(sure + 1 + tier),
            TierOutcome::Left => Some(0),
            TierOutcome::Linked(_) | TierOutcome::Stays => None,
        };
        *step = [step.map(after), by_tier].into_iter().flatten().min();
    }
    with_the_last(&matching.census, &matching.measured, steps)
}

/// Returns the later of two steps; `None` is the latest.
fn later(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    a.zip(b).map(|(a, b)| a.max(b))
}

/// A capture made ahead becomes a version later. If one object belongs to two versions, it is freed
/// with the later step.
fn with_the_last(
    census: &Census,
    measured: &[usize],
    mut steps: Vec<Option<usize>>,
) -> Vec<Option<usize>> {
    let object = |at: &usize| census.versions.get(*at).map(|version| version.object);
    let mut last: HashMap<ObjectId, Option<usize>> = HashMap::new();
    for (at, step) in measured.iter().zip(&steps) {
        if let Some(object) = object(at) {
            let last = last.entry(object).or_insert(*step);
            *last = later(*last, *step);
        }
    }
    for (at, step) in measured.iter().zip(&mut steps) {
        *step = object(at)
            .and_then(|object| last.get(&object).copied())
            .flatten();
    }
    steps
}

/// A plan under construction, in order of removal.
struct Planning<'a> {
    options: &'a GcOptions,
    /// Bytes freed by each step, now or later.
    freed: Vec<u64>,
    /// Bytes freed by the steps so far, now or later.
    counted: u64,
    report: GcReport,
    steps: Vec<GcStep>,
}

impl Planning<'_> {
    /// Returns the bytes freed by the next step.
    fn next_freed(&self) -> u64 {
        self.freed.get(self.steps.len()).copied().unwrap_or(0)
    }

    /// Returns the size of the history after the steps so far.
    fn left(&self) -> u64 {
        let report = &self.report;
        report.history_bytes.saturating_sub(self.counted)
    }

    fn add(&mut self, step: GcStep) -> u64 {
        let bytes = self.next_freed();
        self.counted = self.counted.saturating_add(bytes);
        if !step.frees_later() {
            self.report.freed_bytes = self.report.freed_bytes.saturating_add(bytes);
        }
        self.steps.push(step);
        bytes
    }

    /// Adds the tiers, after the checkpoints removed in any case.
    fn add_tiers(&mut self, matching: &TierMatching, steps: &[Option<usize>]) {
        for (number, tier) in self.options.retention.tiers.iter().enumerate() {
            let (at, linked) = (Some(self.steps.len()), TierOutcome::Linked(number));
            let bytes = self.add(GcStep {
                tier: Some(number),
                ..GcStep::default()
            });
            let linked = matching.fates.iter().filter(|fate| **fate == linked);
            self.report.tiers.push(GcTier {
                paths: tier.paths.clone(),
                keep_ms: tier.keep_ms,
                versions: steps.iter().filter(|step| **step == at).count() as u64,
                bytes,
                linked: linked.count() as u64,
            });
        }
    }

    /// Adds a checkpoint deleted earlier that a later run frees.
    fn add_waiting(&mut self) {
        self.add(GcStep {
            waits: true,
            ..GcStep::default()
        });
    }

    fn add_checkpoint(&mut self, checkpoint: &CheckpointState, why: GcReason) {
        let bytes = self.add(GcStep {
            checkpoint: Some(checkpoint.clone()),
            hides: self.options.automatic && !checkpoint.hidden,
            ..GcStep::default()
        });
        let id = checkpoint.id;
        self.report.gone.push(GcRemoved { id, why, bytes });
    }
}

/// Returns the remaining checkpoints and their rules.
fn staying(report: &GcReport, known: &[RuleSubject], rules: Vec<Vec<Rule>>) -> Vec<GcKept> {
    let gone: HashSet<CheckpointId> = report.gone.iter().map(|gone| gone.id).collect();
    let stays = known.iter().zip(rules);
    stays
        .filter(|(one, _)| !gone.contains(&one.id))
        .map(|(one, rules)| GcKept { id: one.id, rules })
        .collect()
}

pub(super) fn plan(
    matching: &TierMatching,
    options: &GcOptions,
    held: &ProtectedCheckpoints,
) -> GcPlan {
    let (census, retention) = (&matching.census, &options.retention);
    let (kept, known): (Vec<&CheckpointState>, Vec<RuleSubject>) =
        known(census, &matching.checkpoints, held, &retention.keep_ids)
            .into_iter()
            .unzip();
    let rules = rules(
        &known,
        RuleContext::of(options, now_ns()),
        &TimeZone::system(),
    );
    let (order, sure) = order(&known, &rules);
    let tiers = retention.tiers.len();
    let steps = steps_with_tiers(matching, &order, sure, tiers);
    let mut planning = Planning {
        options,
        freed: matching.space.freed(&steps, 1 + order.len() + tiers),
        counted: 0,
        report: GcReport {
            dry_run: options.dry_run,
            history_bytes: matching.space.freed_with_all(matching.measured.len()),
            ..GcReport::default()
        },
        steps: Vec::new(),
    };
    planning.report.leftover_bytes = planning.add(GcStep::default());
    let in_order = order
        .iter()
        .filter_map(|at| Some((*kept.get(*at)?, known.get(*at)?.is_waiting(rules.get(*at)?))));
    for (number, (kept, waits)) in in_order.enumerate() {
        if number == sure {
            planning.add_tiers(matching, &steps);
        }
        if waits {
            planning.add_waiting();
            continue;
        }
        let why = match number < sure {
            true if kept.hidden => GcReason::Deleted,
            true => GcReason::NoRule,
            false if retention.max_bytes.is_some_and(|max| planning.left() > max) => {
                GcReason::MaxSize
            }
            false => break,
        };
        planning.add_checkpoint(kept, why);
    }
    if order.len() == sure {
        planning.add_tiers(matching, &steps);
    }
    planning.report.kept = staying(&planning.report, &known, rules);
    planning.finish(matching, &steps)
}

impl Planning<'_> {
    /// Assigns the versions to the planned steps and completes the report.
    fn finish(self, matching: &TierMatching, steps: &[Option<usize>]) -> GcPlan {
        let (left, max) = (self.left(), self.options.retention.max_bytes);
        let (mut report, mut planned) = (self.report, self.steps);
        report.over_bytes = max.map_or(0, |max| left.saturating_sub(max));
        share_out(matching, steps, &mut planned);
        report.leftovers = planned.first().map_or(0, |step| step.versions.len() as u64);
        report.total = planned
            .iter()
            .map(|step| step.versions.len() as u64 + u64::from(step.checkpoint.is_some()))
            .sum();
        GcPlan {
            report,
            steps: planned.into_iter(),
            versions: Vec::new(),
            shown: false,
            kept: matching.census.kept.clone(),
            epochs: BTreeSet::new(),
            gently: ThrottledUnlink::default(),
        }
    }
}

/// Assigns the versions to the steps. Versions of a step that frees later are assigned to the tier
/// that drops them, if any.
fn share_out(matching: &TierMatching, steps: &[Option<usize>], planned: &mut [GcStep]) {
    let first_tier = planned.iter().position(|step| step.tier == Some(0));
    for ((at, step), fate) in matching.measured.iter().zip(steps).zip(&matching.fates) {
        let later = |step: usize| planned.get(step).is_some_and(GcStep::frees_later);
        let step = match (*step, fate) {
            (Some(step), TierOutcome::Goes(tier)) if later(step) => {
                first_tier.map(|first| first + tier)
            }
            (Some(step), _) if later(step) => None,
            (step, _) => step,
        };
        let step = step.and_then(|step| planned.get_mut(step));
        if let (Some(step), Some(version)) = (step, matching.census.versions.get(*at)) {
            step.versions.push(version.clone());
        }
    }
}

/// Returns the step of each measured version; 0 precedes the first checkpoint of `order`. `None`: a
/// remaining checkpoint needs it, or the next one may.
fn steps_of(census: &Census, measured: &[usize], order: &[usize]) -> Vec<Option<usize>> {
    let mut step_of: Vec<Option<usize>> = vec![None; census.kept.len()];
    for (number, at) in order.iter().enumerate() {
        if let Some(step) = step_of.get_mut(*at) {
            *step = Some(number + 1);
        }
    }
    // Sparse table of range maxima: [level][i] covers 2^level steps from i on.
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
    let step = |at: &usize| {
        let version = census.versions.get(*at)?;
        if version.carriable || version.open && version.by.is_empty() {
            return None;
        }
        last(&version.by)
    };
    with_the_last(census, measured, measured.iter().map(step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ckptfs_store::ids::{ObjectOrigin, Slot};

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
