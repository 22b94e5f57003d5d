//! The mounted tree equals the pushed one, and supports every operation of an ordinary tree.

use std::fs;

use super::RemoteMount;
use crate::common::command::{sh, stdout_of};
use crate::common::tree::{assert_same, tree};
use crate::common::{MountOpts, Variant, for_each_variant, sample_tree, tool};
use crate::remote::restic::User;

for_each_variant! { reflink => what_was_pushed_is_seen_and_can_be_changed }

fn what_was_pushed_is_seen_and_can_be_changed(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sample_tree(dir);
        sh(dir, "mkdir d; head -c 3000000 /dev/urandom > d/large; echo 1 > d/a; ln d/a d/b; ln d/a d/c; cp /bin/true d/program");
    });
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let user = User::new();
    user.push(&rig, &[]);
    let mut lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    // Names, sizes, links and attributes require no fetch.
    sh(
        &path,
        "find . -printf '%p %s %n %l %t\\n' > /dev/null; ls -lRZ . > /dev/null; getfattr -hRd -m- . > /dev/null; du -s . > /dev/null",
    );
    assert_eq!(lazy.files_here(), 0);
    let verified = lazy.mount.json(&["verify", "--deep"]);
    let elsewhere = verified["elsewhere"].as_str().expect("it is reported");
    assert!(
        elsewhere.contains("files") && elsewhere.contains("the remote home"),
        "{elsewhere}"
    );
    // The history begins at the mount.
    let log = lazy.mount.log_json();
    assert_eq!(log[0]["note"], "mounted from checkpoint 1 of home");
    assert_same(&tree(&path), &expected);
    assert_same(&tree(&lazy.mount.view(1)), &expected);
    // The same changes to both trees.
    let change = "echo more >> plain.txt; rm d/b; mv deep moved; ln d/c moved/link; rm -r links; echo new > binary; chmod 600 d/large; setfattr -n user.new -v 1 empty; truncate -s 5 d/a; mkdir d/new; mv d/large d/new/; find . -mount -newer dangling -exec touch -hd @1700000000 {} +";
    sh(rig.path(), change);
    sh(&path, change);
    let changed = tree(rig.path());
    assert_same(&tree(&path), &changed);
    let dirty = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        dirty(lazy.mount.ok(&["diff", "1"])),
        dirty(rig.mount.ok(&["diff", "1"]))
    );
    assert_same(&tree(&lazy.mount.view(1)), &expected);
    assert_eq!(lazy.mount.checkpoint(), 2);
    // A branch, an export and a push of the tree.
    lazy.mount.ok(&["branch", "create", "aside", "--no-git"]);
    let branch = path.with_file_name("lazy@aside");
    assert_same(&tree(&branch), &changed);
    lazy.mount.ok(&["branch", "drop", "aside", "--force"]);
    let exported = path.with_file_name("exported");
    lazy.mount
        .ok(&["export", "1", exported.to_str().expect("UTF-8")]);
    assert_same(&super::super::pulled(&exported), &expected);
    let pushed = user.json(&path, &["push", "home"]);
    assert_eq!(
        pushed["pushed"].as_array().map(Vec::len),
        Some(3),
        "with the base of the branch: {pushed}"
    );
    // A restore, and a mount without the repository.
    lazy.mount.restore(1);
    assert_same(&tree(&path), &expected);
    lazy.mount.umount();
    fs::rename(user.repository(), user.dir.path().join("away")).expect("moved");
    lazy.mount.remount();
    assert_same(&tree(&path), &expected);
    assert_same(&tree(&lazy.mount.view(2)), &changed);
}

for_each_variant! { xfs => the_rest_comes_by_itself }

fn the_rest_comes_by_itself(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let user = User::new();
    user.push(&rig, &[]);
    let mut lazy = RemoteMount::mount(v, &user, &rig, &[]);
    lazy.wait_all();
    assert!(
        lazy.mount
            .ok(&["status"])
            .contains("checkpoint 1 of home, all of it is here")
    );
    assert_eq!(
        lazy.mount.json(&["verify", "--deep"])["elsewhere"],
        serde_json::Value::Null
    );
    fs::remove_dir_all(user.repository()).expect("removed");
    assert_same(&tree(lazy.mount.path()), &expected);
    // Unmounted, the backing directory contains only large files that were opened.
    lazy.mount.umount();
    let found = stdout_of(tool("find", &["."]).current_dir(lazy.mount.path()), 60);
    assert!(!found.contains("plain.txt"), "{found}");
    lazy.mount.remount();
    assert_same(&tree(lazy.mount.path()), &expected);
}
