//! Lists that once failed, shrunk; each with its story.

use ckptfs::internals::engine::IoChoice;

use super::run::{Bench, steps};
use crate::common::Fs;

fn runs(text: &str) {
    if let Some(bench) = Bench::new(Fs::Xfs, IoChoice::Daemon)
        && let Err(failure) = bench.list(&steps(text))
    {
        panic!("{failure}");
    }
}

/// Names that only the base has were counted twice in what was recorded of an inode: once when the
/// rename had looked at it, and once more when that was kept.
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

/// After a remount the inode was looked for in the base under the name that the branch had given it,
/// and the restore failed with ENOENT.
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
