//! Tree comparison: equal trees compare equal, and each kind of difference is detected.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::tree::{compare, tree_without};
use crate::common::{
    Fs, Image, TreeOpts, assert_same_tree, copy_tree, sample_tree, scratch, skip, tree_of,
};

/// Calls `check` with a tree and its copy, on a filesystem that stores every attribute.
fn two_trees(check: impl Fn(&Path, &Path)) {
    if let Some(reason) = Fs::Xfs.unavailable() {
        return skip(&reason);
    }
    let image = Image::of(Fs::Xfs);
    let a = image.dir("a");
    let b = image.path().join("b");
    sample_tree(&a);
    copy_tree(&a, &b);
    check(&a, &b);
}

fn differences(a: &Path, b: &Path) -> Vec<String> {
    compare(&tree_of(a), &tree_of(b), &TreeOpts::default())
}

#[test]
fn a_copy_is_the_same() {
    two_trees(|a, b| {
        let tree = tree_of(a);
        assert!(tree.len() > 320, "the sample has {} files", tree.len());
        assert_eq!(
            tree.values()
                .filter(|node| node.linked_to.is_some())
                .count(),
            2
        );
        assert!(!tree[Path::new("links/same-as-plain")].xattrs.is_empty());
        assert_same_tree(a, b, &TreeOpts::default());
    });
}

#[test]
fn each_kind_of_difference_is_seen() {
    two_trees(|a, b| {
        let same_time = File::open(b.join("plain.txt"))
            .unwrap()
            .metadata()
            .unwrap()
            .modified()
            .unwrap();
        fs::write(b.join("plain.txt"), "A line\n").unwrap();
        File::options()
            .write(true)
            .open(b.join("plain.txt"))
            .unwrap()
            .set_modified(same_time)
            .unwrap();
        fs::set_permissions(b.join("sticky"), Permissions::from_mode(0o777)).unwrap();
        fs::remove_file(b.join("wide/file-007")).unwrap();
        fs::write(b.join("new"), "").unwrap();
        rustix::fs::removexattr(b.join("deep"), "user.on-a-directory").unwrap();
        let seen = differences(a, b).join("\n");
        for expected in [
            "\"plain.txt\": kind or content",
            "\"sticky\": mode",
            "\"wide/file-007\": only in the first",
            "\"new\": only in the second",
            "\"deep\": xattr",
        ] {
            assert!(seen.contains(expected), "{expected} is missing in:\n{seen}");
        }
        assert!(!seen.contains("\"plain.txt\": mtime"), "{seen}");
    });
}

#[test]
fn a_hard_link_that_became_a_copy_is_seen() {
    two_trees(|a, b| {
        let name = b.join("links/same-again");
        fs::copy(&name, b.join("copy")).unwrap();
        fs::rename(b.join("copy"), &name).unwrap();
        let seen = differences(a, b).join("\n");
        assert!(seen.contains("\"plain.txt\": linked to"), "{seen}");
    });
}

#[test]
fn our_own_names_do_not_count_at_the_top_only() {
    let dir = scratch();
    for name in [".ckptfs", ".snapshots", "sub", "sub/.snapshots"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let tree = tree_without(dir.path(), &TreeOpts::default().ignore);
    let names: Vec<_> = tree.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(names, ["", "sub", "sub/.snapshots"]);
}
