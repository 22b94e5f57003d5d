//! The plan of a run: what stays and why, what goes and with which step.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::tz::TimeZone;

use super::super::retention::{Known, Rule, order, rules};
use super::held::Held;
use super::tiers::{Fate, Matching};
use super::{GcGone, GcKept, GcOptions, GcReport, GcTier, GcWhy};
use crate::history::append::now_ns;
use crate::history::needed::{Captured, Census};
use crate::store::ids::{CheckpointId, Epoch, ObjectId};
use crate::store::record::{Kept, Reason};
use crate::sys::Gently;

/// What goes next.
#[derive(Default)]
pub(super) struct Step {
    /// A checkpoint, as it was when the plan was made; `None`: what nobody needs.
    pub(super) checkpoint: Option<Kept>,
    /// The checkpoint is deleted only; a later run frees it.
    pub(super) hides: bool,
    /// Stands for a checkpoint that was deleted before and that a later run frees.
    waits: bool,
    /// A tier, by its number.
    pub(super) tier: Option<usize>,
    /// The versions that go with it.
    pub(super) versions: Vec<Captured>,
}

impl Step {
    /// Its versions are freed by a later run.
    fn frees_later(&self) -> bool {
        self.hides || self.waits
    }
}

/// What is to go.
pub(super) struct Plan {
    pub(super) report: GcReport,
    pub(super) steps: std::vec::IntoIter<Step>,
    /// Versions of the step before that are there still.
    pub(super) versions: Vec<Captured>,
    /// Only their content goes.
    pub(super) shown: bool,
    /// All checkpoints that were there when the plan was made.
    pub(super) kept: Vec<CheckpointId>,
    /// Epochs of which something was removed.
    pub(super) epochs: BTreeSet<Epoch>,
    pub(super) gently: Gently,
}

/// The checkpoints of a census, as they are and as rules see them.
pub(super) fn known<'k>(
    census: &Census,
    checkpoints: &'k [Kept],
    held: &Held,
    named: &[CheckpointId],
) -> Vec<(&'k Kept, Known)> {
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

/// With which step each measured version goes: 0 are leftovers, then come the `sure` first of
/// `order`, the tiers, and the rest of `order`.
fn steps_with_tiers(
    matching: &Matching,
    order: &[usize],
    sure: usize,
    tiers: usize,
) -> Vec<Option<usize>> {
    let mut steps = steps_of(&matching.census, &matching.measured, order);
    for (step, fate) in steps.iter_mut().zip(&matching.fates) {
        let after = |step: usize| if step > sure { step + tiers } else { step };
        let by_tier = match fate {
            Fate::Goes(tier) => Some(sure + 1 + tier),
            Fate::Left => Some(0),
            Fate::Linked(_) | Fate::Stays => None,
        };
        *step = [step.map(after), by_tier].into_iter().flatten().min();
    }
    with_the_last(&matching.census, &matching.measured, steps)
}

/// The later of two steps, `None` being later than any.
fn later(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    a.zip(b).map(|(a, b)| a.max(b))
}

/// What was captured ahead became a version later: should one object ever be two versions, it goes
/// with the last of them.
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

/// A plan that is being made, in the order in which things go.
struct Planning<'a> {
    options: &'a GcOptions,
    /// Bytes that come free with each step, now or later.
    freed: Vec<u64>,
    /// Bytes that come free with the steps so far, now or later.
    counted: u64,
    report: GcReport,
    steps: Vec<Step>,
}

impl Planning<'_> {
    /// What comes free with the next step.
    fn next_freed(&self) -> u64 {
        self.freed.get(self.steps.len()).copied().unwrap_or(0)
    }

    /// What there is after the steps so far.
    fn left(&self) -> u64 {
        let report = &self.report;
        report.history_bytes.saturating_sub(self.counted)
    }

    fn add(&mut self, step: Step) -> u64 {
        let bytes = self.next_freed();
        self.counted = self.counted.saturating_add(bytes);
        if !step.frees_later() {
            self.report.freed_bytes = self.report.freed_bytes.saturating_add(bytes);
        }
        self.steps.push(step);
        bytes
    }

    /// The tiers' turn, after the checkpoints that go in any case.
    fn add_tiers(&mut self, matching: &Matching, steps: &[Option<usize>]) {
        for (number, tier) in self.options.retention.tiers.iter().enumerate() {
            let (at, linked) = (Some(self.steps.len()), Fate::Linked(number));
            let bytes = self.add(Step {
                tier: Some(number),
                ..Step::default()
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

    /// Adds a checkpoint that was deleted before and that a later run frees.
    fn add_waiting(&mut self) {
        self.add(Step {
            waits: true,
            ..Step::default()
        });
    }

    fn add_checkpoint(&mut self, checkpoint: &Kept, why: GcWhy) {
        let bytes = self.add(Step {
            checkpoint: Some(checkpoint.clone()),
            hides: self.options.automatic && !checkpoint.hidden,
            ..Step::default()
        });
        let id = checkpoint.id;
        self.report.gone.push(GcGone { id, why, bytes });
    }
}

/// The checkpoints that do not go, with what keeps each.
fn staying(report: &GcReport, known: &[Known], rules: Vec<Vec<Rule>>) -> Vec<GcKept> {
    let gone: HashSet<CheckpointId> = report.gone.iter().map(|gone| gone.id).collect();
    let stays = known.iter().zip(rules);
    stays
        .filter(|(one, _)| !gone.contains(&one.id))
        .map(|(one, rules)| GcKept { id: one.id, rules })
        .collect()
}

pub(super) fn plan(matching: &Matching, options: &GcOptions, held: &Held) -> Plan {
    let (census, retention) = (&matching.census, &options.retention);
    let (kept, known): (Vec<&Kept>, Vec<Known>) =
        known(census, &matching.checkpoints, held, &retention.keep_ids)
            .into_iter()
            .unzip();
    let rules = rules(&known, options.applied(now_ns()), &TimeZone::system());
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
    planning.report.leftover_bytes = planning.add(Step::default());
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
            true if kept.hidden => GcWhy::Deleted,
            true => GcWhy::NoRule,
            false if retention.max_bytes.is_some_and(|max| planning.left() > max) => GcWhy::MaxSize,
            false => break,
        };
        planning.add_checkpoint(kept, why);
    }
    if order.len() == sure {
        planning.add_tiers(matching, &steps);
    }
    let left = planning.left();
    let Planning {
        mut report,
        steps: mut planned,
        ..
    } = planning;
    report.over_bytes = retention
        .max_bytes
        .map_or(0, |max| left.saturating_sub(max));
    report.kept = staying(&report, &known, rules);
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

/// Gives each step its versions. Those of a step that frees nothing yet go with their tier's step,
/// if a tier drops them.
fn share_out(matching: &Matching, steps: &[Option<usize>], planned: &mut [Step]) {
    let first_tier = planned.iter().position(|step| step.tier == Some(0));
    for ((at, step), fate) in matching.measured.iter().zip(steps).zip(&matching.fates) {
        let later = |step: usize| planned.get(step).is_some_and(Step::frees_later);
        let step = match (*step, fate) {
            (Some(step), Fate::Goes(tier)) if later(step) => first_tier.map(|first| first + tier),
            (Some(step), _) if later(step) => None,
            (step, _) => step,
        };
        let step = step.and_then(|step| planned.get_mut(step));
        if let (Some(step), Some(version)) = (step, matching.census.versions.get(*at)) {
            step.versions.push(version.clone());
        }
    }
}

/// With which step each measured version goes, 0 being before the first checkpoint of `order`;
/// `None`: with none, because a checkpoint that stays needs it, or the next one may.
fn steps_of(census: &Census, measured: &[usize], order: &[usize]) -> Vec<Option<usize>> {
    let mut step_of: Vec<Option<usize>> = vec![None; census.kept.len()];
    for (number, at) in order.iter().enumerate() {
        if let Some(step) = step_of.get_mut(*at) {
            *step = Some(number + 1);
        }
    }
    // The last of a range: at [level][i] of the 2^level from i on.
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
