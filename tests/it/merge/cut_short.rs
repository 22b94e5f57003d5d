//! A merge that is interrupted or fails is rolled back.

use super::support::{lines, merge, same};
use crate::common::command::sh;
use crate::common::random::{Random, is_long, seed};
use crate::common::tree::{Tree, TreeOpts, compare, tree};
use crate::common::{Rig, Variant, for_each_variant};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{CallKind, FaultPlan};

const BASE: &str =
    "mkdir -p d/e; for f in a b c d/f d/e/g; do seq 20 > $f; done; setfattr -n user.a -v 1 b";
const THEIRS: &str = "echo more >> a; mv d moved; rm c; echo new > new; mkdir m; echo m > m/m; chmod 600 b; ln a hard; setfattr -n user.a -v 2 b; echo t >> moved/e/g";
const OURS: &str = "e s/^3$/three/ d/e/g; echo own > own";
/// Calls that change something, without those of the index, which another thread makes at any time.
const KINDS: [CallKind; 9] = [
    CallKind::Create,
    CallKind::Make,
    CallKind::Link,
    CallKind::Rename,
    CallKind::Unlink,
    CallKind::Write,
    CallKind::Clone,
    CallKind::SetAttributes,
    CallKind::SetXattr,
];

for_each_variant! { xfs => killed_at_calls, calls_that_fail }

/// Chooses the calls of a merge at which to inject a fault, `some` random ones of each kind. It
/// chooses every write and one past the last, because writes store the records of the guard, the
/// begin, the changes and the end. In the long form it chooses each call. The merges that count the
/// calls are undone.
fn calls_of_a_merge(rig: &Rig, before: &Tree, some: u64) -> Vec<(CallKind, u64)> {
    let mut random = Random::new(seed("calls of a merge", 1));
    let mut chosen = Vec::new();
    for kind in KINDS {
        rig.fault(Some(FaultPlan::nth(0, Errno::EIO).only(kind)));
        let (merged, done) = merge(rig, &[]);
        let (calls, _) = rig.fault(None);
        assert!(done && calls > 0, "{kind:?}: {merged}");
        rig.mount.ok(&["undo"]);
        same(rig.path(), before);
        let mut nths: Vec<u64> = if is_long() || kind == CallKind::Write {
            (1..=calls + u64::from(kind == CallKind::Write)).collect()
        } else {
            (0..some).map(|_| 1 + random.below(calls)).collect()
        };
        nths.sort_unstable();
        nths.dedup();
        println!("{kind:?}: {nths:?} of {calls}");
        chosen.extend(nths.into_iter().map(|nth| (kind, nth)));
    }
    chosen
}

fn newest(rig: &Rig) -> u64 {
    let log = rig.mount.log_json();
    let ids = log.as_array().expect("a list").iter();
    ids.filter_map(|checkpoint| checkpoint["id"].as_u64())
        .max()
        .expect("a checkpoint")
}

/// Asserts that the changes of both sides are present, and undoes the merge.
fn undone(rig: &Rig, before: &Tree) {
    let said = sh(
        rig.path(),
        "cat new m/m own; tail -1 hard; sed -n 3p moved/e/g; tail -1 moved/e/g",
    );
    assert_eq!(said, "new\nm\nown\nmore\nthree\nt\n");
    rig.mount.ok(&["undo"]);
    same(rig.path(), before);
}

/// After the daemon is killed during a merge, the next mount has completed it, with its operation
/// in the log, or rolled it back.
fn killed_at_calls(v: Variant) {
    let mut rig = lines(v, BASE, THEIRS, OURS);
    let root = rig.path().to_owned();
    let before = tree(&root);
    let [mut not_begun, mut taken_back, mut done] = [0; 3];
    for (kind, nth) in calls_of_a_merge(&rig, &before, 1) {
        let shown = format!("killed at call {nth} of {kind:?}");
        let guards = newest(&rig);
        rig.mount.kill_holder();
        let plan = FaultPlan {
            kill: true,
            ..FaultPlan::nth(nth, Errno::EIO).only(kind)
        };
        rig.fault(Some(plan));
        let answered = rig.mount.run(&["merge", "2", "--base", "1"]);
        rig.mount.kill();
        rig.mount.remount();
        assert_eq!(sh(&root, "ls .ckptfs/tmp/restore/"), "", "{shown}");
        if rig.mount.json(&["ops"])[0]["what"] == "merge" {
            undone(&rig, &before);
            done += 1;
            continue;
        }
        assert!(!answered.status.success(), "{shown}, it succeeded");
        let wrong = compare(&tree(&root), &before, &TreeOpts::default());
        assert!(wrong.is_empty(), "{shown}: {wrong:?}");
        match newest(&rig) > guards {
            true => taken_back += 1,
            false => not_begun += 1,
        }
    }
    let found = format!("not begun {not_begun}, rolled back {taken_back}, done {done}");
    println!("{v:?}: {found}");
    assert!(not_begun > 0 && taken_back > 0 && done > 0, "{found}");
}

/// A call fails once, or it and all later ones: the merge completes, or everything is unchanged and
/// it can be repeated. If the rollback also fails, restoring the named guard does that.
fn calls_that_fail(v: Variant) {
    let rig = lines(v, BASE, THEIRS, OURS);
    let root = rig.path().to_owned();
    let before = tree(&root);
    let [mut not_begun, mut taken_back, mut done, mut left] = [0; 4];
    let calls = calls_of_a_merge(&rig, &before, 2);
    let once = calls.iter().map(|call| (*call, false));
    let lasting = calls.iter().filter(|(_, nth)| is_long() || nth % 3 == 1);
    let lasting = lasting.map(|call| (*call, true));
    for ((kind, nth), lasting) in once.chain(lasting) {
        let guards = newest(&rig);
        let plan = FaultPlan {
            lasting,
            ..FaultPlan::nth(nth, Errno::ENOSPC).only(kind)
        };
        rig.fault(Some(plan));
        let output = rig.mount.run(&["merge", "2", "--base", "1"]);
        let (_, failed) = rig.fault(None);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let shown = format!("{kind:?}, call {nth}, lasting: {lasting}: {said}");
        if output.status.success() {
            undone(&rig, &before);
            done += 1;
            continue;
        }
        let why = "the merge failed: No space left on device";
        assert!(failed > 0 && said.contains(why), "{shown}");
        let guard = newest(&rig);
        let way_back = format!("nothing is lost: `ckptfs restore {guard}`");
        if guard == guards {
            not_begun += 1;
        } else if lasting && said.contains(&way_back) {
            rig.mount.restore(guard);
            left += 1;
        } else {
            assert!(said.contains("nothing was changed"), "{shown}");
            taken_back += 1;
        }
        let wrong = compare(&tree(&root), &before, &TreeOpts::default());
        assert!(wrong.is_empty(), "{shown}: {wrong:?}");
    }
    let found =
        format!("not begun {not_begun}, rolled back {taken_back}, done {done}, left {left}");
    println!("{v:?}: {found}");
    assert!(not_begun > 0 && taken_back > 0 && done > 0, "{found}");
}
