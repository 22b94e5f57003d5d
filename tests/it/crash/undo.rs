//! The daemon is killed at the first, second, third ... modifying system call of an undo, until the
//! undo completes. After the next mount the undo is done entirely or not at all, and the operation
//! log agrees.

use std::path::Path;

use serde_json::Value;

use super::nth::operation_killed;
use crate::common::command::{sh, try_run_limited};
use crate::common::random::is_long;
use crate::common::tree::{Tree, TreeOpts, assert_tree_is, compare, tree};
use crate::common::{Image, Io, Mount, MountOpts, Variant, for_each_variant, skip, tool};

/// An undo or redo.
struct Case {
    what: &'static str,
    /// Verbs run before it. Checkpoints 1 and 2 are tagged `first` and `second`; 3 is the guard of
    /// a restore.
    before: &'static [&'static [&'static str]],
    script: &'static str,
    /// Expected checkpoints and tags of the first one, if the operation is not done, and if it is.
    names: [(&'static [u64], &'static [&'static str]); 2],
    /// Whether the tree equals checkpoint 1 before it, and after it.
    first: [bool; 2],
}

const CASES: [Case; 6] = [
    Case {
        what: "undo of a restore",
        before: &[&["restore", "1"]],
        script: "$CKPTFS undo",
        names: [(&[1, 2, 3], &["first"]), (&[1, 2, 3, 4], &["first"])],
        first: [true, false],
    },
    Case {
        what: "redo of a restore",
        before: &[&["restore", "1"], &["undo"]],
        script: "$CKPTFS redo",
        names: [(&[1, 2, 3, 4], &["first"]), (&[1, 2, 3, 4, 5], &["first"])],
        first: [false, true],
    },
    Case {
        what: "undo of a deletion",
        before: &[&["delete", "1"]],
        script: "$CKPTFS undo",
        names: [(&[2], &[]), (&[1, 2], &["first"])],
        first: [false, false],
    },
    Case {
        what: "undo of a checkpoint",
        before: &[],
        script: "$CKPTFS undo --force",
        names: [(&[1, 2], &["first"]), (&[1], &["first"])],
        first: [false, false],
    },
    Case {
        what: "undo of a tag that was moved",
        before: &[&["tag", "--force", "2", "first"]],
        script: "$CKPTFS undo",
        names: [(&[1, 2], &[]), (&[1, 2], &["first"])],
        first: [false, false],
    },
    Case {
        what: "delete",
        before: &[],
        script: "$CKPTFS delete 1",
        names: [(&[1, 2], &["first"]), (&[2], &[])],
        first: [false, false],
    },
];

fn undo_killed_at_each_call(v: Variant) {
    if !try_run_limited(&mut tool("strace", &["-V"]), 60)
        .is_ok_and(|output| output.status.success())
    {
        return skip("strace is not installed");
    }
    let image = Image::of(v.fs);
    let (from, every) = if is_long() {
        (0, 1)
    } else {
        (usize::from(v.io == Io::Daemon), 2)
    };
    let (mut mounts, mut both) = (0, [0, 0]);
    for case in CASES.iter().skip(from).step_by(every) {
        let mut nth = 1;
        loop {
            mounts += 1;
            let (killed, done) = killed_at(v, &image.dir(&format!("project-{mounts}")), case, nth);
            if !killed {
                assert!(
                    done,
                    "{}: it failed although no call was interrupted",
                    case.what
                );
                break;
            }
            both[usize::from(done)] += 1;
            nth += if is_long() {
                1
            } else {
                nth.next_power_of_two()
            };
        }
        assert!(nth > 1, "{}: the daemon was never killed", case.what);
    }
    println!(
        "{v:?}: killed {} times before the commit, {} times after it",
        both[0], both[1]
    );
}

/// Returns whether the daemon was killed at the N-th call, and whether the operation took effect.
fn killed_at(v: Variant, root: &Path, case: &Case, nth: u32) -> (bool, bool) {
    let mut mount = Mount::start(root, &MountOpts::new(v.io));
    sh(
        root,
        "mkdir -p d/e; echo x > x; echo y > y; echo f > d/e/f; seq 40000 > large",
    );
    mount.ok(&["checkpoint", "--tag", "first"]);
    let first = tree(root);
    sh(
        root,
        "echo changed > x; mv d/e e; echo n > new; echo more >> large",
    );
    mount.ok(&["checkpoint", "--tag", "second"]);
    sh(root, "echo after > x; rm y");
    let last = tree(root);
    for verb in case.before {
        mount.ok(verb);
    }
    let operations = operations(&mount);
    // No successor may change the state left by the daemon.
    mount.kill_holder();
    let killed = operation_killed(&mount, case.script, nth);
    mount.kill();
    mount.remount();
    let done = look(
        &mount,
        case,
        &format!("{}, killed at call {nth}", case.what),
        &operations,
        (&first, &last),
    );
    (killed, done)
}

fn operations(mount: &Mount) -> Vec<Value> {
    serde_json::from_str::<Value>(&mount.ok(&["ops", "--json"]))
        .expect("json")
        .as_array()
        .expect("a list")
        .clone()
}

/// Checks that the operation is done entirely or not at all. Returns whether it is done.
fn look(
    mount: &Mount,
    case: &Case,
    shown: &str,
    before: &[Value],
    (first, last): (&Tree, &Tree),
) -> bool {
    let now = operations(mount);
    let done = now.len() > before.len();
    assert!(now.len() <= before.len() + 1, "{shown}: {now:?}");
    assert!(
        !done || now[0]["undoes"].is_u64() != case.script.contains("delete"),
        "{shown}: {now:?}"
    );
    let log = mount.log_json();
    let log = log.as_array().expect("a list");
    let ids: Vec<u64> = log
        .iter()
        .rev()
        .filter_map(|entry| entry["id"].as_u64())
        .collect();
    let (expected, tags) = case.names[usize::from(done)];
    // A guard without its restore is an ordinary checkpoint.
    let guard_only = !done && case.what.contains("restore") && ids == case.names[1].0;
    assert!(
        ids == expected || guard_only,
        "{shown}, done: {done}: the checkpoints are {ids:?}"
    );
    let found = log
        .iter()
        .find(|entry| entry["id"] == 1)
        .map_or_else(Vec::new, |entry| {
            entry["tags"].as_array().cloned().unwrap_or_default()
        });
    assert_eq!(
        found,
        tags.iter().map(|tag| Value::from(*tag)).collect::<Vec<_>>(),
        "{shown}, done: {done}"
    );
    let opts = TreeOpts::default();
    let wanted = if case.first[usize::from(done)] {
        first
    } else {
        last
    };
    let differs = compare(&tree(mount.path()), wanted, &opts);
    assert!(differs.is_empty(), "{shown}, done: {done}: {differs:?}");
    if ids.contains(&1) {
        assert_tree_is(&mount.view(1), first, &opts);
    }
    // The operation can be reversed.
    if done {
        mount.ok(&[if case.script.contains("undo") {
            "redo"
        } else {
            "undo"
        }]);
        let differs = compare(
            &tree(mount.path()),
            if case.first[0] { first } else { last },
            &opts,
        );
        assert!(differs.is_empty(), "{shown}: undone, {differs:?}");
    }
    done
}

for_each_variant! { xfs => undo_killed_at_each_call }
