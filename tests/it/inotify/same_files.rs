//! Inode numbers and times, which watchers, indexers and `git status` remember, stay the same
//! across remounts, kills, checkpoints and captures. A restore changes them only for restored
//! files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::support::{has, sh, tree};
use crate::common::{Variant, for_each_variant, sample_tree};

/// Inode number, ctime and mtime with nanoseconds, and link count, by path.
type StatByPath = BTreeMap<PathBuf, (u64, (i64, i64), (i64, i64), u64)>;

fn remembered(root: &Path) -> StatByPath {
    let paths = tree(root).into_keys();
    let stat = |path: PathBuf| {
        let stat = fs::symlink_metadata(root.join(&path)).unwrap();
        // The root has inode number 1 on the mount, and another one when unmounted.
        (
            path,
            (
                stat.ino(),
                (stat.ctime(), stat.ctime_nsec()),
                (stat.mtime(), stat.mtime_nsec()),
                stat.nlink(),
            ),
        )
    };
    paths.map(stat).collect()
}

fn differing(a: &StatByPath, b: &StatByPath) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = a
        .keys()
        .chain(b.keys())
        .filter(|path| a.get(*path) != b.get(*path))
        .cloned()
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

fn numbers_and_times_stay_over_remounts_kills_and_checkpoints(v: Variant) {
    let mut rig = v.start();
    let root = rig.path().to_owned();
    sample_tree(&root);
    sh(
        &root,
        "mkdir work; for i in $(seq 40); do echo $i > work/$i; done; mkdir work/sub; echo s > work/sub/s",
    );
    let first = rig.mount.checkpoint();
    // Some files are captured, others opened without a change.
    sh(
        &root,
        "for i in $(seq 20); do echo more >> work/$i; done; chmod 640 work/21; for i in 22 23; do exec 3<>work/$i; exec 3>&-; done; rm work/30",
    );
    let then = remembered(&root);
    rig.mount.checkpoint();
    assert_eq!(
        differing(&then, &remembered(&root)),
        [] as [&Path; 0],
        "a checkpoint changes nothing"
    );
    for round in 0..3 {
        if round == 1 {
            rig.mount.kill()
        } else {
            rig.mount.umount()
        }
        rig.mount.remount();
        assert_eq!(
            differing(&then, &remembered(&root)),
            [] as [&Path; 0],
            "round {round}: a remount changes nothing"
        );
    }
    // Only restored files and their directory change.
    rig.mount
        .ok(&["restore", &first.to_string(), "work/3", "work/30"]);
    let changed: Vec<PathBuf> = differing(&then, &remembered(&root));
    assert_eq!(changed, ["work", "work/3", "work/30"].map(PathBuf::from));
    assert_eq!(
        remembered(&root)[Path::new("work")].0,
        then[Path::new("work")].0,
        "a directory keeps its inode number"
    );
    let then = remembered(&root);
    sh(
        &root,
        "for i in $(seq 5 9); do echo again > work/$i; done; chmod 600 work/21",
    );
    rig.mount
        .ok(&["restore", &rig.mount.checkpoint().to_string()]);
    let changed = differing(&then, &remembered(&root));
    let expected: Vec<PathBuf> = ["work/21", "work/5", "work/6", "work/7", "work/8", "work/9"]
        .map(PathBuf::from)
        .into();
    assert_eq!(
        changed, expected,
        "a restore of identical content changes nothing"
    );
}

/// `git diff-files` compares stat(2) with the index without refreshing it: it prints the names
/// whose content `git status` must read again.
fn git_reads_nothing_again_after_a_remount(v: Variant) {
    if !has("git") {
        return crate::common::skip("git is not installed");
    }
    let mut rig = v.start();
    let root = rig.path().to_owned();
    let git = |script: &str| {
        sh(
            &root,
            &format!(
                "export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0; {script}"
            ),
        )
    };
    sh(
        &root,
        "mkdir -p a/b; for i in $(seq 150); do echo $i > a/b/$i; echo $i > a/$i; done; find . -type f -exec touch -d '3 days ago' {} +",
    );
    git(
        "git init -q . && git add -A && git -c user.name=n -c user.email=e commit -qm first && GIT_OPTIONAL_LOCKS=1 git status --porcelain",
    );
    let must_read = || git("git diff-files --name-only");
    assert_eq!(must_read(), "");
    let id = rig.mount.checkpoint();
    assert_eq!(must_read(), "", "a checkpoint");
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(must_read(), "", "a remount");
    rig.mount.kill();
    rig.mount.remount();
    assert_eq!(must_read(), "", "a kill and a remount");
    // git compares whole seconds: the restore must not fall into the second in which the files were
    // made.
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    // Changed files are detected.
    sh(&root, "echo changed >> a/7; touch a/9");
    assert_eq!(must_read(), "a/7\na/9\n");
    rig.mount.restore(id);
    assert_eq!(
        must_read(),
        "a/7\na/9\n",
        "a restore gives new times only to the files that it restores"
    );
    assert_eq!(git("git status --porcelain"), "");
}

for_each_variant! { reflink => numbers_and_times_stay_over_remounts_kills_and_checkpoints, git_reads_nothing_again_after_a_remount }
