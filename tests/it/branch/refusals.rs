//! Refused operations, which leave nothing behind.

use std::fs;
use std::os::unix::fs::symlink;

use super::support::{create, is_mounted, listed, place, refused};
use crate::common::command::sh;
use crate::common::tree::names;
use crate::common::{OpenStore, Variant, for_each_variant};

for_each_variant! { xfs => what_cannot_be_a_branch_is_refused, what_a_kill_has_left_is_swept, a_name_that_a_branch_reserves_is_read_only }

fn what_cannot_be_a_branch_is_refused(v: Variant) {
    let mut rig = v.start();
    let long = "a".repeat(65);
    for bad in ["", ".", "..", ".a", "../x", "a/b", "a b", "a\n", "ä", &long] {
        refused(&rig, &["branch", "create", "--", bad], "bad-name");
    }
    create(&rig, "one");
    refused(&rig, &["branch", "create", "one"], "branch-exists");
    refused(
        &rig,
        &["branch", "create", "two", "--at", "99"],
        "unknown-checkpoint",
    );
    assert!(!place(&rig, "two").exists(), "its directory is removed");
    let full = rig.image.dir("full");
    fs::write(full.join("f"), "").unwrap();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let at = |dir: &str| ["branch", "create", "two", "--path", dir].map(str::to_owned);
    for (dir, code) in [
        (path(&full), "not-empty"),
        (path(&rig.path().join("inside")), "bad-mountpoint"),
        ("/dev/shm/ckptfs-branch-test".to_owned(), "other-filesystem"),
    ] {
        let asked = at(&dir);
        refused(&rig, &asked.each_ref().map(String::as_str), code);
    }
    assert!(!std::path::Path::new("/dev/shm/ckptfs-branch-test").exists());
    // A symbolic link is not followed.
    let (target, link) = (rig.image.dir("target"), rig.image.path().join("link"));
    symlink(&target, &link).unwrap();
    let asked = at(&path(&link));
    refused(
        &rig,
        &asked.each_ref().map(String::as_str),
        "not-a-directory",
    );
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    rig.mount.json(&["branch", "create", "two", "--dry-run"]);
    assert!(listed(&rig, "two").is_none() && !place(&rig, "two").exists());
    // An invalid registry entry is reported, prevents deletions, and is not removed.
    let (store, name) = (OpenStore::of(rig.path()), "branches/evil");
    for text in [
        "",
        "ckptfs branch\nversion 1\nstate made\nname evil\nid x\n",
    ] {
        fs::write(store.file(name), text).unwrap();
        refused(&rig, &["branch", "mount", "evil"], "bad-branch");
        refused(&rig, &["delete", "1"], "bad-branch");
    }
    rig.mount.umount();
    rig.mount.remount();
    assert!(is_mounted(&place(&rig, "one")));
    assert!(store.file(name).exists());
}

/// The creation of a branch was interrupted: its registry entry has state `making`, and its store
/// exists in part.
fn what_a_kill_has_left_is_swept(v: Variant) {
    let mut rig = v.start();
    let one = create(&rig, "one");
    let entry = rig.path().join(".ckptfs/branches/one");
    rig.mount.umount();
    let making = |entry: &std::path::Path| {
        let text = fs::read_to_string(entry).unwrap();
        fs::write(entry, text.replace("state made", "state making")).unwrap();
    };
    making(&entry);
    rig.mount.remount();
    assert!(!one.exists() && !entry.exists() && listed(&rig, "one").is_none());
    // Foreign files are not removed.
    let two = create(&rig, "two");
    rig.mount.umount();
    making(&rig.path().join(".ckptfs/branches/two"));
    fs::write(two.join("precious"), "").unwrap();
    rig.mount.remount();
    assert!(two.join("precious").exists() && listed(&rig, "two").is_none());
    // A drop interrupted between its renames is completed.
    let three = create(&rig, "three");
    fs::write(three.join("f"), "3").unwrap();
    let entry = rig.path().join(".ckptfs/branches/three");
    let text = fs::read_to_string(&entry).unwrap();
    let id = text.lines().find_map(|line| line.strip_prefix("id "));
    let trash = rig.path().join(".ckptfs/dropped");
    rig.mount.umount();
    fs::create_dir_all(&trash).unwrap();
    fs::rename(&three, trash.join(id.unwrap())).unwrap();
    rig.mount.remount();
    assert!(!entry.exists());
    rig.mount.ok(&["branch", "restore", "three"]);
    assert_eq!(fs::read(three.join("f")).unwrap(), b"3");
}

/// A name reserved for internal use in branches: if the parent has such a name, it is listed and
/// can be read but not changed.
fn a_name_that_a_branch_reserves_is_read_only(v: Variant) {
    let rig = v.start();
    sh(
        rig.path(),
        "mkdir dir; echo x > dir/.ckptfs-hidden-x; echo y > dir/y",
    );
    let one = create(&rig, "one");
    sh(&one, "echo changed > dir/y");
    assert_eq!(names(one.join("dir")), [".ckptfs-hidden-x", "y"]);
    let hidden = one.join("dir/.ckptfs-hidden-x");
    assert_eq!(fs::read_to_string(&hidden).unwrap(), "x\n");
    let refused = fs::remove_file(&hidden).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    rig.mount.ok(&["merge", "one"]);
    assert!(rig.path().join("dir/.ckptfs-hidden-x").exists());
}
