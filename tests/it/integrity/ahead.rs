//! With the sealer caught up (`--seal=full`) nothing that is changed behind our back touches the
//! past.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::story::{caught_up, kinds, objects};
use crate::common::command::check;
use crate::common::{MountOpts, TreeOpts, Variant, assert_same_tree, copy_tree, for_each_variant};

for_each_variant! { reflink =>
    with_the_sealer_caught_up_every_view_is_exact_whatever_is_changed_behind_our_back,
    what_was_captured_ahead_and_is_of_no_use_any_more_is_removed,
}

/// A tree with everything in it, made through the mount, over three checkpoints.
fn story(v: Variant, seal: &str) -> (crate::common::Rig, Vec<std::path::PathBuf>) {
    let rig = v.start_with(MountOpts::new(v.io).arg(seal), |_| {});
    let root = rig.path().to_owned();
    // Something must be kept before anything can have a past.
    let mut copies = vec![keep(&rig)];
    fs::create_dir_all(root.join("dir/deeper/still")).unwrap();
    for name in [
        "a",
        "b",
        "dir/c",
        "dir/deeper/d",
        "dir/deeper/still/e",
        "empty",
    ] {
        fs::write(
            root.join(name),
            if name == "empty" {
                String::new()
            } else {
                format!("{name} as it was\n").repeat(2000)
            },
        )
        .unwrap();
    }
    symlink("a", root.join("link")).unwrap();
    fs::hard_link(root.join("b"), root.join("dir/hard")).unwrap();
    copies.push(keep(&rig));
    fs::write(root.join("a"), "changed through the mount").unwrap();
    fs::rename(root.join("dir/deeper/d"), root.join("dir/renamed")).unwrap();
    copies.push(keep(&rig));
    (rig, copies)
}

fn keep(rig: &crate::common::Rig) -> std::path::PathBuf {
    let id = rig.mount.checkpoint();
    let copy = rig.image.path().join(format!("copy-{id}"));
    copy_tree(rig.path(), &copy);
    copy
}

/// Every kind of change, to everything.
fn change_everything(root: &Path) {
    fs::write(root.join("a"), "CHANGED THROUGH THE MOUNT").unwrap();
    fs::write(root.join("b"), "shorter").unwrap();
    fs::write(root.join("empty"), "no longer").unwrap();
    fs::remove_file(root.join("dir/c")).unwrap();
    fs::rename(root.join("dir/renamed"), root.join("moved away")).unwrap();
    fs::set_permissions(root.join("dir/deeper"), PermissionsExt::from_mode(0o700)).unwrap();
    fs::remove_file(root.join("dir/deeper/still/e")).unwrap();
    fs::remove_dir(root.join("dir/deeper/still")).unwrap();
    fs::write(root.join("dir/new"), "unseen").unwrap();
    fs::create_dir_all(root.join("new/tree")).unwrap();
    fs::write(root.join("new/tree/file"), "unseen").unwrap();
    fs::remove_file(root.join("link")).unwrap();
    symlink("elsewhere", root.join("link")).unwrap();
}

fn with_the_sealer_caught_up_every_view_is_exact_whatever_is_changed_behind_our_back(v: Variant) {
    let (mut rig, copies) = story(v, "--seal=full");
    caught_up(&rig.mount);
    assert_eq!(
        rig.mount.dirty(),
        Vec::<String>::new(),
        "to be captured ahead is no change"
    );
    let root = rig.path().to_owned();
    rig.mount.umount();
    assert!(!objects(&root).is_empty());
    assert_eq!(check(&root, &["verify", "--deep"]).0, 0);
    change_everything(&root);
    rig.mount.remount();
    for (id, copy) in (1..).zip(&copies) {
        assert_same_tree(&rig.view(id), copy, &TreeOpts::default());
    }
    let (status, report) = check(&root, &["verify", "--deep", "3"]);
    assert_eq!((status, kinds(&report)), (0, vec![]), "{report}");
    let dirty = rig.mount.dirty();
    for path in [
        "a",
        "b",
        "empty",
        "dir/c",
        "dir/deeper",
        "dir/new",
        "new/tree/file",
        "link",
    ] {
        assert!(
            dirty.iter().any(|dirty| dirty == path),
            "{path} in {dirty:?}"
        );
    }
    // And so it stays: over checkpoints, changes, kills, and a restore.
    rig.mount.checkpoint();
    fs::write(root.join("b"), "again").unwrap();
    caught_up(&rig.mount);
    rig.mount.kill();
    rig.mount.remount();
    for (id, copy) in (1..).zip(&copies) {
        assert_same_tree(&rig.view(id), copy, &TreeOpts::default());
    }
    rig.mount.restore(3);
    assert_same_tree(
        &root,
        &copies[2],
        &TreeOpts {
            dir_mtime: false,
            ..TreeOpts::default()
        },
    );
}

fn what_was_captured_ahead_and_is_of_no_use_any_more_is_removed(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).arg("--seal=full"), |_| {});
    let root = rig.path().to_owned();
    let count = || {
        crate::common::command::sh(&root, "find .ckptfs/layers/ -name '*.c' | wc -l")
            .trim()
            .parse::<usize>()
            .unwrap()
    };
    rig.mount.checkpoint();
    fs::write(root.join("f"), "one".repeat(10_000)).unwrap();
    rig.mount.checkpoint();
    caught_up(&rig.mount);
    assert_eq!(count(), 1, "the file as it is");
    for round in 0..3 {
        if round == 1 {
            // Another worker has to find out what there is.
            rig.mount.replace_worker();
        }
        fs::write(root.join("f"), format!("{round}").repeat(10_000)).unwrap();
        rig.mount.checkpoint();
        caught_up(&rig.mount);
        assert_eq!(
            count(),
            round + 2,
            "each version once, and the file as it is"
        );
    }
    for id in 1..=4 {
        rig.mount.ok(&["delete", "--now", "--yes", &id.to_string()]);
    }
    assert_eq!(count(), 1);
    let (status, report) = check(&root, &["verify", "--deep"]);
    assert_eq!(status, 0, "{report}");
}
