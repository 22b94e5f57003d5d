//! A merge makes exactly the reported changes, can be undone and redone, and invalidates caches.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::support::{changes, conflicts, lines, merge, run, same};
use crate::common::command::sh;
use crate::common::tree::tree;
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { reflink => what_both_did_is_done_and_undone }
for_each_variant! { xfs =>
    a_dry_run_tells_what_the_merge_does,
    only_the_given_paths_are_merged,
    no_cache_is_stale_after_a_merge,
    a_repository_of_git_is_left_out,
    a_number_that_was_given_away_again_is_another_file,
}

const BASE: &str = "mkdir -p d/e src empty; for f in a b c d/f d/e/g src/x src/y; do seq 20 > $f; done
    ln a d/hard; ln -s a link; setfattr -n user.a -v 1 b; head -c 300000 /dev/zero | tr '\\0' z > large";
const THEIRS: &str = "e 's/^3$/three/' a; mv d moved; echo more >> moved/e/g; rm c; echo new > src/new
    mkdir -p made/deep; echo deep > made/deep/file; ln made/deep/file made/linked; mkfifo made/fifo
    chmod 600 src/x; setfattr -n user.b -v 2 b; ln -sfn b link; printf x | dd of=large bs=1 seek=5 conv=notrunc status=none; rmdir empty";
const OURS: &str = "e 's/^17$/seventeen/' a; mv src source; echo own > source/own; chmod 640 b; echo here > d/here";
/// The combined result of `OURS` and `THEIRS`.
const BOTH: &str = "e 's/^3$/three/;s/^17$/seventeen/' a; mv src source; echo own > source/own; chmod 640 b
    echo here > d/here; mv d moved; echo more >> moved/e/g; rm c; echo new > source/new
    mkdir -p made/deep; echo deep > made/deep/file; ln made/deep/file made/linked; mkfifo made/fifo
    chmod 600 source/x; setfattr -n user.b -v 2 b; ln -sfn b link; printf x | dd of=large bs=1 seek=5 conv=notrunc status=none; rmdir empty";

fn what_both_did_is_done_and_undone(v: Variant) {
    let expected = v.start_with(MountOpts::new(v.io), |dir| run(dir, BASE));
    run(expected.path(), BOTH);
    let expected = tree(expected.path());
    let mut rig = lines(v, BASE, THEIRS, OURS);
    let root = rig.path().to_owned();
    let (before, ino) = (tree(&root), |path: &str| {
        fs::symlink_metadata(root.join(path)).unwrap().ino()
    });
    let (dir, file) = (ino("d/e"), ino("source/x"));
    let (merged, done) = merge(&rig, &[]);
    assert!(done && conflicts(&merged).is_empty(), "{merged}");
    let guard = merged["guard"].as_u64().expect("a guard");
    same(&root, &expected);
    assert_eq!(
        (ino("moved/e"), ino("source/x")),
        (dir, file),
        "a moved inode keeps its number"
    );
    same(&rig.view(guard), &before);
    let (again, done) = merge(&rig, &[]);
    assert!(
        done && again["guard"].is_null() && changes(&again).is_empty(),
        "{again}"
    );
    let ops = rig.mount.json(&["ops"]);
    assert_eq!(
        (&ops[0]["what"], &ops[0]["guard"]),
        (&"merge".into(), &guard.into())
    );
    rig.mount.ok(&["undo"]);
    same(&root, &before);
    rig.mount.ok(&["redo"]);
    same(&root, &expected);
    rig.mount.umount();
    same(&root, &expected);
    rig.mount.remount();
    same(&root, &expected);
    assert_eq!(rig.mount.json(&["ops"])[2]["what"], "merge");
    assert!(
        rig.mount
            .json(&["ops", "--all"])
            .as_array()
            .unwrap()
            .iter()
            .any(|event| event["what"] == "merge")
    );
}

fn a_dry_run_tells_what_the_merge_does(v: Variant) {
    let rig = lines(v, BASE, THEIRS, OURS);
    let before = tree(rig.path());
    let (dry, done) = merge(&rig, &["--dry-run"]);
    assert!(done && dry["guard"].is_null() && dry["dry_run"] == true);
    same(rig.path(), &before);
    let (merged, _) = merge(&rig, &[]);
    assert_eq!(merged["changes"], dry["changes"]);
    let told = [
        "M a",
        "M b",
        "D c",
        "M moved/hard",
        "D empty",
        "M large",
        "M link",
        "A made",
        "A made/deep",
        "A made/deep/file",
        "A made/fifo",
        "A made/linked",
        "R d moved",
        "M moved/e/g",
        "A source/new",
        "M source/x",
    ];
    let mut said = changes(&merged);
    said.sort();
    let mut told: Vec<String> = told.iter().map(|line| (*line).to_owned()).collect();
    told.sort();
    assert_eq!(said, told);
}

fn only_the_given_paths_are_merged(v: Variant) {
    let rig = lines(
        v,
        "mkdir -p a/b c; for f in one a/one a/b/one c/one; do echo $f > $f; done",
        "for f in one a/one a/b/one c/one; do echo there > $f; done; chmod 700 a; mkdir -p n/m; echo n > n/m/n; echo o > n/o",
        "echo here > c/one",
    );
    let (merged, done) = merge(&rig, &["a/b", "n/m"]);
    assert!(done, "{merged}");
    assert_eq!(changes(&merged), ["M a/b/one", "A n", "A n/m", "A n/m/n"]);
    let read = |path: &str| fs::read_to_string(rig.path().join(path)).unwrap();
    assert_eq!(
        (read("a/b/one"), read("a/one"), read("c/one")),
        ("there\n".into(), "a/one\n".into(), "here\n".into())
    );
    assert!(!rig.path().join("n/o").exists());
    let nowhere = rig.mount.run(&["merge", "2", "--base", "1", "nowhere"]);
    assert!(!nowhere.status.success());
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("nowhere"));
}

fn no_cache_is_stale_after_a_merge(v: Variant) {
    let rig = lines(
        v,
        "mkdir d; echo old > d/f; echo gone > gone; echo m > m",
        "echo new > d/f; rm gone; echo come > come; chmod 600 m",
        "true",
    );
    let root = rig.path();
    for name in ["d/f", "gone", "m"] {
        fs::read(root.join(name)).unwrap();
    }
    assert!(fs::metadata(root.join("come")).is_err());
    assert!(merge(&rig, &[]).1);
    assert_eq!(fs::read_to_string(root.join("d/f")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(root.join("come")).unwrap(), "come\n");
    assert!(fs::metadata(root.join("gone")).is_err());
    assert_eq!(fs::metadata(root.join("m")).unwrap().mode() & 0o777, 0o600);
}

/// A git worktree has a file `.git` that refers to the repository.
fn a_repository_of_git_is_left_out(v: Variant) {
    let rig = lines(
        v,
        "mkdir .git; echo ref > .git/HEAD; echo f > f",
        "rm -r .git; echo gitdir: /elsewhere > .git; echo there > f",
        "echo other > .git/HEAD",
    );
    let (merged, done) = merge(&rig, &[]);
    assert!(done, "{merged}");
    assert_eq!(changes(&merged), ["M f"]);
    assert_eq!(
        fs::read_to_string(rig.path().join(".git/HEAD")).unwrap(),
        "other\n"
    );
}

/// A reused inode number belongs to another file, not to a later version of the first.
fn a_number_that_was_given_away_again_is_another_file(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| run(dir, "seq 9 > keep"));
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    // Born after the checkpoint, so that its number becomes free once it is removed.
    sh(&root, "echo theirs > theirs");
    let number = fs::metadata(root.join("theirs")).unwrap().ino();
    rig.mount.checkpoint();
    // An open file is captured and unlinked, and not moved into the store.
    let held = fs::File::open(root.join("theirs")).unwrap();
    rig.mount.restore(1);
    drop(held);
    sync_until_free(&root, number);
    assert_eq!(
        fs::metadata(root.join("ours")).map(|ours| ours.ino()).ok(),
        Some(number),
        "the number was not reused"
    );
    let (merged, done) = merge(&rig, &[]);
    assert!(done, "{merged}");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(
        (read("ours"), read("theirs")),
        ("ours\n".into(), "theirs\n".into())
    );
}

/// Creates files until one, named `ours`, has this number.
fn sync_until_free(root: &std::path::Path, number: u64) {
    for _ in 0..200 {
        fs::write(root.join("ours"), "ours\n").unwrap();
        if fs::metadata(root.join("ours")).unwrap().ino() == number {
            return;
        }
        fs::remove_file(root.join("ours")).unwrap();
        sh(std::path::Path::new("/"), "sync");
    }
}
