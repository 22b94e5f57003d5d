//! Append-only and immutable files and directories (chattr(1)), set before the mount.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::support::{Mapping, errno, sh};
use crate::common::tree::{TreeOpts, assert_tree_is, tree};
use crate::common::{MountOpts, Rig, Variant, for_each_variant};

const EPERM: i32 = 1;

fn fill(dir: &Path) {
    sh(
        dir,
        "echo a > app; echo i > imm; mkdir logs fixed deep deep/sub; echo 1 > logs/one; echo 1 > fixed/one
         echo d > deep/app; echo d > deep/sub/imm; echo n > plain
         chattr +a app logs deep/app; chattr +i imm fixed deep/sub/imm",
    );
}

/// Asserts that each of the commands fails with EPERM.
fn refused(dir: &Path, commands: &[&str]) {
    for command in commands {
        let script = format!("LC_ALL=C {command} 2>&1 && echo done || true");
        let said = sh(dir, &format!("bash -c '{script}' 2>&1"));
        assert!(
            said.contains("Operation not permitted"),
            "{command}: {said}"
        );
    }
}

fn appends(file: &Path, text: &str) {
    let mut file = OpenOptions::new()
        .append(true)
        .open(file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    file.write_all(text.as_bytes()).unwrap();
}

/// Failed before: `>>`, and the open of a log by its daemon, returned EPERM.
fn what_is_append_only_takes_appends(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), fill);
    let root = rig.path().to_owned();
    let app = root.join("app");
    assert_eq!(rig.mount.checkpoint(), 1);
    let mut reader = File::open(&app).unwrap();
    appends(&app, "b\n");
    sh(
        &root,
        "echo c >> app; echo c >> deep/app; echo 2 > logs/two",
    );
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!(read, "a\nb\nc\n");
    assert_eq!(fs::read_to_string(rig.view(1).join("app")).unwrap(), "a\n");
    assert_eq!(rig.mount.checkpoint(), 2);
    refused(
        &root,
        &[
            "echo x > app",
            "truncate -s 0 app",
            "chmod 600 app",
            "touch -d @1 app",
            "mv app b",
            "rm -f app",
            "ln app b",
            "setfattr -n user.x -v y app",
            "rm -f logs/one",
            "mv logs/one logs/three",
            "echo x > imm",
            "cat plain >> imm",
            "rm -f imm",
            "echo x > fixed/two",
            "rm -f fixed/one",
            "mv fixed moved",
        ],
    );
    // A file opened for appending accepts only appends.
    let held = OpenOptions::new()
        .read(true)
        .append(true)
        .open(&app)
        .unwrap();
    rustix::fs::fcntl_setfl(&held, rustix::fs::OFlags::empty()).unwrap();
    assert_eq!(errno(held.write_at(b"X", 0)), EPERM);
    let mapping = Mapping::writable(&held, 6);
    mapping.write(0, b"Y");
    drop((mapping, held, reader));
    // A handle after a takeover likewise.
    let mut held = OpenOptions::new().append(true).open(&app).unwrap();
    rig.mount.replace_worker();
    held.write_all(b"d\n").unwrap();
    drop(held);
    sh(&root, "sync; echo 3 > /proc/sys/vm/drop_caches");
    assert_eq!(fs::read_to_string(&app).unwrap(), "a\nb\nc\nd\n");
    assert_eq!(
        fs::read_to_string(rig.view(2).join("app")).unwrap(),
        "a\nb\nc\n"
    );
    is_left_without_captures(&mut rig);
}

/// Asserts that no layer has a capture of an append-only file, and that all captures can be freed.
fn is_left_without_captures(rig: &mut Rig) {
    let root = rig.path().to_owned();
    let app = root.join("app");
    rig.mount.ok(&["delete", "1", "--now"]);
    rig.mount.ok(&["delete", "2", "--now"]);
    rig.mount.umount();
    assert_eq!(fs::read_to_string(&app).unwrap(), "a\nb\nc\nd\n");
    let left = sh(
        &root,
        "find .ckptfs/layers -type f -name '*' | wc -l; lsattr -R .ckptfs/layers",
    );
    assert!(left.starts_with("0\n"), "{left}");
    assert!(sh(&root, "lsattr app").contains('a'));
    rig.mount.remount();
}

/// Asserts that a plan is rejected with all the paths that prevent it, and changes nothing.
fn is_refused(rig: &Rig, arguments: &[&str], paths: &[&str]) {
    let (before, made) = (tree(rig.path()), rig.mount.log_json());
    let output = rig.mount.run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?}");
    let many = if paths.len() == 1 { "path" } else { "paths" };
    let message = format!(
        "{} append-only or immutable {many} would be changed: {}; nothing was changed\n",
        paths.len(),
        paths.join(", ")
    );
    assert!(said.contains(&message), "{arguments:?}: {said}");
    let hint = format!("chattr -ia {})", paths.join(" "));
    assert!(said.contains(&hint), "{arguments:?}: {said}");
    assert_tree_is(rig.path(), &before, &TreeOpts::default());
    assert_eq!(rig.mount.log_json(), made, "{arguments:?}");
}

/// Failed before: a restore failed midway, without a path in the error.
fn a_plan_that_would_change_them_names_them(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), fill);
    let root = rig.path().to_owned();
    assert_eq!(rig.mount.checkpoint(), 1);
    // Equal files are not changes, whatever else is restored.
    sh(
        &root,
        "echo n2 > plain; touch app; echo new > new; echo x > fixed/one; echo 1 > fixed/one",
    );
    rig.mount.ok(&["restore", "1", "plain"]);
    rig.mount.ok(&["undo"]);
    sh(
        &root,
        "echo b >> app; echo 2 > logs/two; echo 2 > fixed/one; mv deep moved",
    );
    let all = ["app", "fixed", "logs"];
    for arguments in [
        &["restore", "1"][..],
        &["restore", "1", "--dry-run"],
        &["restore", "1", "app", "logs", "fixed"],
    ] {
        is_refused(&rig, arguments, &all);
    }
    is_refused(&rig, &["restore", "1", "logs/two"], &["logs"]);
    // A directory that the restore would remove, with its content.
    sh(
        &root,
        "mkdir later; mv moved/app moved/a 2>/dev/null || true",
    );
    rig.mount.umount();
    sh(
        &root,
        "chattr -i fixed; chattr -a logs app; mkdir -p later/below; echo l > later/below/app; chattr +a later/below/app",
    );
    rig.mount.remount();
    is_refused(&rig, &["restore", "1"], &["later/below/app"]);
    rig.mount.umount();
    sh(&root, "chattr -a later/below/app");
    rig.mount.remount();
    rig.mount.ok(&[
        "restore", "1", "plain", "app", "logs", "fixed", "later", "new",
    ]);
    assert_eq!(fs::read_to_string(root.join("app")).unwrap(), "a\n");
    assert!(!root.join("later").exists() && !root.join("logs/two").exists());
    merges_and_undo(&mut rig);
}

/// Merges and undo are also plans. A branch has its own files, without the flag.
fn merges_and_undo(rig: &mut Rig) {
    let root = rig.path().to_owned();
    sh(&root, "echo z >> app");
    rig.mount.ok(&["restore", "1", "app"]);
    rig.mount.umount();
    sh(&root, "chattr +a app; chattr +i plain");
    rig.mount.remount();
    is_refused(rig, &["undo"], &["app"]);
    let branch = rig.mount.json(&["branch", "create", "b"])["path"].clone();
    let branch = Path::new(branch.as_str().expect("a path")).to_owned();
    sh(&branch, "echo b >> app; echo b > plain; echo b > new");
    is_refused(rig, &["merge", "b"], &["app", "plain"]);
    is_refused(rig, &["merge", "b", "--dry-run"], &["app", "plain"]);
    sh(&branch, "echo a > app; echo n > plain");
    rig.mount.ok(&["merge", "b"]);
    assert_eq!(fs::read_to_string(root.join("new")).unwrap(), "b\n");
    // In a branch nothing prevents an update from its parent.
    sh(&root, "echo p >> app");
    rig.mount.ok(&["branch", "update", "b"]);
    assert_eq!(fs::read_to_string(branch.join("app")).unwrap(), "a\np\n");
}

for_each_variant! { all => what_is_append_only_takes_appends }
for_each_variant! { reflink => a_plan_that_would_change_them_names_them }
