//! A merge that is cut short, or fails, is taken back.

use super::support::{fault, lines, merge, same};
use crate::common::command::sh;
use crate::common::random::is_long;
use crate::common::tree::{TreeOpts, compare, tree};
use crate::common::{Io, Variant, for_each_variant};
use ckptfs::internals::sys::Errno;
use ckptfs::internals::sys::fault::Plan;

const BASE: &str = "mkdir -p d/e; for f in a b c d/f d/e/g; do seq 20 > $f; done; ln a d/hard; setfattr -n user.a -v 1 b";
const THEIRS: &str = "echo more >> a; mv d moved; rm c; echo new > new; mkdir m; echo m > m/m; chmod 600 b; echo x > moved/f; setfattr -n user.a -v 2 b; echo t >> moved/e/g";
const OURS: &str = "e s/^3$/three/ d/e/g; echo own > own";
/// Calls after which a merge is over in any case.
const CALLS_MAX: u64 = 5000;

for_each_variant! { one => killed_at_each_call, a_call_that_fails }

/// The daemon is killed at its first, second, third ... call of a merge: the next mount has either
/// done it, and tells of the operation, or not.
fn killed_at_each_call(v: Variant) {
    let (mut nth, mut taken_back, mut done) = (if v.io == Io::Daemon { 5 } else { 1 }, 0, false);
    while !done {
        let mut rig = lines(v, BASE, THEIRS, OURS);
        let root = rig.path().to_owned();
        let before = tree(&root);
        rig.mount.kill_holder();
        let plan = Plan {
            kill: true,
            ..Plan::nth(nth, Errno::EIO)
        };
        fault(&rig, Some(plan));
        let answered = rig
            .mount
            .run(&["merge", "2", "--base", "1"])
            .status
            .success();
        if rig.mount.run(&["log"]).status.success() {
            done = true;
            fault(&rig, None);
        } else {
            rig.mount.kill();
            rig.mount.remount();
        }
        let merged = rig.mount.json(&["ops"])[0]["what"] == "merge";
        let wrong = compare(&tree(&root), &before, &TreeOpts::default());
        assert_eq!(merged, !wrong.is_empty(), "killed at call {nth}: {wrong:?}");
        assert!(merged || !answered, "killed at call {nth}, it was answered");
        if merged {
            let said = sh(
                &root,
                "cat new m/m own; tail -1 a; sed -n 3p moved/e/g; tail -1 moved/e/g",
            );
            assert_eq!(said, "new\nm\nown\nmore\nthree\nt\n");
        } else {
            let known = rig.mount.log_json().as_array().expect("a list").len();
            taken_back += usize::from(known > 3);
        }
        let staging = root.join(".ckptfs/tmp/restore");
        assert_eq!(sh(&staging, "ls"), "", "killed at call {nth}");
        nth += if is_long() { 1 } else { 13 };
        assert!(nth < CALLS_MAX, "it never gets by");
    }
    assert!(
        taken_back > 2,
        "it was cut short and taken back {taken_back} times"
    );
}

/// Each of its calls fails once: the merge is done, or everything is as it was and it can be done.
fn a_call_that_fails(v: Variant) {
    let rig = lines(v, BASE, THEIRS, OURS);
    let root = rig.path().to_owned();
    let before = tree(&root);
    let (mut nth, mut failures) = (1, 0);
    loop {
        fault(&rig, Some(Plan::nth(nth, Errno::ENOSPC)));
        let output = rig.mount.run(&["merge", "2", "--base", "1"]);
        let (_, failed) = fault(&rig, None);
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            assert!(
                merge(&rig, &[]).0["changes"]
                    .as_array()
                    .expect("a list")
                    .is_empty()
            );
            rig.mount.ok(&["undo"]);
            same(&root, &before);
        } else {
            failures += 1;
            let wrong = compare(&tree(&root), &before, &TreeOpts::default());
            assert!(wrong.is_empty(), "call {nth} failed: {shown}: {wrong:?}");
        }
        if failed == 0 {
            break;
        }
        nth += if is_long() { 1 } else { 4 };
        assert!(nth < CALLS_MAX, "it never gets by");
    }
    assert!(failures > 0, "it never failed");
}
