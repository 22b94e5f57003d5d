use super::*;

const HOUR_NS: i64 = 3_600_000_000_000;
const NOW_NS: i64 = 1_700_000_000_000_000_000;

/// One for each hour, the last at `NOW_NS`; numbered from 1.
fn hourly(count: u64) -> Vec<RuleSubject> {
    let age = |id: u64| i64::try_from(count - id).unwrap();
    let known = |id: u64| RuleSubject {
        id: CheckpointId(id),
        made_ns: NOW_NS - age(id) * HOUR_NS,
        manual: true,
        by_mkdir: false,
        tagged: false,
        pinned: false,
        base: false,
        hidden: false,
        guard: false,
        needed: false,
        undecided: false,
        named: false,
    };
    (1..=count).map(known).collect()
}

fn rules_of(known: &[RuleSubject], retention: &Retention, automatic: bool) -> Vec<Vec<Rule>> {
    let applied = RuleContext {
        retention,
        automatic,
        now_ns: NOW_NS,
    };
    rules(known, applied, &TimeZone::UTC)
}

fn kept(known: &[RuleSubject], retention: &Retention) -> Vec<u64> {
    let rules = rules_of(known, retention, false);
    known
        .iter()
        .zip(rules)
        .filter(|(_, rules)| !rules.is_empty())
        .map(|(one, _)| one.id.0)
        .collect()
}

#[test]
fn what_is_older_than_its_number_says_keeps_nothing_newer_out() {
    // Three days imported today, after two checkpoints made today.
    let mut known = hourly(5);
    for (one, days) in known.iter_mut().skip(2).zip([3, 2, 1]) {
        one.made_ns = NOW_NS - days * 24 * HOUR_NS;
    }
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_daily: Some(2),
                ..Retention::default()
            }
        ),
        [2, 5],
        "today's, and yesterday's"
    );
}

#[test]
fn each_rule_keeps_what_it_says_and_together_they_keep_what_one_does() {
    let known = hourly(100);
    let none = Retention::default();
    let last = |count| Retention {
        keep_last: Some(count),
        ..Retention::default()
    };
    let within = Retention {
        keep_within_s: Some(7200),
        ..none.clone()
    };
    let two_hours = Retention {
        keep_hourly: Some(2),
        ..none.clone()
    };
    let three_days = Retention {
        keep_daily: Some(3),
        ..none.clone()
    };
    let two_weeks = Retention {
        keep_weekly: Some(2),
        ..none.clone()
    };
    let both = Retention {
        keep_daily: Some(2),
        ..last(2)
    };
    let cases: [(&Retention, &[u64], &str); 7] = [
        (&last(3), &[98, 99, 100], ""),
        (&last(0), &[100], "the newest stays"),
        (&within, &[98, 99, 100], ""),
        (&two_hours, &[99, 100], ""),
        (
            &three_days,
            &[53, 77, 100],
            "2023-11-14 22:13 UTC: the days before ended with these",
        ),
        (
            &two_weeks,
            &[53, 100],
            "a Tuesday; the week before ended with 53",
        ),
        (&both, &[77, 99, 100], ""),
    ];
    for (retention, stay, why) in cases {
        assert_eq!(kept(&known, retention), stay, "{why}");
    }
    assert_eq!(kept(&known, &none).len(), 100, "without a rule all stays");
    assert!(kept(&[], &last(1)).is_empty());
}

#[test]
fn pins_and_tags_stay_and_what_a_person_asked_for_stands_for_its_day() {
    let mut known = hourly(60);
    (known[4].pinned, known[9].tagged) = (true, true);
    known
        .iter_mut()
        .skip(30)
        .for_each(|one| one.manual = one.id.0 == 40);
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_last: Some(1),
                ..Retention::default()
            }
        ),
        [5, 10, 60]
    );
    // The newest day begins with 38: 40 represents it, and 30, the last manual one, the day before.
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_daily: Some(2),
                ..Retention::default()
            }
        ),
        [5, 10, 30, 40, 60]
    );
}

/// Two restores an hour had displaced all but guards from the last three.
#[test]
fn guards_are_not_counted_and_stay_as_long_as_undo_needs_them() {
    let mut known = hourly(8);
    known
        .iter_mut()
        .skip(4)
        .for_each(|one| (one.guard, one.manual) = (true, false));
    known[6].needed = true;
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_last: Some(2),
                ..Retention::default()
            }
        ),
        [3, 4, 7]
    );
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_last: Some(0),
                ..Retention::default()
            }
        ),
        [4, 7],
        "the newest is one that counts"
    );
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_hourly: Some(2),
                ..Retention::default()
            }
        ),
        [3, 4, 7]
    );
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_within_s: Some(3600),
                ..Retention::default()
            }
        ),
        [4, 7, 8],
        "but what is young is young"
    );
    let retention = Retention {
        keep_last: Some(1),
        max_bytes: Some(0),
        ..Retention::default()
    };
    let rules = rules_of(&known, &retention, false);
    assert!(
        !order(&known, &rules).0.contains(&6),
        "nor does it go because there is too much"
    );
}

/// With `keep-last`, a container that makes checkpoints by mkdir(2) could remove those of others,
/// even with a sticky root directory.
#[test]
fn what_mkdir_made_pushes_out_nothing_that_a_verb_made() {
    let mut known = hourly(60);
    known.iter_mut().skip(6).for_each(|one| one.by_mkdir = true);
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_last: Some(2),
                ..Retention::default()
            }
        ),
        [5, 6, 59, 60]
    );
    assert_eq!(
        kept(
            &known,
            &Retention {
                keep_hourly: Some(2),
                ..Retention::default()
            }
        ),
        [5, 6, 59, 60]
    );
}

#[test]
fn what_goes_goes_oldest_first_and_what_nobody_asked_for_before_the_rest() {
    let mut known = hourly(6);
    known[3].manual = false;
    (known[1].hidden, known[0].pinned) = (true, true);
    let retention = Retention {
        keep_last: Some(3),
        ..Retention::default()
    };
    let rules = rules_of(&known, &retention, false);
    let (order, sure) = order(&known, &rules);
    let ids: Vec<u64> = order.iter().map(|at| known[*at].id.0).collect();
    assert_eq!((ids, sure), (vec![2, 3, 4, 5], 2));
}

/// `retention.keep-daily` with `retention.auto` removed every checkpoint with a note.
#[test]
fn an_automatic_run_neither_counts_nor_removes_what_was_made_on_request() {
    let mut known = hourly(8);
    for one in known.iter_mut().step_by(2) {
        one.manual = false;
    }
    let mut retention = Retention {
        keep_last: Some(1),
        max_bytes: Some(0),
        ..Retention::default()
    };
    let goes = |retention: &Retention| {
        let (order, sure) = order(&known, &rules_of(&known, retention, true));
        let ids: Vec<u64> = order.iter().map(|at| known[*at].id.0).collect();
        (ids, sure)
    };
    // 7 is the newest automatic one.
    assert_eq!(goes(&retention), (vec![1, 3, 5], 3));
    retention.manual = true;
    assert_eq!(goes(&retention), ((1..8).collect(), 7));
}
