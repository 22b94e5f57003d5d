use super::*;

const T: Duration = Duration::from_secs(1);

fn tripwire() -> Tripwire {
    Tripwire::new(TripwireConfig {
        count: 3,
        within: T,
    })
}

/// Executes an operation at `now`; returns the marks confirmed by it.
fn destroy(
    tripwire: &Tripwire,
    pid: u32,
    now: Instant,
    next_id: &mut u64,
    session: impl Fn(u32) -> Option<i32>,
) -> Vec<CheckpointId> {
    if let BeforeAction::Mark { in_burst } = tripwire.before(pid, now) {
        if in_burst.is_some_and(|burst| burst == session(pid)) {
            tripwire.joins(pid);
        } else {
            *next_id += 1;
            assert_eq!(
                tripwire.marked(pid, Some(CheckpointId(*next_id)), HashSet::new(), now),
                None
            );
        }
    }
    tripwire
        .after(pid, Slot(1), now)
        .map_or_else(Vec::new, |pids| tripwire.judge(&pids, now, session))
}

#[test]
fn a_burst_keeps_the_mark_before_its_first_operation() {
    let (tripwire, mut id, start) = (tripwire(), 0, Instant::now());
    let at = |ms: u64| start + Duration::from_millis(ms);
    for ms in [0, 10, 20] {
        assert_eq!(destroy(&tripwire, 7, at(ms), &mut id, |_| Some(1)), []);
    }
    assert_eq!(tripwire.decide(at(30)).take_back, [], "it may go on");
    assert_eq!(
        destroy(&tripwire, 7, at(40), &mut id, |_| Some(1)),
        [CheckpointId(1)]
    );
    for ms in 41..900 {
        assert_eq!(destroy(&tripwire, 7, at(ms), &mut id, |_| Some(1)), []);
    }
    assert_eq!(
        (id, tripwire.decide(at(5000))),
        (1, MarkDecision::default()),
        "one mark, and it stays"
    );
}

#[test]
fn a_few_operations_are_no_burst_and_the_mark_is_taken_back_when_it_is_quiet() {
    let (tripwire, mut id, start) = (tripwire(), 0, Instant::now());
    let at = |ms: u64| start + Duration::from_millis(ms);
    for ms in [0, 600, 1200, 1800, 2400, 3000] {
        assert_eq!(destroy(&tripwire, 7, at(ms), &mut id, |_| Some(1)), []);
    }
    assert_eq!(id, 1, "who goes on needs no other mark");
    assert_eq!(tripwire.decide(at(3500)).take_back, []);
    assert_eq!(tripwire.decide(at(4000)).take_back, [CheckpointId(1)]);
    assert_eq!(tripwire.decide(at(4001)), MarkDecision::default());
    destroy(&tripwire, 7, at(5000), &mut id, |_| Some(1));
    assert_eq!(id, 2, "after a quiet while there is another");
}

/// `git checkout .` over two edited files, whose content exists nowhere else.
#[test]
fn files_that_were_edited_count_for_several_once_each() {
    let (tripwire, start) = (
        Tripwire::new(TripwireConfig {
            count: 9,
            within: T,
        }),
        Instant::now(),
    );
    let at = |ms: u64| start + Duration::from_millis(ms);
    assert_eq!(
        tripwire.before(7, at(0)),
        BeforeAction::Mark { in_burst: None }
    );
    tripwire.marked(
        7,
        Some(CheckpointId(1)),
        HashSet::from([Slot(1), Slot(2)]),
        at(0),
    );
    let mut kept = Vec::new();
    for (ms, slot) in [(1, 1), (2, 1), (3, 1), (4, 3)] {
        assert_eq!(
            tripwire.after(7, Slot(slot), at(ms)),
            None,
            "one that is rewritten again and again is one"
        );
    }
    kept.extend(
        tripwire
            .after(7, Slot(2), at(5))
            .map(|done| tripwire.judge(&done, at(5), |_| Some(1))),
    );
    assert_eq!(kept, [vec![CheckpointId(1)]]);
}

/// `find -exec rm`: a process of one session for each file.
#[test]
fn many_processes_of_one_tree_make_one_burst() {
    let (tripwire, mut id, start) = (tripwire(), 0, Instant::now());
    let mut kept = Vec::new();
    for n in 0..400 {
        kept.extend(destroy(
            &tripwire,
            100 + n,
            start + Duration::from_millis(u64::from(n) * 20),
            &mut id,
            |_| Some(1),
        ));
    }
    assert_eq!(
        (kept, id),
        (vec![CheckpointId(1)], 1),
        "8 seconds of it, one mark"
    );
}

#[test]
fn processes_of_many_trees_make_none() {
    let (tripwire, mut id, start) = (tripwire(), 0, Instant::now());
    for n in 0..40_u32 {
        let session = |pid: u32| i32::try_from(pid).ok();
        assert_eq!(
            destroy(
                &tripwire,
                100 + n % 10,
                start + Duration::from_millis(u64::from(n) * 20),
                &mut id,
                session
            ),
            []
        );
    }
}

/// A burst that ends before the next check: the first check found another process among the last
/// operations.
#[test]
fn a_short_burst_after_an_operation_of_somebody_else_is_seen() {
    let (tripwire, mut id, start) = (tripwire(), 0, Instant::now());
    let session = |pid: u32| i32::try_from(pid).ok();
    destroy(&tripwire, 7, start, &mut id, session);
    let later = start + T + Duration::from_millis(1);
    destroy(&tripwire, 7, later, &mut id, session);
    let kept: Vec<_> = (1..6)
        .flat_map(|n| {
            destroy(
                &tripwire,
                8,
                later + Duration::from_millis(n),
                &mut id,
                session,
            )
        })
        .collect();
    assert_eq!(
        (kept, id),
        (vec![CheckpointId(2)], 2),
        "it relies on the mark that was made just before"
    );
}

/// A process that removes files occasionally neither hides the burst of another nor makes its mark
/// inexact.
#[test]
fn a_burst_beside_somebody_who_removes_all_the_time_has_its_own_mark() {
    let (tripwire, mut id, start) = (tripwire(), 0, Instant::now());
    let at = |ms: u64| start + Duration::from_millis(ms);
    let session = |pid: u32| i32::try_from(pid).ok();
    for n in 0..10 {
        destroy(&tripwire, 7, at(n * 500), &mut id, session);
    }
    assert_eq!(id, 1);
    let kept: Vec<_> = (0..9)
        .flat_map(|n| destroy(&tripwire, 8, at(4600 + n), &mut id, session))
        .collect();
    assert_eq!((kept, id), (vec![CheckpointId(2)], 2));
}

#[test]
fn its_memory_is_bounded() {
    let (tripwire, mut id, start) = (tripwire(), 0, Instant::now());
    for n in 0..20_000_u32 {
        destroy(
            &tripwire,
            n,
            start + Duration::from_millis(u64::from(n)),
            &mut id,
            |pid| i32::try_from(pid).ok(),
        );
        if n % 500 == 0 {
            tripwire.decide(start + Duration::from_millis(u64::from(n)));
        }
    }
    let state = tripwire.state.lock();
    assert!(
        state.processes.len() <= 2 * PROCESSES_MAX
            && state.last.len() <= 4
            && state.marks.len() <= MARKS_MAX
    );
}
