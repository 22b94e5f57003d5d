//! Which checkpoints are kept by which rule, and in which order the others go.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use super::tiers::Tier;
use crate::store::ids::CheckpointId;

/// What is to be kept; what no rule keeps goes. Without any rule all is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// So many of the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u64>,
    /// What is not older than so many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_within_s: Option<u64>,
    /// One for each of so many hours that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_hourly: Option<u64>,
    /// One for each of so many days that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_daily: Option<u64>,
    /// One for each of so many weeks that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_weekly: Option<u64>,
    /// These, whatever the rules say, also if the history takes too much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep_ids: Vec<CheckpointId>,
    /// Bytes that the history may take: the oldest go until it does not take more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Automatic runs count and remove checkpoints that were made on request too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
    /// Of which paths less is kept. The first that matches a path counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
}

impl Retention {
    /// What the configuration says.
    pub fn of(settings: &Settings) -> Retention {
        Retention {
            keep_last: settings.number("retention.keep-last"),
            keep_within_s: settings
                .span("retention.keep-within")
                .map(|span| span.as_secs()),
            keep_hourly: settings.number("retention.keep-hourly"),
            keep_daily: settings.number("retention.keep-daily"),
            keep_weekly: settings.number("retention.keep-weekly"),
            keep_ids: Vec::new(),
            max_bytes: settings.number("retention.max-size"),
            manual: settings.flag("retention.manual"),
            tiers: settings.tiers.iter().map(|set| set.tier.clone()).collect(),
        }
    }

    /// Some rule says what is to be kept.
    pub fn has_rules(&self) -> bool {
        [
            self.keep_last,
            self.keep_within_s,
            self.keep_hourly,
            self.keep_daily,
            self.keep_weekly,
        ]
        .iter()
        .any(Option::is_some)
    }
}

/// Why a checkpoint is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// It is pinned.
    Pinned,
    /// A branch is based on it.
    Branch,
    /// It was made on request, and the run is automatic (`retention.manual`).
    Asked,
    /// It was named: `gc --keep-unpushed`.
    Named,
    /// It has a tag.
    Tagged,
    /// It is the newest.
    Newest,
    /// `undo` or `redo` may need it yet, or it is a mark of the tripwire that was made not long
    /// ago.
    Undo,
    /// `keep-last`.
    Last,
    /// `keep-within`.
    Within,
    /// `keep-hourly`.
    Hourly,
    /// `keep-daily`.
    Daily,
    /// `keep-weekly`.
    Weekly,
    /// No rule was given that something should go.
    NoRule,
}

/// How a run of `gc` applies the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Applied<'a> {
    pub retention: &'a Retention,
    /// The daemon runs it by itself (`retention.auto`): without [`Retention::manual`] it counts and
    /// removes no checkpoint that was made on request.
    pub automatic: bool,
    /// Wall clock, nanoseconds since 1970.
    pub now_ns: i64,
}

impl Applied<'_> {
    fn spares(&self, one: &Known) -> bool {
        self.automatic && !self.retention.manual && one.manual
    }
}

/// What is to be known of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub id: CheckpointId,
    pub made_ns: i64,
    /// A person asked for it.
    pub manual: bool,
    /// mkdir(2) made it, for whoever may write to the root directory.
    pub by_mkdir: bool,
    pub tagged: bool,
    pub pinned: bool,
    /// A branch is based on it.
    pub base: bool,
    /// See [`Retention::keep_ids`].
    pub named: bool,
    /// It was deleted, and could come back until now.
    pub hidden: bool,
    /// It is the guard of a restore, or a mark of the tripwire.
    pub guard: bool,
    /// It is kept for a while whatever the rules say: see [`Rule::Undo`].
    pub needed: bool,
    /// A hidden mark that may still be confirmed.
    pub undecided: bool,
}

impl Known {
    /// It was deleted, and can come back for a while yet. An undecided mark was not: what it shows
    /// stays whatever goes in this run.
    pub(super) fn is_waiting(&self, rules: &[Rule]) -> bool {
        self.hidden && !self.undecided && rules == [Rule::Undo]
    }

    /// What keeps it whatever is asked for.
    fn held(&self) -> Vec<Rule> {
        let rules = [
            self.pinned.then_some(Rule::Pinned),
            self.base.then_some(Rule::Branch),
            self.named.then_some(Rule::Named),
        ];
        rules.into_iter().flatten().collect()
    }
}

/// The rules that keep each checkpoint, in the order given: oldest first. None keep those that are
/// to go.
pub(super) fn rules(known: &[Known], applied: Applied<'_>, zone: &TimeZone) -> Vec<Vec<Rule>> {
    let Applied {
        retention, now_ns, ..
    } = applied;
    let mut kept: Vec<Vec<Rule>> = known.iter().map(Known::held).collect();
    let seen = || {
        known
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, one)| !one.hidden)
    };
    // Whoever wants the last three means their own.
    let counted = || seen().filter(|(_, one)| !one.guard && !applied.spares(one));
    let mut keep = |at: usize, rule: Rule| {
        if let Some(rules) = kept.get_mut(at) {
            rules.push(rule);
        }
    };
    seen()
        .filter(|(_, one)| one.tagged)
        .for_each(|(at, _)| keep(at, Rule::Tagged));
    seen()
        .filter(|(_, one)| applied.spares(one))
        .for_each(|(at, _)| keep(at, Rule::Asked));
    counted().take(1).for_each(|(at, _)| keep(at, Rule::Newest));
    known
        .iter()
        .enumerate()
        .filter(|(_, one)| one.needed)
        .for_each(|(at, _)| keep(at, Rule::Undo));
    let count = |wanted: Option<u64>| usize::try_from(wanted.unwrap_or(0)).unwrap_or(usize::MAX);
    // What mkdir(2) made is counted by itself: it pushes out nothing of those who ask the daemon.
    let series = |by_mkdir: bool| counted().filter(move |(_, one)| one.by_mkdir == by_mkdir);
    for by_mkdir in [false, true] {
        series(by_mkdir)
            .take(count(retention.keep_last))
            .for_each(|(at, _)| keep(at, Rule::Last));
    }
    if let Some(within_s) = retention.keep_within_s {
        let within_s = i64::try_from(within_s).unwrap_or(i64::MAX);
        let since_ns = now_ns.saturating_sub(within_s.saturating_mul(1_000_000_000));
        seen()
            .filter(|(_, one)| one.made_ns >= since_ns)
            .for_each(|(at, _)| keep(at, Rule::Within));
    }
    let spans = [
        (Rule::Hourly, retention.keep_hourly),
        (Rule::Daily, retention.keep_daily),
        (Rule::Weekly, retention.keep_weekly),
    ];
    for ((rule, wanted), by_mkdir) in spans
        .into_iter()
        .flat_map(|span| [(span, false), (span, true)])
    {
        for at in newest_of_spans(series(by_mkdir).collect(), count(wanted), |at_ns| {
            span_of(rule, at_ns, zone)
        }) {
            keep(at, rule);
        }
    }
    if !retention.has_rules() {
        seen().for_each(|(at, _)| keep(at, Rule::NoRule));
    }
    kept
}

/// Which of the copies of checkpoints, the oldest first, rules keep: each is told by when it was
/// made, in nanoseconds since 1970, and whether it has a tag. As of checkpoints, the newest and
/// those with a tag always stay.
pub fn keeps(copies: &[(i64, bool)], retention: &Retention) -> Vec<bool> {
    let known: Vec<Known> = copies
        .iter()
        .zip(1..)
        .map(|((made_ns, tagged), id)| Known {
            id: CheckpointId(id),
            made_ns: *made_ns,
            manual: true,
            by_mkdir: false,
            tagged: *tagged,
            pinned: false,
            base: false,
            named: false,
            hidden: false,
            guard: false,
            needed: false,
            undecided: false,
        })
        .collect();
    let now_ns = i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
    let applied = Applied {
        retention,
        automatic: false,
        now_ns,
    };
    let rules = rules(&known, applied, &TimeZone::system());
    rules.iter().map(|rules| !rules.is_empty()).collect()
}

/// Of each of the newest `wanted` spans of time the newest checkpoint that a person asked for, else
/// the newest.
fn newest_of_spans(
    mut known: Vec<(usize, &Known)>,
    wanted: usize,
    span_of: impl Fn(i64) -> String,
) -> Vec<usize> {
    // What was imported may be older than what was made before.
    known.sort_by_key(|(_, one)| std::cmp::Reverse(one.made_ns));
    let mut chosen: Vec<(String, usize, bool)> = Vec::new();
    for (at, one) in known {
        let span = span_of(one.made_ns);
        if let Some((_, newest, manual)) = chosen.iter_mut().find(|(known, ..)| *known == span) {
            if !*manual && one.manual {
                (*newest, *manual) = (at, true);
            }
        } else if chosen.len() < wanted {
            chosen.push((span, at, one.manual));
        }
    }
    chosen.into_iter().map(|(_, at, _)| at).collect()
}

/// Which hour, day or week it is, where the daemon is.
fn span_of(rule: Rule, at_ns: i64, zone: &TimeZone) -> String {
    let Ok(time) = Timestamp::from_nanosecond(i128::from(at_ns)) else {
        return String::new();
    };
    let local = time.to_zoned(zone.clone());
    match rule {
        Rule::Weekly => local
            .date()
            .iso_week_date()
            .to_string()
            .chars()
            .take("2026-W01".len())
            .collect(),
        Rule::Daily => local.date().to_string(),
        // Twice the same hour, when clocks are set back, is two hours.
        _ => format!("{} {} {}", local.date(), local.hour(), local.offset()),
    }
}

/// The order in which checkpoints go: those that were deleted, those that no rule keeps, and, as
/// far as the history is too large, those that are kept only by a rule that counts: first those not
/// made on request. Oldest first each. With it, how many of them go whatever the size is.
///
/// Deleted ones that only wait for `retention.keep-undone` to pass follow the other deleted ones,
/// so that the size of the history is counted without them.
pub(super) fn order(known: &[Known], rules: &[Vec<Rule>]) -> (Vec<usize>, usize) {
    let each = || known.iter().zip(rules).enumerate();
    let unkept = |hidden: bool| {
        each()
            .filter(move |(_, (one, rules))| rules.is_empty() && one.hidden == hidden)
            .map(|(at, _)| at)
    };
    let waiting = each()
        .filter(|(_, (one, rules))| one.is_waiting(rules))
        .map(|(at, _)| at);
    let mut order: Vec<usize> = unkept(true).chain(waiting).chain(unkept(false)).collect();
    let sure = order.len();
    let held = |rules: &[Rule]| {
        rules.iter().any(|rule| {
            matches!(
                rule,
                Rule::Pinned
                    | Rule::Branch
                    | Rule::Named
                    | Rule::Tagged
                    | Rule::Newest
                    | Rule::Undo
                    | Rule::Asked
            )
        })
    };
    for manual in [false, true] {
        order.extend(
            each()
                .filter(|(_, (one, rules))| {
                    !rules.is_empty() && !held(rules) && one.manual == manual
                })
                .map(|(at, _)| at),
        );
    }
    (order, sure)
}

#[cfg(test)]
mod tests;
