//! Changes made while the tree is not mounted have no record; they are found by ctime and never
//! shown as the past.

use std::fs;
use std::path::Path;

use super::support::{errno, get, names, put};
use crate::common::{Variant, for_each_variant};

for_each_variant! { reflink =>
    what_changed_while_unmounted_is_never_shown_as_the_past,
    what_did_not_change_while_unmounted_is_still_the_past,
    a_directory_changed_while_unmounted_and_after_hinders_no_status_and_no_restore,
}

fn what_changed_while_unmounted_is_never_shown_as_the_past(v: Variant) {
    let mut rig = v.start_with(crate::common::MountOpts::new(v.io), |dir| {
        put(dir.join("f"), "one");
        put(dir.join("g"), "two");
        fs::create_dir(dir.join("d")).unwrap();
        put(dir.join("d/kept"), "three");
        put(dir.join("d/lost"), "four");
    });
    let root = rig.path().to_owned();
    rig.mount.ok(&["config", "set", "umount.keep", "none"]);
    let first = rig.mount.checkpoint();
    put(root.join("g"), "changed while mounted");
    rig.mount.umount();
    put(root.join("f"), "unseen");
    fs::remove_file(root.join("d/lost")).unwrap();
    rig.mount.remount();
    no_content_is_shown(&rig.view(first));
    assert_eq!(rig.mount.dirty(), ["d/lost", "f", "g"]);
    let output = rig.mount.run(&["--json", "restore", "1"]);
    assert_eq!(output.status.code(), Some(1), "not everything was restored");
    let restored: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        restored["unknown"],
        serde_json::json!(["d/lost", "f"]),
        "a restore names the files that it cannot restore"
    );
    assert_eq!(
        (get(root.join("f")), get(root.join("g"))),
        ("unseen".into(), "two".into())
    );
    let second = rig.mount.checkpoint();
    put(root.join("f"), "seen");
    assert_eq!(
        errno(fs::read(rig.view(first).join("f"))),
        libc::EIO,
        "a later record does not replace the state that was not recorded"
    );
    assert_eq!(
        get(rig.view(second).join("f")),
        "unseen",
        "a later checkpoint knows it"
    );
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(
        errno(fs::read(rig.view(first).join("f"))),
        libc::EIO,
        "this is remembered across mounts"
    );
}

/// Asserts that a view of changes without a record shows names and attributes, and no content.
fn no_content_is_shown(view: &Path) {
    assert_eq!(
        errno(fs::read(view.join("f"))),
        libc::EIO,
        "unknown content is not replaced by later content"
    );
    assert_eq!(errno(fs::read(view.join("d/lost"))), libc::EIO);
    assert_eq!(
        names(view.join("d")),
        ["kept", "lost"],
        "but names are known"
    );
    assert_eq!(
        fs::metadata(view.join("f")).unwrap().len(),
        3,
        "and attributes"
    );
    assert_eq!(
        (get(view.join("g")), get(view.join("d/kept"))),
        ("two".into(), "three".into()),
        "files that were recorded or not changed exist"
    );
}

/// Failed before: `status` as a whole failed with EIO, because it read the old extended attributes
/// of such a directory.
fn a_directory_changed_while_unmounted_and_after_hinders_no_status_and_no_restore(v: Variant) {
    let mut rig = v.start_with(crate::common::MountOpts::new(v.io), |dir| {
        fs::create_dir(dir.join("d")).unwrap();
        fs::create_dir(dir.join("e")).unwrap();
        put(dir.join("d/kept"), "one");
        put(dir.join("e/kept"), "one");
    });
    let root = rig.path().to_owned();
    let first = rig.mount.checkpoint();
    rig.mount.umount();
    put(root.join("d/unseen"), "x");
    put(root.join("e/unseen"), "x");
    put(root.join("unseen"), "x");
    rig.mount.remount();
    put(root.join("d/seen"), "x");
    put(root.join("d/kept"), "two");
    put(root.join("seen"), "x");
    fs::remove_dir_all(root.join("e")).unwrap();
    fs::create_dir(root.join("e")).unwrap();
    let dirty = rig.mount.dirty();
    for path in ["d/unseen", "d/kept", "d/seen", "seen", "e/kept"] {
        assert!(
            dirty.iter().any(|dirty| dirty == path),
            "{path} in {dirty:?}"
        );
    }
    assert_eq!(get(rig.view(first).join("d/kept")), "one");
    rig.mount.restore(first);
    assert_eq!(
        (get(root.join("d/kept")), get(root.join("e/kept"))),
        ("one".into(), "one".into())
    );
    assert_eq!(
        (names(root.join("d")), names(root.join("e"))),
        (vec!["kept".to_owned()], vec!["kept".to_owned()])
    );
}

fn what_did_not_change_while_unmounted_is_still_the_past(v: Variant) {
    let mut rig = v.start_with(crate::common::MountOpts::new(v.io), |dir| {
        put(dir.join("f"), "one")
    });
    let root = rig.path().to_owned();
    let first = rig.mount.checkpoint();
    for round in 0..3 {
        put(root.join("f"), format!("round {round}"));
        put(root.join(format!("new{round}")), "x");
        rig.mount.umount();
        rig.mount.remount();
        assert_eq!(get(rig.view(first).join("f")), "one");
    }
    rig.mount.restore(first);
    assert_eq!(get(root.join("f")), "one");
    assert!(
        rig.mount.dirty().len() <= 4,
        "no change is reported as made behind the mount: {:?}",
        rig.mount.dirty()
    );
}
