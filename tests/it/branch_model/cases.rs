//! Shrunk failures of the branch model, each with its cause.

use super::run::{BranchBench, steps};
use crate::common::Fs;
use ckptfs_core::engine::IoChoice;

fn runs(text: &str) {
    if let Some(bench) = BranchBench::new(Fs::Xfs, IoChoice::Daemon)
        && let Err(failure) = bench.list(&steps(text))
    {
        panic!("{failure}");
    }
}

/// Failed before: names that only the base has were counted twice in the recorded link count, once
/// when the rename read it and once when it was recorded.
#[test]
fn the_links_of_a_checkpoint_are_counted_once() {
    runs(
        "0 create c 420
        0 mkdir odd 320
        0 link c odd/e
        0 link c long
        0 branch
        1 mkdir e 448
        1 link odd/e odd/c
        1 checkpoint
        1 exchange e odd/c
        1 check-views",
    );
}

/// Failed before: after a remount the inode was looked up in the base by its new name in the
/// branch, and the restore failed with ENOENT.
#[test]
fn what_was_renamed_and_removed_comes_back_after_a_remount() {
    runs(
        "0 symlink f 545
        0 branch
        1 rename f e
        1 unlink e
        1 remount 17 11
        1 restore 18 8",
    );
}

/// Failed before: the remaining name was only in the base and was not searched, so that the restore
/// created another inode with another number at both names.
#[test]
fn a_link_comes_back_as_the_inode_of_one_that_only_the_base_has() {
    runs(
        "0 put d 0 482
        0 link d f
        0 branch
        1 unlink d
        1 restore 1 6",
    );
    runs(
        "0 put e 0 715
        0 branch
        1 mkdir c 448
        1 link e c/f
        1 branch
        2 unlink c/f
        2 restore 11 11",
    );
}
