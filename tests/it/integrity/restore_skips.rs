//! A file that a restore reports as "left as it is" survives, even when its directory was recreated
//! and the old directory is restored.
//!
//! Failed before: it was removed together with the new directory.

use std::fs;
use std::path::Path;

use crate::common::{Mount, MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { all =>
    a_file_whose_content_is_not_known_stays_in_a_directory_made_anew,
}

const PATH: &str = "node_modules/deep/swc.node";

/// Returns a tree whose `node_modules` was replaced while unmounted, as `npm ci` does, with a file
/// whose old content was not kept.
fn replaced(v: Variant) -> Rig {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir_all(dir.join("node_modules/deep")).unwrap();
        fs::write(dir.join(PATH), "old").unwrap();
        fs::write(dir.join("node_modules/small"), "").unwrap();
        fs::write(dir.join("app.js"), "a").unwrap();
    });
    rig.mount.ok(&["config", "set", "umount.keep", "none"]);
    assert_eq!(rig.mount.checkpoint(), 1);
    rig.mount.umount();
    make_anew(rig.path());
    rig.mount.remount();
    rig
}

/// Makes the new directory before removing the old one, because ext4 reuses inode numbers at once.
fn make_anew(root: &Path) {
    fs::create_dir_all(root.join("new/deep")).unwrap();
    fs::write(root.join("new/deep/swc.node"), "new").unwrap();
    fs::write(root.join("new/small"), "").unwrap();
    fs::rename(root.join("node_modules"), root.join("old")).unwrap();
    fs::rename(root.join("new"), root.join("node_modules")).unwrap();
    fs::remove_dir_all(root.join("old")).unwrap();
}

fn is_left(mount: &Mount, verb: &[&str]) {
    let said = format!("{:?}", mount.run(verb));
    assert!(said.contains(PATH), "{verb:?}: {said}");
    let read = |path: &str| fs::read_to_string(Path::join(mount.path(), path));
    assert_eq!(read(PATH).ok().as_deref(), Some("new"), "{verb:?}: {said}");
    assert_eq!(read("node_modules/small").unwrap(), "", "{verb:?}");
}

fn a_file_whose_content_is_not_known_stays_in_a_directory_made_anew(v: Variant) {
    let rig = replaced(v);
    let ways: [&[&str]; 4] = [
        &["restore", "1"],
        &["restore", "1", "node_modules", "app.js"],
        &["restore", "1", "node_modules/deep", "app.js"],
        &["restore", "1", "node_modules/deep/swc.node", "app.js"],
    ];
    for way in ways {
        fs::write(rig.path().join("app.js"), "b").unwrap();
        is_left(&rig.mount, way);
        rig.mount.ok(&["undo"]);
        assert_eq!(fs::read_to_string(rig.path().join(PATH)).unwrap(), "new");
        make_anew(rig.path());
    }
}
