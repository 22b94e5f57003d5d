//! Changes made during an absence form an epoch of their own, between a checkpoint of the tree at
//! unmount and one of the tree at the next mount.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::absence::{Copies, assert_all, change, fill, keep};
use crate::common::command::{check, sh};
use crate::common::{
    MountOpts, Rig, TreeOpts, Variant, assert_same_tree, copy_tree, for_each_variant, run_limited,
};

for_each_variant! { xfs =>
    without_a_change_no_checkpoint_is_made,
    what_is_new_since_the_last_checkpoint_is_kept,
    an_absence_that_a_gc_ends_is_one_too,
}
for_each_variant! { reflink => an_absence_is_between_two_checkpoints }
for_each_variant! { all => an_absence_is_told_by_name }

fn apart(v: Variant) -> MountOpts {
    let mut opts = MountOpts::new(v.io);
    opts.env.push(("CKPTFS_AUTO_ABSENCE".into(), "on".into()));
    opts
}

/// Returns the number and reason of each checkpoint, oldest first.
fn log(rig: &Rig) -> Vec<(u64, String)> {
    let reason = |entry: &Value| {
        entry["reason"]["trigger"]
            .as_str()
            .or(entry["reason"]["kind"].as_str())
            .expect("a reason")
            .to_owned()
    };
    let log = rig.mount.log_json();
    log.as_array()
        .expect("a list")
        .iter()
        .rev()
        .map(|entry| (entry["id"].as_u64().expect("a number"), reason(entry)))
        .collect()
}

fn reasons(rig: &Rig) -> Vec<String> {
    log(rig).into_iter().map(|(_, reason)| reason).collect()
}

/// Returns the letter and path of each change.
fn changes(diff: &Value) -> BTreeSet<String> {
    let path = |change: &Value| {
        format!(
            "{} {}",
            change["change"].as_str().expect("a kind"),
            change["path"].as_str().expect("a path")
        )
    };
    diff.as_array().expect("a list").iter().map(path).collect()
}

fn copy(rig: &Rig, id: u64, copies: &mut Copies) {
    let to = rig.image.path().join(format!("copy-{id}"));
    copy_tree(rig.path(), &to);
    copies.insert(id, to);
}

fn an_absence_is_between_two_checkpoints(v: Variant) {
    let mut rig = v.start_with(apart(v), fill);
    let (root, mut copies) = (rig.path().to_owned(), Copies::new());
    for round in 0..2 {
        keep(&rig, &mut copies);
        sh(
            &root,
            &format!(
                "echo changed{round} > src/deep/er/f; mkdir dir/made{round}; echo x > dir/made{round}/x; echo new > src/new{round}"
            ),
        );
        let next = copies.keys().max().unwrap() + 1;
        copy(&rig, next, &mut copies);
        rig.mount.umount();
        change(&root, round);
        copy(&rig, next + 1, &mut copies);
        rig.mount.remount();
        assert_all(&rig, &copies);
        assert_eq!(
            reasons(&rig)[next as usize - 2..],
            ["asked", "unmount", "absence"]
        );
        assert_told(&rig, round, next);
        // Reverts the absence, then undoes that.
        rig.mount.restore(next);
        assert_same_tree(
            &root,
            &copies[&next],
            &TreeOpts {
                dir_mtime: false,
                ..TreeOpts::default()
            },
        );
        rig.mount.ok(&["undo"]);
        assert_same_tree(
            &root,
            &copies[&(next + 1)],
            &TreeOpts {
                dir_mtime: false,
                ..TreeOpts::default()
            },
        );
        copies.insert(next + 2, copies[&(next + 1)].clone());
        copies.insert(next + 3, copies[&next].clone());
        rig.mount.umount();
        rig.mount.remount();
        assert_eq!(
            reasons(&rig).len() as u64,
            next + 3,
            "changes through the mount are not an absence"
        );
        fs::remove_dir_all(root.join(format!("new{round}"))).unwrap();
        sh(
            &root,
            "rm -rf src dir elsewhere* lost empty changes swapped1 swapped2 untouched",
        );
        fill(&root);
    }
}

/// Asserts that checkpoint `next` + 1 is reported as an absence and as made automatically.
fn assert_told(rig: &Rig, round: usize, next: u64) {
    let told = rig.mount.status_json()["absence"].clone();
    assert_eq!(
        (&told["before"], &told["after"]),
        (&next.into(), &(next + 1).into())
    );
    let diff = rig
        .mount
        .diff_json(&next.to_string(), Some(&(next + 1).to_string()));
    assert_eq!(
        told["paths"].as_u64().unwrap() as usize,
        diff.as_array().unwrap().len(),
        "{diff}"
    );
    for path in ["M src/edited", "D src/gone", "D lost/c"]
        .iter()
        .filter(|_| round == 0)
    {
        assert!(changes(&diff).contains(*path), "{path} in {diff}");
    }
    assert_eq!(
        rig.mount.diff_json(&(next + 1).to_string(), None),
        serde_json::json!([]),
        "nothing has changed since"
    );
    assert_eq!(
        rig.mount.json(&["show", "latest"])["id"],
        next - 1,
        "latest is a requested checkpoint"
    );
    assert_eq!(rig.mount.json(&["show", "auto"])["id"], next + 1);
    let (status, report) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!(status, 0, "{report}");
}

/// Without reflink no content is kept, but the changes are still reported.
fn an_absence_is_told_by_name(v: Variant) {
    let mut rig = v.start_with(apart(v), |dir| {
        sh(
            dir,
            "mkdir d e; echo 1 > d/one; echo 2 > d/two; echo 3 > e/three",
        )
        .clear()
    });
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    // Nothing has changed since the checkpoint, so it already is the tree at unmount.
    rig.mount.umount();
    sh(
        &root,
        "echo more >> d/one; rm d/two; mv e f; echo 4 > f/four; chmod 600 f/three",
    );
    let said = run_limited(
        &mut rig
            .mount
            .command(&["mount", root.to_str().unwrap(), "--io", v.io.name()]),
        60,
    );
    assert!(
        String::from_utf8_lossy(&said.stderr)
            .contains("5 changes while nothing was mounted: ckptfs diff 1 2\n"),
        "{said:?}"
    );
    rig.mount.adopt();
    assert_eq!(reasons(&rig), ["asked", "absence"]);
    let diff = changes(&rig.mount.diff_json("1", Some("2")));
    let expected = ["M d/one", "D d/two", "R f", "A f/four", "R f/three"];
    assert_eq!(diff, expected.map(str::to_owned).into(), "of checkpoint 2");
    let human = rig.mount.ok(&["status"]);
    assert!(
        human.contains("absence  5 changes while nothing was mounted: ckptfs diff 1 2\n"),
        "{human}"
    );
    // Changes before the unmount get a checkpoint first; each later mount reports only its own
    // absence.
    sh(&root, "echo 5 > five");
    rig.mount.umount();
    sh(&root, "rm f/four");
    rig.mount.remount();
    assert_eq!(reasons(&rig), ["asked", "absence", "unmount", "absence"]);
    assert_eq!(
        changes(&rig.mount.diff_json("2", Some("3"))),
        ["A five".to_owned()].into()
    );
    assert_eq!(
        changes(&rig.mount.diff_json("3", Some("4"))),
        ["D f/four".to_owned()].into()
    );
    rig.mount.umount();
    rig.mount.remount();
    assert!(
        rig.mount.status_json().get("absence").is_none(),
        "that was before another mount"
    );
    // Such a checkpoint is deleted like any other.
    rig.mount.ok(&["delete", "--now", "--yes", "3"]);
    assert_eq!(
        changes(&rig.mount.diff_json("2", Some("4"))),
        ["A five".to_owned(), "D f/four".to_owned()].into()
    );
}

fn without_a_change_no_checkpoint_is_made(v: Variant) {
    let mut rig = v.start_with(apart(v), |dir| sh(dir, "mkdir d; echo 1 > d/one").clear());
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    sh(&root, "echo 2 > d/two");
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(reasons(&rig), ["asked"]);
    // A file created and removed changes only the mtime of its directory, which is not reported.
    rig.mount.umount();
    sh(&root, "touch d/x; rm d/x");
    rig.mount.remount();
    assert_eq!(
        (reasons(&rig), rig.mount.dirty()),
        (vec!["asked".to_owned()], vec!["d/two".to_owned()]),
        "{}",
        rig.mount.status_json()["absence"]
    );
    // `auto.absence` disables these checkpoints.
    rig.mount.umount();
    rig.mount.ok(&["config", "set", "auto.absence", "off"]);
    sh(&root, "echo 3 > d/three");
    let said = run_limited(
        rig.mount
            .command(&["mount", root.to_str().unwrap(), "--io", v.io.name()])
            .env_remove("CKPTFS_AUTO_ABSENCE"),
        60,
    );
    assert!(said.status.success(), "{said:?}");
    rig.mount.adopt();
    assert_eq!(
        (reasons(&rig), rig.mount.dirty()),
        (
            vec!["asked".to_owned()],
            vec!["d/three".to_owned(), "d/two".to_owned()]
        )
    );
}

/// Failed before: files that no checkpoint showed at unmount were not kept, so the unmount
/// checkpoint lacked them.
fn what_is_new_since_the_last_checkpoint_is_kept(v: Variant) {
    let mut rig = v.start_with(apart(v), |dir| fs::write(dir.join("old"), "old").unwrap());
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    sh(&root, "echo new > new; echo twice > old");
    rig.mount.umount();
    sh(&root, "echo newer > new; rm old");
    rig.mount.remount();
    let read = |id: u64, name: &str| {
        fs::read_to_string(rig.view(id).join(name)).map_err(|error| error.raw_os_error())
    };
    assert_eq!(
        [read(2, "new"), read(2, "old"), read(1, "old")],
        [Ok("new\n".into()), Ok("twice\n".into()), Ok("old".into())]
    );
}

fn an_absence_that_a_gc_ends_is_one_too(v: Variant) {
    let mut rig = v.start_with(apart(v), |dir| fs::write(dir.join("f"), "f").unwrap());
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    rig.mount.umount();
    fs::write(root.join("f"), "changed").unwrap();
    rig.mount.ok(&["gc", "--keep-last", "5"]);
    rig.mount.remount();
    assert_eq!(reasons(&rig), ["asked", "absence"]);
    assert_eq!(fs::read_to_string(rig.view(1).join("f")).unwrap(), "f");
}
