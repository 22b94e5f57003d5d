//! Repeated merges: which files they examine, and which they leave unchanged.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::support::{changes, run};
use crate::common::command::sh;
use crate::common::{MountOpts, Rig, Variant, for_each_variant};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{CallKind, FaultPlan};

for_each_variant! { xfs =>
    a_merge_reads_what_was_touched_since_the_last_ones,
    what_was_settled_is_compared_by_the_next_merge,
    an_update_leaves_what_was_merged_before_alone,
    a_drop_tells_what_nobody_has_merged,
}

/// Returns a tree with a branch `fix`, and the path of the branch. The sealer is off, because it
/// examines files at any time, and the calls of a verb are counted.
fn branched(v: Variant, base: &str) -> (Rig, PathBuf) {
    let rig = v.start_with(MountOpts::new(v.io).arg("--seal=off"), |dir| run(dir, base));
    rig.mount.ok(&["branch", "create", "fix"]);
    let branch = rig.path().with_file_name("project@fix");
    (rig, branch)
}

/// Returns the number of stat calls of the daemon for a verb.
fn calls(rig: &Rig, verb: &[&str]) -> u64 {
    rig.fault(Some(FaultPlan::nth(0, Errno::EIO).only(CallKind::Stat)));
    rig.mount.ok(verb);
    rig.fault(None).0
}

/// Failed before: each merge examined everything that either side had changed since the branch
/// began.
fn a_merge_reads_what_was_touched_since_the_last_ones(v: Variant) {
    let (rig, branch) = branched(v, "mkdir d; for i in $(seq 200); do seq 20 > d/$i; done");
    let mut counts = Vec::new();
    for round in 0..9 {
        let (from, to) = (1 + round * 11, 11 + round * 11);
        run(
            &branch,
            &format!("for i in $(seq {from} {to}); do echo there >> d/$i; done"),
        );
        let merge = calls(&rig, &["merge", "fix"]);
        let (from, to) = (101 + round * 11, 111 + round * 11);
        run(
            rig.path(),
            &format!("for i in $(seq {from} {to}); do echo here >> d/$i; done"),
        );
        let update = calls(&rig, &["branch", "update", "fix"]);
        counts.push((merge, update));
    }
    println!("calls of merges and updates: {counts:?}");
    // A close handled at the same time counts; therefore the minimum of several rounds is compared.
    let least = |rounds: &[(u64, u64)]| {
        let merges = rounds.iter().map(|(merge, _)| *merge).min();
        let updates = rounds.iter().map(|(_, update)| *update).min();
        merges.zip(updates).expect("at least one round")
    };
    let ((merge, update), (last_merge, last_update)) = (least(&counts[1..5]), least(&counts[5..]));
    assert!(
        last_merge < merge + merge / 10 && last_update < update + update / 10,
        "{counts:?}"
    );
    assert_eq!(sh(rig.path(), "cat d/*"), sh(&branch, "cat d/*"));
}

/// Failed before: a conflict resolved to the parent's version left no record there, so the next
/// update missed it.
fn what_was_settled_is_compared_by_the_next_merge(v: Variant) {
    let (rig, branch) = branched(v, "echo moved > p; echo other > o");
    run(rig.path(), "echo here >> o");
    rig.mount.ok(&["branch", "update", "fix"]);
    run(&branch, "mv p n");
    run(rig.path(), "echo made > n");
    rig.mount.ok(&["merge", "fix", "--ours"]);
    assert_eq!(sh(rig.path(), "ls; cat n p"), "n\no\np\nmade\nmoved\n");
    rig.mount.ok(&["branch", "update", "fix"]);
    assert_eq!(sh(&branch, "ls; cat n p"), "n\no\np\nmade\nmoved\n");
}

/// Failed before: a file merged earlier has another time in the parent, which made the update copy
/// it up and change it.
fn an_update_leaves_what_was_merged_before_alone(v: Variant) {
    let (rig, branch) = branched(v, "echo one > f; echo one > g; echo one > h");
    let changed = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (
            found.ctime(),
            found.ctime_nsec(),
            found.mtime(),
            found.mtime_nsec(),
        )
    };
    run(&branch, "echo there >> f");
    rig.mount.ok(&["merge", "fix"]);
    run(rig.path(), "echo here >> g; touch -d 2001-02-03 h");
    let before = ["f", "h"].map(|name| changed(&branch.join(name)));
    let updated = rig.mount.json(&["branch", "update", "fix"]);
    assert_eq!(changes(&updated), ["M g"]);
    assert_eq!(before, ["f", "h"].map(|name| changed(&branch.join(name))));
    assert_eq!(sh(&branch, "cat f g"), "one\nthere\none\nhere\n");
}

/// Returns the unmerged changes that a drop would report.
fn lost(rig: &Rig) -> (u64, Vec<String>) {
    let told = rig.mount.json(&["branch", "drop", "-n", "fix"]);
    let paths = told["unmerged"].as_array().expect("a list").iter();
    let paths: Vec<String> = paths
        .map(|path| path.as_str().unwrap().to_owned())
        .collect();
    let count = |key: &str| told["branch"][key].as_u64();
    assert_eq!(count("unmerged"), Some(paths.len() as u64), "{told}");
    (count("changed").unwrap(), paths)
}

fn a_drop_tells_what_nobody_has_merged(v: Variant) {
    let (rig, branch) = branched(v, "mkdir d e; for f in a b c d/x e/y; do seq 9 > $f; done");
    let told = |changed: u64, paths: &[&str]| {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        assert_eq!(lost(&rig), (changed, paths));
    };
    told(0, &[]);
    run(
        &branch,
        "echo there >> a; echo there >> d/x; echo new > e/new; chmod 600 b",
    );
    told(4, &["a", "b", "d/x", "e/new"]);
    // An unrelated change.
    run(rig.path(), "echo here >> c");
    told(4, &["a", "b", "d/x", "e/new"]);
    // The parent made the same changes.
    run(rig.path(), "echo there >> a; chmod 600 b");
    told(4, &["d/x", "e/new"]);
    // The path differs in the parent.
    run(rig.path(), "mv d moved");
    told(4, &["e/new", "moved/x"]);
    let only = rig.path().join("e/new");
    rig.mount.ok(&["merge", "fix", only.to_str().unwrap()]);
    told(4, &["moved/x"]);
    rig.mount.ok(&["merge", "fix"]);
    told(0, &[]);
    run(&branch, "echo more >> d/x");
    told(1, &["moved/x"]);
    rig.mount.ok(&["branch", "update", "fix"]);
    told(1, &["moved/x"]);
    run(rig.path(), "echo here >> a");
    told(1, &["moved/x"]);
    run(rig.path(), "echo more >> moved/x");
    told(1, &[]);
}
