//! A mount as the upper layer of an overlay, as for the data root of dockerd, and the whiteouts
//! that an overlay requires.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};

use super::support::{errno, get, put, sh};
use crate::common::tree::assert_tree_is;
use crate::common::{
    Rig, TreeOpts, Variant, for_each_variant, run_limited, sample_tree, scratch, succeeds, tool,
    tree_of,
};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::FaultPlan;

for_each_variant! { reflink => the_upper_layer_of_an_overlay }
for_each_variant! { all => a_rename_leaves_a_whiteout, a_rename_over_a_directory_fails_as_it_does_below }
for_each_variant! { xfs => a_rename_that_is_killed_leaves_its_whiteout }

fn is_whiteout(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|node| node.file_type().is_char_device() && node.rdev() == 0)
}

/// Failed before: after a kill between the exchange of the names and the move of the replaced file,
/// the next mount completed the rename without a whiteout, so the lower file was visible again.
fn a_rename_that_is_killed_leaves_its_whiteout(v: Variant) {
    let mut rig = v.start();
    let rename = |rig: &Rig| {
        let at = |name: &str| rig.path().join(name);
        rustix::fs::renameat_with(CWD, at("from"), CWD, at("over"), RenameFlags::WHITEOUT)
    };
    let begin = |rig: &Rig| {
        sh(
            rig.path(),
            "rm -f from over; echo from > from; echo over > over",
        );
        rig.mount.checkpoint()
    };
    begin(&rig);
    rig.fault(Some(FaultPlan::nth(0, Errno::ENOSPC)));
    rename(&rig).expect("a rename with a whiteout");
    let (calls, _) = rig.fault(None);
    let [mut before, mut after] = [0; 2];
    // Background threads also make counted calls, so the last ones may need repetition.
    for nth in (1..=calls).chain((calls..=calls + 2).cycle().take(30)) {
        if nth >= calls && before > 0 && after > 0 {
            break;
        }
        let id = begin(&rig);
        let then = tree_of(&rig.view(id));
        rig.mount.kill_holder();
        let plan = FaultPlan {
            kill: true,
            ..FaultPlan::nth(nth, Errno::ENOSPC)
        };
        rig.fault(Some(plan));
        let answered = rename(&rig).is_ok();
        rig.mount.kill();
        rig.mount.remount();
        let at = |name: &str| rig.path().join(name);
        let over = fs::read_to_string(at("over")).expect("a file exists");
        let shown = format!("killed at call {nth} of {calls}: {over}");
        if over == "over\n" {
            assert!(!answered && get(at("from")) == "from\n", "{shown}");
            before += 1;
        } else {
            assert!(over == "from\n" && is_whiteout(&at("from")), "{shown}");
            after += u32::from(!answered);
        }
        assert_tree_is(&rig.view(id), &then, &TreeOpts::default());
    }
    assert!(before > 0 && after > 0, "{before} before, {after} after");
}

fn a_rename_leaves_a_whiteout(v: Variant) {
    let rig = v.start();
    let (root, at) = (rig.path(), |name: &str| rig.path().join(name));
    let rename =
        |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
    for name in ["a", "b", "over", "c"] {
        put(at(name), name);
    }
    let id = rig.mount.checkpoint();
    let then = tree_of(&rig.view(id));
    rename("a", "gone", RenameFlags::WHITEOUT).expect("a rename with a whiteout");
    rename("b", "over", RenameFlags::WHITEOUT).expect("over a file with versions");
    put(at("new"), "new");
    rename("c", "new", RenameFlags::WHITEOUT).expect("over a file without versions");
    assert_eq!(
        rename(
            "gone",
            "new",
            RenameFlags::WHITEOUT | RenameFlags::NOREPLACE
        ),
        Err(rustix::io::Errno::EXIST)
    );
    assert!(["a", "b", "c"].iter().all(|name| is_whiteout(&at(name))));
    assert_eq!(
        ["gone", "over", "new"].map(|name| get(at(name))),
        ["a", "b", "c"]
    );
    // Any user may make a whiteout, and owns it.
    sh(
        root,
        "chmod 777 .; setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'mknod theirs c 0 0; test -c theirs'",
    );
    assert_eq!(
        fs::symlink_metadata(at("theirs")).expect("stat").uid(),
        65_534
    );
    let dirty: Vec<String> = rig
        .mount
        .dirty()
        .into_iter()
        .filter(|path| path != ".")
        .collect();
    assert_eq!(dirty, ["a", "b", "c", "gone", "new", "over", "theirs"]);
    let second = rig.mount.checkpoint();
    let whited = tree_of(&rig.view(second));
    assert!(
        is_whiteout(&rig.view(second).join("b")) && is_whiteout(&rig.view(second).join("theirs"))
    );
    assert_tree_is(&rig.view(id), &then, &TreeOpts::default());
    rig.mount.restore(id);
    assert_tree_is(root, &then, &TreeOpts::default());
    rig.mount.restore(second);
    assert_tree_is(root, &whited, &TreeOpts::default());
    assert!(is_whiteout(&at("a")) && get(at("gone")) == "a");
}

/// XFS returns EEXIST, the others ENOTEMPTY. Both are valid, but some programs handle only the
/// errno of their filesystem.
fn a_rename_over_a_directory_fails_as_it_does_below(v: Variant) {
    let rig = v.start();
    let beside = rig.image.dir("beside");
    let refused = |root: &Path| {
        ["old/f", "full/f", "empty"]
            .iter()
            .for_each(|dir| fs::create_dir_all(root.join(dir)).expect("mkdir"));
        let rename = |from: &str| errno(fs::rename(root.join(from), root.join("full")));
        (
            rename("empty"),
            rename("old"),
            errno(fs::remove_dir(root.join("full"))),
        )
    };
    let below = refused(&beside);
    assert_eq!(refused(rig.path()), below);
    rig.mount.checkpoint();
    assert_eq!(refused(rig.path()), below, "also with versions");
}

/// Failed before: the kernel rejected it ("upper fs missing required features"), so dockerd could
/// not store its data in a mount.
fn the_upper_layer_of_an_overlay(v: Variant) {
    let rig = v.start();
    let (root, lower, merged) = (rig.path(), scratch(), scratch());
    let (lower, merged) = (lower.path(), merged.path());
    sample_tree(lower);
    fs::create_dir(lower.join("dir")).expect("mkdir");
    put(lower.join("dir/inner"), "inner");
    put(lower.join("gone"), "gone");
    put(lower.join("moved"), "moved");
    sh(root, "mkdir upper work");
    let layers = format!(
        "lowerdir={},upperdir={r}/upper,workdir={r}/work",
        lower.display(),
        r = root.display()
    );
    succeeds(
        tool("mount", &["-t", "overlay", "overlay", "-o", &layers]).arg(merged),
        60,
    );
    let umount = || {
        assert!(
            run_limited(&mut tool("umount", &[merged]), 60)
                .status
                .success(),
            "umount"
        )
    };
    let work = || {
        sh(
            merged,
            "rm gone; mv moved renamed; rm -r dir; mkdir dir; echo new > dir/new; echo more >> renamed; echo made > made; ln made linked; mv made made2",
        );
        assert!(!merged.join("gone").exists() && !merged.join("dir/inner").exists());
        assert_eq!(
            (get(merged.join("renamed")), get(merged.join("linked"))),
            ("movedmore\n".to_owned(), "made\n".to_owned())
        );
    };
    let id = rig.mount.checkpoint();
    work();
    assert!(is_whiteout(&root.join("upper/gone")));
    let seen = tree_of(merged);
    let second = rig.mount.checkpoint();
    umount();
    // A restore of the upper layer restores the merged tree.
    rig.mount.restore(id);
    assert!(
        fs::read_dir(root.join("upper"))
            .expect("list")
            .next()
            .is_none()
    );
    rig.mount.restore(second);
    succeeds(
        tool("mount", &["-t", "overlay", "overlay", "-o", &layers]).arg(merged),
        60,
    );
    assert_tree_is(merged, &seen, &TreeOpts::default());
    umount();
}
