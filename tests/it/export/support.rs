//! What an export is compared with: the live tree as it was when the checkpoint was made, read
//! before anything else happened.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::common::command::sh;
use crate::common::tree::{Tree, assert_same, tree};
use crate::common::{Rig, tree_of};

/// A directory for copies, on the filesystem of the tree.
pub fn copies(rig: &Rig) -> PathBuf {
    let dir = rig.path().parent().expect("the image").join("copies");
    std::fs::create_dir_all(&dir).expect("mkdir");
    dir
}

/// A copy, without the mark that says that it is an export.
pub fn copy_at(dest: &Path) -> Tree {
    let mut tree = tree_of(dest);
    tree.get_mut(Path::new(""))
        .expect("a root")
        .xattrs
        .remove(&OsString::from("user.ckptfs.export"));
    tree
}

/// A copy is in everything what the tree was.
#[track_caller]
pub fn assert_is(dest: &Path, expected: &Tree) {
    assert_same(&copy_at(dest), expected);
}

/// Changes of every kind, one set after the other.
const CHANGES: [&str; 4] = [
    // Content, in place, by another inode, with the size and the times of before; attributes alone.
    "echo more >> deep/er/and/deeper/leaf; echo new > plain.txt.new; mv plain.txt.new wide/file-000; chmod 640 wide/file-001
     touch -r wide/file-002 ref; printf X > wide/file-002; touch -r ref wide/file-002; rm ref
     touch -d 2001-02-03T04:05:06.7Z wide/file-003; chmod 700 deep; setfattr -n user.new -v 1 wide/file-004",
    // Names come, go, move; links are made and cut; kinds change; directories take each other's
    // places.
    "ln plain.txt wide/another; rm links/same-again; mv wide/file-010 deep/; mkdir -p n/e/w; mv deep/er/and n/e/; rm -r empty-dir
     echo file > empty-dir; rm to-plain; mkdir to-plain; echo in > to-plain/f; mkdir a b; echo a > a/f; echo b > b/f; ln a/f b/linked
     ln -sfn elsewhere dangling; mkfifo n/fifo; truncate -s 64M n/sparse; echo end >> n/sparse",
    // A directory becomes another; all names of an inode change; what was made goes again.
    "mv a t; mv b a; mv t b; rm -r n; mv links l2; echo changed >> plain.txt; rm -r wide/file-1*; mkdir -m 2755 deep/set; touch deep/set/x
     rm empty-dir; mkdir empty-dir; setfattr -x user.note plain.txt 2>/dev/null || true",
    // Nothing but a rename of a whole directory, and an inode that is opened and left alone.
    "mv wide narrow; : >> narrow/file-200; mv sparse sparse2",
];

/// Makes a checkpoint, changes everything, and so on; the trees by checkpoint.
pub fn history(rig: &Rig) -> Vec<(u64, Tree)> {
    let mut all = Vec::new();
    for changes in CHANGES {
        all.push((rig.mount.checkpoint(), tree(rig.path())));
        sh(rig.path(), changes);
    }
    all.push((rig.mount.checkpoint(), tree(rig.path())));
    // The live tree is another than any of them.
    sh(
        rig.path(),
        "echo later > later; echo later >> plain.txt; rm -r deep; mv narrow/file-250 .; ln binary binary-too",
    );
    all
}
