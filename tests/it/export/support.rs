//! Exports are compared with the live tree, read immediately after the checkpoint.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::common::command::sh;
use crate::common::tree::{Tree, assert_same, tree};
use crate::common::{Rig, tree_of};

/// Returns a directory for copies, on the filesystem of the tree.
pub fn copies(rig: &Rig) -> PathBuf {
    let dir = rig.path().parent().expect("the image").join("copies");
    std::fs::create_dir_all(&dir).expect("mkdir");
    dir
}

/// Returns the tree of a copy without the export mark.
pub fn copy_at(dest: &Path) -> Tree {
    let mut tree = tree_of(dest);
    tree.get_mut(Path::new(""))
        .expect("a root")
        .xattrs
        .remove(&OsString::from("user.ckptfs.export"));
    tree
}

/// Asserts that a copy equals the tree.
#[track_caller]
pub fn assert_is(dest: &Path, expected: &Tree) {
    assert_same(&copy_at(dest), expected);
}

/// Changes of every kind, one set after the other.
const CHANGES: [&str; 4] = [
    // Content: appended, replaced by another inode, changed with the same size and times.
    // Attributes alone.
    "echo more >> deep/er/and/deeper/leaf; echo new > plain.txt.new; mv plain.txt.new wide/file-000; chmod 640 wide/file-001
     touch -r wide/file-002 ref; printf X > wide/file-002; touch -r ref wide/file-002; rm ref
     touch -d 2001-02-03T04:05:06.7Z wide/file-003; chmod 700 deep; setfattr -n user.new -v 1 wide/file-004",
    // Names are added, removed and moved; links are made and removed; file types change;
    // directories are swapped.
    "ln plain.txt wide/another; rm links/same-again; mv wide/file-010 deep/; mkdir -p n/e/w; mv deep/er/and n/e/; rm -r empty-dir
     echo file > empty-dir; rm to-plain; mkdir to-plain; echo in > to-plain/f; mkdir a b; echo a > a/f; echo b > b/f; ln a/f b/linked
     ln -sfn elsewhere dangling; mkfifo n/fifo; truncate -s 64M n/sparse; echo end >> n/sparse",
    // A directory replaces another; all names of an inode change; new files are removed.
    "mv a t; mv b a; mv t b; rm -r n; mv links l2; echo changed >> plain.txt; rm -r wide/file-1*; mkdir -m 2755 deep/set; touch deep/set/x
     rm empty-dir; mkdir empty-dir; setfattr -x user.note plain.txt 2>/dev/null || true",
    // Only a rename of a whole directory, and a file opened without a change.
    "mv wide narrow; : >> narrow/file-200; mv sparse sparse2",
];

/// Makes a checkpoint before each set of changes; returns the trees by checkpoint.
pub fn history(rig: &Rig) -> Vec<(u64, Tree)> {
    let mut all = Vec::new();
    for changes in CHANGES {
        all.push((rig.mount.checkpoint(), tree(rig.path())));
        sh(rig.path(), changes);
    }
    all.push((rig.mount.checkpoint(), tree(rig.path())));
    // The live tree differs from all of them.
    sh(
        rig.path(),
        "echo later > later; echo later >> plain.txt; rm -r deep; mv narrow/file-250 .; ln binary binary-too",
    );
    all
}
