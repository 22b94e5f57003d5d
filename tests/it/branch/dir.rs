//! `.branches`: mkdir(2) and rmdir(2) by a program that has nothing but the tree.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Stdio};

use super::support::{create, is_mounted, listed, place, refused};
use crate::common::wait::wait_until;
use crate::common::{MountOpts, Rig, Variant, for_each_variant, run_limited, tool};

for_each_variant! { xfs =>
    a_branch_is_made_with_mkdir_and_dropped_with_rmdir, the_listing_follows_the_verbs,
    what_the_tree_has_of_that_name_itself_is_not_hidden, whoever_may_make_checkpoints_may_make_branches,
    a_branch_that_is_shown_elsewhere_is_in_use, a_branch_goes_though_a_namespace_has_a_copy_of_its_mount,
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry.expect("an entry").file_name();
        name.into_string().expect("text")
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    let error = result.expect_err("it was done");
    error.raw_os_error().expect("a system call")
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;

fn a_branch_is_made_with_mkdir_and_dropped_with_rmdir(v: Variant) {
    let rig = v.start();
    fs::write(rig.path().join("f"), "parent").unwrap();
    let dir = rig.path().join(".branches");
    assert_eq!(names(rig.path()), ["f"], "it is found by name only");
    assert_eq!(names(&dir), [] as [&str; 0]);
    fs::create_dir(dir.join("try")).unwrap();
    let at = place(&rig, "try");
    assert!(is_mounted(&at));
    assert_eq!(names(&dir), ["try"]);
    // Where it is, and what it began as: the one for whoever sees the path, the other for everybody
    // who has the tree.
    let (tree, base) = (dir.join("try/tree"), dir.join("try/base"));
    assert_eq!(names(&dir.join("try")), ["base", "tree"]);
    assert_eq!(fs::read_link(&tree).unwrap(), at);
    fs::write(tree.join("f"), "branch").unwrap();
    assert_eq!(fs::read(at.join("f")).unwrap(), b"branch");
    assert_eq!(fs::read(base.join("f")).unwrap(), b"parent");
    let info = listed(&rig, "try").expect("it is a branch as any other");
    assert_eq!(
        (&info["changed"], &info["mounted"]),
        (&1.into(), &true.into())
    );
    let shown = rig.mount.ok(&["show", &info["base"].to_string()]);
    assert!(shown.contains("mkdir .branches/try"), "{shown}");
    assert_eq!(errno(fs::create_dir(dir.join("try"))), EEXIST);
    for bad in [".x", "-x", "a b", "x.new", &"x".repeat(65)] {
        assert_eq!(errno(fs::create_dir(dir.join(bad))), EINVAL, "{bad}");
    }
    fs::create_dir(place(&rig, "taken")).unwrap();
    assert_eq!(errno(fs::create_dir(dir.join("taken"))), EEXIST);
    assert!(
        place(&rig, "taken").exists(),
        "what was there is not touched"
    );
    // Nothing else is made, changed or taken away there.
    for changed in [
        fs::write(dir.join("file"), "x"),
        fs::write(dir.join("try/file"), "x"),
        fs::create_dir(dir.join("try/dir")),
        fs::remove_file(&base),
        fs::rename(dir.join("try"), dir.join("other")),
        fs::set_permissions(&dir, Permissions::from_mode(0o777)),
    ] {
        assert_eq!(errno(changed), EROFS);
    }
    fs::write(rig.path().join("g"), "").unwrap();
    let over = fs::rename(rig.path().join("g"), &dir);
    assert!(over.is_err());
    assert!(fs::remove_dir_all(dir.join("try")).is_err());
    assert!(is_mounted(&at), "rm -r takes no branch away");
    // Who works in it is not thrown out.
    let open = fs::File::open(at.join("f")).unwrap();
    assert_eq!(errno(fs::remove_dir(dir.join("try"))), EBUSY);
    assert_eq!(fs::read(tree.join("f")).unwrap(), b"branch");
    drop(open);
    assert_eq!(errno(fs::remove_dir(dir.join("none"))), ENOENT);
    fs::remove_dir(dir.join("try")).unwrap();
    assert!(!at.exists() && names(&dir).is_empty());
    let undone = rig.mount.ok(&["undo"]);
    assert!(undone.contains("branch drop try"), "{undone}");
    assert_eq!(fs::read(tree.join("f")).unwrap(), b"branch");
}

fn the_listing_follows_the_verbs(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).arg("--snapdir=visible"), |_| {});
    let dir = rig.path().join(".branches");
    assert_eq!(names(rig.path()), [".branches", ".snapshots"]);
    assert_eq!(names(&dir), [] as [&str; 0]);
    let snapshots = names(&rig.path().join(".snapshots"));
    fs::create_dir(dir.join("one")).unwrap();
    wait_until("its base is listed", || {
        names(&rig.path().join(".snapshots")).len() > snapshots.len()
    });
    create(&rig, "two");
    assert_eq!(names(&dir), ["one", "two"]);
    rig.mount.ok(&["branch", "drop", "one"]);
    assert_eq!(names(&dir), ["two"]);
    rig.mount.ok(&["undo"]);
    assert_eq!(names(&dir), ["one", "two"]);
    // In a branch there are its own.
    let deep = place(&rig, "two").join(".branches");
    fs::create_dir(deep.join("deep")).unwrap();
    assert_eq!((names(&deep), names(&dir).len()), (vec!["deep".into()], 2));
    assert_eq!(
        errno(fs::remove_dir(dir.join("two"))),
        EPERM,
        "it has a branch of its own"
    );
    // The next daemon knows the numbers that the kernel has.
    let held = fs::File::open(&dir).unwrap();
    rig.mount.replace_worker();
    assert_eq!(names(&dir), ["one", "two"]);
    assert_eq!(
        fs::read_link(dir.join("one/tree")).unwrap(),
        place(&rig, "one")
    );
    drop(held);
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(names(&dir), ["one", "two"]);
}

fn what_the_tree_has_of_that_name_itself_is_not_hidden(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir(dir.join(".branches")).unwrap();
        fs::write(dir.join(".branches/mine"), "mine").unwrap();
    });
    let dir = rig.path().join(".branches");
    assert_eq!(names(rig.path()), [".branches"]);
    assert_eq!(fs::read(dir.join("mine")).unwrap(), b"mine");
    fs::create_dir(dir.join("plain")).unwrap();
    assert!(listed(&rig, "plain").is_none(), "it is a directory");
    let with = rig.mount.checkpoint();
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(names(rig.path()), [] as [&str; 0]);
    fs::create_dir(dir.join("try")).unwrap();
    assert!(is_mounted(&place(&rig, "try")));
    rig.mount.restore(with);
    assert_eq!(names(&dir), ["mine", "plain"]);
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(names(&dir), ["mine", "plain"]);
    assert!(is_mounted(&place(&rig, "try")));
}

/// Runs a shell command in `.branches` as somebody.
fn run_as(rig: &Rig, user: &str, script: &str) -> (bool, String) {
    let who = ["--reuid", user, "--regid", user, "--clear-groups"];
    let mut command = tool("setpriv", &who);
    command
        .args(["sh", "-c", script])
        .current_dir(rig.path().join(".branches"));
    let output = run_limited(&mut command, 60);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

fn whoever_may_make_checkpoints_may_make_branches(v: Variant) {
    let rig = v.start();
    let (done, said) = run_as(&rig, "1001", "mkdir one");
    assert!(!done && said.contains("Permission denied"), "{said}");
    let mode = |mode| fs::set_permissions(rig.path(), Permissions::from_mode(mode)).unwrap();
    mode(0o1777);
    chown(rig.path(), Some(1002), None).unwrap();
    let (done, said) = run_as(&rig, "1001", "mkdir one");
    assert!(done, "{said}");
    // It is made beside the tree, where that user may make nothing, and belongs to whom the tree
    // belongs to.
    let root = fs::metadata(place(&rig, "one")).unwrap();
    assert_eq!((root.uid(), root.mode() & 0o7777), (1002, 0o1777));
    // As in any sticky directory.
    let (done, said) = run_as(&rig, "1001", "rmdir one");
    assert!(!done && said.contains("not permitted"), "{said}");
    let (done, said) = run_as(&rig, "1002", "rmdir one");
    assert!(done, "{said}");
    // Each makes a checkpoint, and counts as one that mkdir(2) made.
    mode(0o777);
    rig.mount.ok(&["config", "set", "snapdir.per-user", "3"]);
    let (done, said) = run_as(&rig, "1001", "mkdir a b c");
    assert!(!done && said.contains("Disk quota exceeded"), "{said}");
    assert_eq!(names(&rig.path().join(".branches")), ["a", "b"]);
    assert!(!place(&rig, "c").exists());
    rig.mount.ok(&["config", "set", "snapdir.per-minute", "0"]);
    let (done, said) = run_as(&rig, "1001", "mkdir d");
    assert!(!done && said.contains("temporarily unavailable"), "{said}");
}

/// `ckptfs branch run NAME -- sh`, which waits until its stdin ends.
fn run_in(rig: &Rig, name: &str) -> Child {
    let script = "echo > by-run; cat";
    let child = rig
        .mount
        .command(&["branch", "run", name, "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let at = place(rig, name).join("by-run");
    wait_until("the command runs", || at.exists());
    child
}

/// unmount(2) of its own mount says nothing of the other: the drop waited for half a minute, and
/// left a branch that was mounted nowhere but over the project's path of that command.
fn a_branch_that_is_shown_elsewhere_is_in_use(v: Variant) {
    let rig = v.start();
    let mut child = run_in(&rig, "try");
    // Nobody but the command may hold it.
    let message = refused(&rig, &["branch", "drop", "try"], "branch-in-use");
    assert!(message.contains("is in use"), "{message}");
    let dir = rig.path().join(".branches/try");
    assert_eq!(errno(fs::remove_dir(&dir)), EBUSY);
    assert!(is_mounted(&place(&rig, "try")));
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    wait_until("its namespace is gone", || {
        fs::remove_dir(&dir).is_ok() || !dir.exists()
    });
    assert!(!place(&rig, "try").exists());
    // Unless that is wanted.
    let mut child = run_in(&rig, "force");
    rig.mount.ok(&["branch", "drop", "--force", "force"]);
    assert!(!place(&rig, "force").exists());
    drop(child.stdin.take());
    child.wait().expect("it ends");
}

/// A command that runs in one branch has a copy of the mounts of all others: none of them could be
/// dropped meanwhile.
fn a_branch_goes_though_a_namespace_has_a_copy_of_its_mount(v: Variant) {
    let rig = v.start();
    let other = create(&rig, "other");
    let mut child = run_in(&rig, "try");
    let started = std::time::Instant::now();
    rig.mount.ok(&["branch", "drop", "other"]);
    assert!(!other.exists());
    assert!(
        started.elapsed().as_secs() < 25,
        "it is not waited for until nobody has a copy"
    );
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
}
