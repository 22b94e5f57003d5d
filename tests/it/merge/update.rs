//! Updates of a branch from its parent, which make the merged state their new common base.

use std::fs;
use std::path::PathBuf;

use super::support::{changes, conflicts, run, same};
use crate::common::command::sh;
use crate::common::random::{Random, seed};
use crate::common::tree::tree;
use crate::common::{MountOpts, Rig, Variant, for_each_variant};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{CallKind, FaultPlan};

for_each_variant! { reflink => what_the_parent_did_comes_into_the_branch }
for_each_variant! { xfs =>
    what_came_with_an_update_is_one_file_in_both,
    a_file_born_in_a_branch_is_merged_twice,
    an_undo_takes_the_base_back,
    conflicts_of_an_update,
    the_base_is_held,
    a_branch_of_a_branch_is_updated,
    what_both_have_is_no_change_also_where_nothing_had_to_be_done,
    an_update_reads_what_was_touched,
    an_update_that_is_killed_is_done_or_not,
    an_update_that_fails_is_called_one,
    the_name_that_goes_is_the_one_that_the_parent_removed,
}

/// Returns a tree with a branch `fix`, and the path of the branch.
fn branched(v: Variant, base: &str) -> (Rig, PathBuf) {
    branched_with(v, MountOpts::new(v.io), base)
}

fn branched_with(v: Variant, opts: MountOpts, base: &str) -> (Rig, PathBuf) {
    let rig = v.start_with(opts, |dir| run(dir, base));
    rig.mount.ok(&["branch", "create", "fix"]);
    let branch = rig.path().with_file_name("project@fix");
    (rig, branch)
}

fn update(rig: &Rig, arguments: &[&str]) -> serde_json::Value {
    rig.mount
        .json(&[&["branch", "update", "fix"], arguments].concat())
}

fn diff(rig: &Rig) -> String {
    String::from_utf8(rig.mount.run(&["branch", "diff", "fix"]).stdout).unwrap()
}

const BASE: &str = "mkdir -p d/e src; for f in a b c d/f d/e/g src/x; do seq 20 > $f; done; head -c 300000 /dev/zero | tr '\\0' z > large";
const PARENT: &str = "e s/^3$/three/ a; mv d moved; echo more >> moved/e/g; rm c; echo new > src/new; chmod 600 b; mkdir made; echo m > made/m
    printf x | dd of=large bs=1 seek=5 conv=notrunc status=none";
const BRANCH: &str = "e s/^17$/seventeen/ a; mv src source; echo own > own";

fn what_the_parent_did_comes_into_the_branch(v: Variant) {
    let (mut rig, branch) = branched(v, BASE);
    let root = rig.path().to_owned();
    run(&root, PARENT);
    run(&branch, BRANCH);
    let (before, there) = (tree(&branch), tree(&root));
    let dry = update(&rig, &["-n"]);
    same(&branch, &before);
    let done = update(&rig, &[]);
    assert_eq!(changes(&dry), changes(&done));
    assert!(
        conflicts(&done).is_empty() && changes(&done).len() > 8,
        "{done}"
    );
    same(&root, &there);
    let said = sh(
        &branch,
        "sed -n '3p;17p' a; cat source/new made/m own; tail -1 moved/e/g; ls; stat -c %a b",
    );
    assert_eq!(
        said,
        "three\nseventeen\nnew\nm\nown\nmore\na\nb\nlarge\nmade\nmoved\nown\nsource\n600\n"
    );
    assert_eq!(diff(&rig), "M a\nA own\nR src -> source\n");
    // Failed before: an updated branch had no patch.
    let patched = format!(
        "cp -a project/.snapshots/{} copy; cd copy; git init -q; {} -C ../project branch diff -p fix | git apply --whitespace=nowarn; rm -rf .git; diff -r . ../project@fix; cd ..; rm -rf copy",
        done["merged"],
        env!("CARGO_BIN_EXE_ckptfs")
    );
    assert_eq!(sh(root.parent().unwrap(), &patched), "");
    let updated = tree(&branch);
    let undo = |verb| {
        sh(
            &branch,
            &format!("{} {verb} > /dev/null", env!("CARGO_BIN_EXE_ckptfs")),
        )
    };
    undo("undo");
    same(&branch, &before);
    undo("redo");
    same(&branch, &updated);
    rig.mount.umount();
    rig.mount.remount();
    same(&branch, &updated);
    assert_eq!(diff(&rig), "M a\nA own\nR src -> source\n");
    // A repeated update is a no-op, and merging back yields the tree of the branch.
    let again = update(&rig, &[]);
    assert!(changes(&again).is_empty(), "{again}");
    rig.mount.ok(&["merge", "fix"]);
    same(&root, &updated);
    assert_eq!(diff(&rig), "");
}

/// A file made in the parent is another inode in the branch.
///
/// Failed before: a rename on one side and a write on the other were taken for a removal and a
/// change.
fn what_came_with_an_update_is_one_file_in_both(v: Variant) {
    let (mut rig, branch) = branched(v, "echo f > f");
    let root = rig.path().to_owned();
    run(
        &root,
        "seq 20 > born; mkdir -p made/deep; seq 9 > made/deep/in; echo x > made/gone",
    );
    update(&rig, &[]);
    assert_eq!(diff(&rig), "");
    run(&branch, "mv born renamed; mv made other; rm other/gone");
    run(
        &root,
        "e s/^3$/three/ born; echo ten >> made/deep/in; echo new > made/new",
    );
    let remount = |rig: &mut Rig| {
        rig.mount.umount();
        rig.mount.remount();
    };
    remount(&mut rig);
    let updated = update(&rig, &[]);
    assert!(conflicts(&updated).is_empty(), "{updated}");
    let all = "find . -type f ! -path './.ckptfs*' | sort; sed -n 3p renamed; tail -1 other/deep/in; cat other/new";
    let expected = "./f\n./other/deep/in\n./other/new\n./renamed\nthree\nten\nnew\n";
    assert_eq!(sh(&branch, all), expected);
    run(&branch, "e s/^17$/seventeen/ renamed");
    remount(&mut rig);
    let merged = rig.mount.json(&["merge", "fix"]);
    assert!(conflicts(&merged).is_empty(), "{merged}");
    assert_eq!(sh(&root, all), expected);
    assert_eq!(sh(&root, "sed -n 17p renamed"), "seventeen\n");
}

/// Failed before: after a file born in a branch was merged and changed again, a second merge
/// reported a conflict of names.
fn a_file_born_in_a_branch_is_merged_twice(v: Variant) {
    let (rig, branch) = branched(v, "echo f > f");
    let root = rig.path().to_owned();
    run(&branch, "seq 20 > born");
    rig.mount.ok(&["merge", "fix"]);
    assert_eq!(diff(&rig), "");
    run(&branch, "e s/^3$/three/ born");
    run(&root, "e s/^17$/seventeen/ born; mv born moved");
    let merged = rig.mount.json(&["merge", "fix"]);
    assert!(conflicts(&merged).is_empty(), "{merged}");
    assert_eq!(
        sh(&root, "sed -n '3p;17p' moved; ls"),
        "three\nseventeen\nf\nmoved\n"
    );
}

/// An undo on either side removes the change from the common base.
fn an_undo_takes_the_base_back(v: Variant) {
    let (rig, branch) = branched(v, "seq 20 > f");
    let root = rig.path().to_owned();
    run(&branch, "echo there > new");
    rig.mount.ok(&["merge", "fix"]);
    rig.mount.ok(&["undo"]);
    assert_eq!(diff(&rig), "A new\n");
    let merged = rig.mount.json(&["merge", "fix"]);
    assert_eq!(changes(&merged), ["A new"]);
    rig.mount.ok(&["undo"]);
    rig.mount.ok(&["redo"]);
    assert_eq!(diff(&rig), "");
    run(&root, "echo more >> f");
    update(&rig, &[]);
    sh(&branch, &format!("{} undo", env!("CARGO_BIN_EXE_ckptfs")));
    let updated = update(&rig, &[]);
    assert_eq!(changes(&updated), ["M f"]);
    assert_eq!(sh(&branch, "tail -1 f"), "more\n");
}

fn conflicts_of_an_update(v: Variant) {
    let (rig, branch) = branched(v, "echo a > f");
    run(&branch, "echo b > f");
    run(rig.path(), "echo p > f; echo new > new");
    let before = tree(&branch);
    let refused = rig.mount.run(&["branch", "update", "fix"]);
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(
        refused.status.code() == Some(1)
            && said.starts_with(
                "! f: content changed here and there\nnothing was changed: 1 conflict"
            ),
        "{said}"
    );
    same(&branch, &before);
    update(&rig, &["--keep-both"]);
    assert_eq!(sh(&branch, "cat f f.parent new"), "b\np\nnew\n");
    // A resolved conflict stays resolved.
    let again = update(&rig, &[]);
    assert!(
        changes(&again).is_empty() && conflicts(&again).is_empty(),
        "{again}"
    );
    assert_eq!(diff(&rig), "M f\nA f.parent\n");
    let unknown = rig.mount.run(&["branch", "update", "nothing"]);
    assert!(!unknown.status.success());
}

fn the_base_is_held(v: Variant) {
    let (rig, branch) = branched(v, "echo a > f");
    run(rig.path(), "echo p > f");
    let updated = update(&rig, &[]);
    let at = updated["merged"]
        .as_u64()
        .expect("a checkpoint")
        .to_string();
    let kept = rig.mount.run(&["delete", &at]);
    assert!(
        String::from_utf8_lossy(&kept.stderr).contains("the branch fix is based on it"),
        "{kept:?}"
    );
    run(&branch, "echo b > f");
    let merged = rig.mount.json(&["merge", "fix"]);
    let at = merged["merged"].as_u64().expect("a checkpoint").to_string();
    let delete = format!("{} delete {at} 2>&1 || true", env!("CARGO_BIN_EXE_ckptfs"));
    let kept = sh(&branch, &delete);
    assert!(kept.contains("was merged from it"), "{kept}");
    let older = rig.mount.run(&["branch", "update", "fix", "--at", "1"]);
    assert!(
        String::from_utf8_lossy(&older.stderr).contains("is older than what the branch"),
        "{older:?}"
    );
}

fn a_branch_of_a_branch_is_updated(v: Variant) {
    let (rig, branch) = branched(v, "seq 20 > f; mkdir d; echo x > d/x");
    let tool = env!("CARGO_BIN_EXE_ckptfs");
    let below = PathBuf::from(sh(&branch, &format!("{tool} branch create below")).trim_end());
    run(rig.path(), "e s/^3$/three/ f; mv d e; seq 9 > born");
    run(&below, "e s/^17$/seventeen/ f; echo own > own");
    update(&rig, &[]);
    sh(&branch, &format!("{tool} branch update below"));
    let all = "sed -n '3p;17p' f; cat e/x own; ls";
    let expected = "three\nseventeen\nx\nown\nborn\ne\nf\nown\n";
    assert_eq!(sh(&below, all), expected);
    run(&below, "mv born renamed");
    run(&branch, "e s/^5$/five/ born");
    sh(&branch, &format!("{tool} merge below"));
    rig.mount.ok(&["merge", "fix"]);
    assert_eq!(
        sh(rig.path(), "sed -n '3p;17p' f; sed -n 5p renamed; cat own"),
        "three\nseventeen\nfive\nown\n"
    );
}

fn what_both_have_is_no_change_also_where_nothing_had_to_be_done(v: Variant) {
    let (rig, branch) = branched(v, "echo a > f");
    run(&branch, "echo same > f");
    run(rig.path(), "echo same > f");
    let updated = update(&rig, &[]);
    assert!(changes(&updated).is_empty() && updated["guard"].is_null());
    assert_eq!(diff(&rig), "");
    // Only the parent has changed it since.
    fs::write(rig.path().join("f"), "parent\n").unwrap();
    let updated = update(&rig, &[]);
    assert_eq!(changes(&updated), ["M f"]);
}

/// Returns the stat(2) calls of an update of 60 files, of which 20 changed on both sides, in a tree
/// with `untouched` other files.
fn calls(v: Variant, untouched: u32) -> u64 {
    let base = format!(
        "mkdir -p d u; for i in $(seq 60); do seq 20 > d/$i; done; for i in $(seq {untouched}); do echo $i > u/$i; done"
    );
    // The sealer reads the attributes of every file once the tree is idle.
    let opts = MountOpts::new(v.io).arg("--seal=off");
    let (rig, branch) = branched_with(v, opts, &base);
    run(rig.path(), "for i in $(seq 60); do echo more >> d/$i; done");
    run(&branch, "for i in $(seq 20); do e s/^3$/three/ d/$i; done");
    rig.fault(Some(FaultPlan::nth(0, Errno::EIO).only(CallKind::Stat)));
    let updated = update(&rig, &[]);
    let (calls, _) = rig.fault(None);
    assert_eq!(changes(&updated).len(), 60, "{updated}");
    println!(
        "{untouched} files untouched: {calls} calls, {} us",
        updated["duration_us"]
    );
    calls
}

fn an_update_reads_what_was_touched(v: Variant) {
    let (few, many) = (calls(v, 10), calls(v, 2000));
    assert!(
        many < few + few / 10,
        "{few} calls, and {many} with more files"
    );
}

/// After a kill at a call of an update, the branch has all of it, with the parent's checkpoint as
/// base, or nothing.
fn an_update_that_is_killed_is_done_or_not(v: Variant) {
    let (mut rig, branch) = branched(v, BASE);
    run(rig.path(), PARENT);
    run(&branch, BRANCH);
    let before = tree(&branch);
    let own = "M a\nA own\nR src -> source\n";
    assert_eq!(diff(&rig), own);
    let undo = format!("{} undo > /dev/null", env!("CARGO_BIN_EXE_ckptfs"));
    let mut random = Random::new(seed("calls of an update", 1));
    let [mut not, mut done] = [0; 2];
    for kind in [CallKind::Write, CallKind::Rename, CallKind::SetXattr] {
        rig.fault(Some(FaultPlan::nth(0, Errno::EIO).only(kind)));
        update(&rig, &[]);
        let (calls, _) = rig.fault(None);
        sh(&branch, &undo);
        same(&branch, &before);
        // The last calls record the new base.
        let last = (0..2).map(|back| calls.saturating_sub(back).max(1));
        let some: Vec<u64> = [1 + random.below(calls)].into_iter().chain(last).collect();
        for nth in some {
            rig.mount.kill_holder();
            let plan = FaultPlan {
                kill: true,
                ..FaultPlan::nth(nth, Errno::EIO).only(kind)
            };
            rig.fault(Some(plan));
            rig.mount.run(&["branch", "update", "fix"]);
            rig.mount.kill();
            rig.mount.remount();
            assert_eq!(diff(&rig), own, "killed at call {nth} of {kind:?}");
            if fs::exists(branch.join("made")).unwrap() {
                let again = update(&rig, &[]);
                assert!(
                    changes(&again).is_empty(),
                    "call {nth} of {kind:?}: {again}"
                );
                sh(&branch, &undo);
                done += 1;
            } else {
                not += 1;
            }
            same(&branch, &before);
        }
    }
    println!("{v:?}: not done {not}, done {done}");
    assert!(not > 0 && done > 0, "not done {not}, done {done}");
}

/// Failed before: a failed update was reported as a failed merge.
fn an_update_that_fails_is_called_one(v: Variant) {
    let (rig, branch) = branched(v, BASE);
    run(rig.path(), PARENT);
    let (before, mut failed) = (tree(&branch), 0);
    for nth in 1..=6 {
        rig.fault(Some(FaultPlan::nth(nth, Errno::EIO).only(CallKind::Rename)));
        let output = rig.mount.run(&["branch", "update", "fix"]);
        rig.fault(None);
        if output.status.success() {
            sh(
                &branch,
                &format!("{} undo > /dev/null", env!("CARGO_BIN_EXE_ckptfs")),
            );
            continue;
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("the update failed: Input/output error"),
            "{said}"
        );
        same(&branch, &before);
        failed += 1;
    }
    assert!(failed > 0, "no update failed");
}

/// Failed before: the kernel had cached both names of the file, so it was copied up at the other
/// name, and the update failed with ENOENT.
fn the_name_that_goes_is_the_one_that_the_parent_removed(v: Variant) {
    let (rig, branch) = branched(v, "mkdir e; echo t > t; ln t e/t; ln -s t l; ln -P l e/l");
    tree(&branch);
    run(rig.path(), "rm e/t e/l");
    update(&rig, &[]);
    same(&branch, &tree(rig.path()));
}
