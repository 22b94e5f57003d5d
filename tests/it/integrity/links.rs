//! Hard links made or removed outside of the tree, as package managers do, change only the ctime of
//! a file.
//!
//! Failed before: every earlier view of such a file reported EIO, and later changes to it could not
//! be reverted.

use std::fs::{self, FileTimes, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::common::command::check;
use crate::common::{MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { all =>
    a_name_outside_changes_no_view,
    a_name_outside_while_nothing_is_mounted_changes_no_view,
    more_than_a_name_is_still_found,
}

/// More than one tick on any kernel.
const TICKS: std::time::Duration = std::time::Duration::from_millis(50);

/// Returns a tree whose files have second links outside, and the directory of these.
fn linked(v: Variant) -> (Rig, PathBuf) {
    let mut outside = PathBuf::new();
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        outside = dir.parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        for name in ["a", "b", "c", "d"] {
            fs::write(outside.join(name), format!("{name} v1")).unwrap();
            fs::hard_link(outside.join(name), dir.join(name)).unwrap();
        }
        std::thread::sleep(TICKS);
    });
    (rig, outside)
}

#[track_caller]
fn shows(view: &Path) {
    for name in ["a", "b", "c"] {
        let text = fs::read_to_string(view.join(name));
        assert_eq!(text.ok().as_deref(), Some(&*format!("{name} v1")), "{name}");
        assert_eq!(fs::metadata(view.join(name)).unwrap().len(), 4);
    }
}

fn a_name_outside_changes_no_view(v: Variant) {
    let (mut rig, outside) = linked(v);
    let first = rig.mount.checkpoint();
    std::thread::sleep(TICKS);
    fs::hard_link(outside.join("a"), outside.join("a2")).unwrap();
    fs::hard_link(outside.join("b"), outside.join("b2")).unwrap();
    fs::hard_link(outside.join("c"), outside.join("c2")).unwrap();
    shows(&rig.view(first));
    let (status, report) = check(rig.path(), &["verify", "1"]);
    assert_eq!(
        (status, &report["accepted"]),
        (0, &json!(["a", "b", "c"])),
        "{report}"
    );
    // Replace, write and remove through the mount.
    fs::write(rig.path().join("new"), "patched").unwrap();
    fs::rename(rig.path().join("new"), rig.path().join("a")).unwrap();
    fs::write(rig.path().join("b"), "b v2").unwrap();
    fs::remove_file(rig.path().join("c")).unwrap();
    shows(&rig.view(first));
    assert!(rig.mount.json(&["restore", "1"])["unknown"].is_null());
    shows(rig.path());
    // A linked file loses its other name; the previous mount recorded that it had one.
    rig.mount.umount();
    rig.mount.remount();
    let second = rig.mount.checkpoint();
    std::thread::sleep(TICKS);
    fs::remove_file(outside.join("d")).unwrap();
    let text = fs::read_to_string(rig.view(second).join("d"));
    assert_eq!(text.unwrap(), "d v1");
    rig.mount.umount();
}

fn a_name_outside_while_nothing_is_mounted_changes_no_view(v: Variant) {
    let (mut rig, outside) = linked(v);
    rig.mount.ok(&["config", "set", "umount.keep", "none"]);
    let first = rig.mount.checkpoint();
    rig.mount.umount();
    std::thread::sleep(TICKS);
    fs::hard_link(outside.join("a"), outside.join("a2")).unwrap();
    fs::remove_file(outside.join("b")).unwrap();
    std::thread::sleep(TICKS);
    rig.mount.remount();
    shows(&rig.view(first));
    fs::write(rig.path().join("a"), "a v2").unwrap();
    fs::remove_file(rig.path().join("b")).unwrap();
    shows(&rig.view(first));
    assert!(rig.mount.json(&["restore", "1"])["unknown"].is_null());
    shows(rig.path());
    rig.mount.umount();
}

fn more_than_a_name_is_still_found(v: Variant) {
    let (mut rig, outside) = linked(v);
    rig.mount.checkpoint();
    rig.mount.umount();
    rig.mount.remount();
    let id = rig.mount.checkpoint();
    std::thread::sleep(TICKS);
    let was = |name: &str| {
        let times = fs::metadata(outside.join(name)).unwrap();
        FileTimes::new().set_modified(times.modified().unwrap())
    };
    // Longer with its old mtime; other mode; other content.
    let times = was("a");
    let file = OpenOptions::new().write(true).open(outside.join("a"));
    fs::write(outside.join("a"), "longer than it was").unwrap();
    file.unwrap().set_times(times).unwrap();
    fs::set_permissions(outside.join("b"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(outside.join("c"), "c v2").unwrap();
    for name in ["a", "b", "c"] {
        let read = fs::read(rig.view(id).join(name));
        assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO), "{name}");
    }
    assert_eq!(fs::read_to_string(rig.view(id).join("d")).unwrap(), "d v1");
    rig.mount.umount();
}
