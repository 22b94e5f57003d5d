//! Branches compared with a reference model, without a kernel: a tree, its branches and nested
//! branches, each served by an engine in this process, with random operations on all of them.
//!
//! Compared are names, content, attributes, extended attributes, times, hard links, and every
//! checkpoint of each tree. An inherited inode has the parent's number, also after a change,
//! rename, open or remount. A branch changes neither its parent nor its base.
//!
//! `CKPTFS_SEED=N` (or `random`) sets the first seed, `CKPTFS_CASES` the number of seeds,
//! `CKPTFS_OPS` the steps of each. `CKPTFS_REPLAY=FILE` runs one list. A failure is shrunk and
//! printed as a list.

mod cases;
mod handles;
mod lines;
mod mounted;
mod pure;
mod requests;
mod run;
mod side;
mod state;
mod three;
mod tree_reader;

use crate::common::Fs;
use ckptfs_core::engine::IoChoice;
use run::BranchBench;

fn random_runs(name: &str, fs: Fs, io: IoChoice) {
    if let Some(bench) = BranchBench::new(fs, io) {
        bench.seeds(name, true);
    }
}

#[test]
fn branches_xfs() {
    random_runs("branches_xfs", Fs::Xfs, IoChoice::Daemon);
}

#[test]
fn branches_xfs_passthrough() {
    random_runs("branches_xfs_passthrough", Fs::Xfs, IoChoice::Auto);
}

#[test]
fn branches_btrfs() {
    random_runs("branches_btrfs", Fs::Btrfs, IoChoice::Daemon);
}

#[test]
fn branches_btrfs_passthrough() {
    random_runs("branches_btrfs_passthrough", Fs::Btrfs, IoChoice::Auto);
}

/// Without reflink a copy-up copies the data.
#[test]
fn branches_ext4() {
    random_runs("branches_ext4", Fs::Ext4, IoChoice::Daemon);
}

/// Validates the test itself: a tree without branches agrees with the model.
#[test]
fn without_branches() {
    for io in [IoChoice::Daemon, IoChoice::Auto] {
        if let Some(bench) = BranchBench::new(Fs::Xfs, io) {
            bench.seeds("without_branches", false);
        }
    }
}
