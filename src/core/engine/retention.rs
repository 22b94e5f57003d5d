//! Retention rules: the checkpoints that each keeps, and the order in which the others are removed.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::settings::Settings;
use ckptfs_api::{CheckpointId, GcOptions, Retention, Rule};

/// Returns the configured rules.
pub fn configured(settings: &Settings) -> Retention {
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

/// How a run of `gc` applies the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleContext<'a> {
    pub retention: &'a Retention,
    /// The run is automatic (`retention.auto`): without [`Retention::manual`] it neither counts nor
    /// removes requested checkpoints.
    pub automatic: bool,
    /// Wall clock, nanoseconds since the epoch.
    pub now_ns: i64,
}

impl<'a> RuleContext<'a> {
    /// Returns the context of a run at `now_ns`.
    pub fn of(options: &'a GcOptions, now_ns: i64) -> RuleContext<'a> {
        RuleContext {
            retention: &options.retention,
            automatic: options.automatic,
            now_ns,
        }
    }

    fn spares(&self, one: &RuleSubject) -> bool {
        self.automatic && !self.retention.manual && one.manual
    }
}

/// Properties of a checkpoint for the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleSubject {
    pub id: CheckpointId,
    pub made_ns: i64,
    /// Requested by a user.
    pub manual: bool,
    /// Made by mkdir(2), by any user with write access to the root directory.
    pub by_mkdir: bool,
    pub tagged: bool,
    pub pinned: bool,
    /// Base of a branch.
    pub base: bool,
    /// See [`Retention::keep_ids`].
    pub named: bool,
    /// Deleted but not freed yet.
    pub hidden: bool,
    /// The guard of a restore, or a mark of the tripwire.
    pub guard: bool,
    /// Protected for a time regardless of the rules: see [`Rule::Undo`].
    pub needed: bool,
    /// A hidden mark that may still be confirmed.
    pub undecided: bool,
}

impl RuleSubject {
    /// Returns whether it was deleted and can still be restored. Undecided marks were not deleted:
    /// this run keeps their data.
    pub(super) fn is_waiting(&self, rules: &[Rule]) -> bool {
        self.hidden && !self.undecided && rules == [Rule::Undo]
    }

    /// Returns the reasons that override every rule and the size limit.
    fn held(&self) -> Vec<Rule> {
        let rules = [
            self.pinned.then_some(Rule::Pinned),
            self.base.then_some(Rule::Branch),
            self.named.then_some(Rule::Named),
        ];
        rules.into_iter().flatten().collect()
    }
}

/// Returns the rules that keep each checkpoint; `known` is ordered oldest first. Checkpoints
/// without any are removed.
pub(super) fn rules(
    known: &[RuleSubject],
    applied: RuleContext<'_>,
    zone: &TimeZone,
) -> Vec<Vec<Rule>> {
    let (retention, now_ns) = (applied.retention, applied.now_ns);
    let mut kept: Vec<Vec<Rule>> = known.iter().map(RuleSubject::held).collect();
    let seen = || {
        known
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, one)| !one.hidden)
    };
    // Guards and marks do not count in rules.
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
    // Checkpoints made by mkdir(2) are counted separately: they do not displace those requested
    // from the daemon.
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

/// Applies rules to copies of checkpoints, ordered oldest first: each is a time of creation, in
/// nanoseconds since the epoch, and whether it is tagged. As for checkpoints, the newest and tagged
/// ones are always kept.
pub fn keeps(copies: &[(i64, bool)], retention: &Retention) -> Vec<bool> {
    let known: Vec<RuleSubject> = copies
        .iter()
        .zip(1..)
        .map(|((made_ns, tagged), id)| RuleSubject {
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
    let applied = RuleContext {
        retention,
        automatic: false,
        now_ns,
    };
    let rules = rules(&known, applied, &TimeZone::system());
    rules.iter().map(|rules| !rules.is_empty()).collect()
}

/// Returns one checkpoint for each of the newest `wanted` periods: the newest requested by a user,
/// or else the newest.
fn newest_of_spans(
    mut known: Vec<(usize, &RuleSubject)>,
    wanted: usize,
    span_of: impl Fn(i64) -> String,
) -> Vec<usize> {
    // Imported checkpoints may be older than those made before.
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

/// Returns the hour, day or week in the daemon's time zone.
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
        // The offset distinguishes the repeated hour when clocks are set back.
        _ => format!("{} {} {}", local.date(), local.hour(), local.offset()),
    }
}

/// Returns the order of removal, each group oldest first: deleted checkpoints; those without a
/// rule; and, as far as the size requires it, those kept only by rules of count or age, requested
/// ones last. Also returns how many are removed regardless of the size.
///
/// Deleted ones that only wait for `retention.keep-undone` follow the other deleted ones, and do
/// not count in the size of the history.
pub(super) fn order(known: &[RuleSubject], rules: &[Vec<Rule>]) -> (Vec<usize>, usize) {
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
