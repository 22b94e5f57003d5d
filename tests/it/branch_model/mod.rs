//! Branches against a reference model, without a kernel: a tree, branches of it and branches of
//! those, each served by an engine in this process, with random operations on all of them.
//!
//! What is compared: names, content, attributes, extended attributes, times, which names are one
//! inode; that what a branch inherits has the parent's number, also once it was changed, renamed or
//! opened, and over remounts; every checkpoint of each; and that neither a parent nor what a branch
//! began as is changed by a branch.
//!
//! `CKPTFS_SEED=N` (or `random`) is the first seed, `CKPTFS_CASES` how many, `CKPTFS_OPS` the steps
//! of each; `CKPTFS_REPLAY=FILE` runs one list. What fails is shrunk and printed as a list.

mod handles;
mod lines;
mod look;
mod mounted;
mod pure;
mod requests;
mod run;
mod side;
mod state;
mod three;

use ckptfs::internals::engine::IoChoice;

use crate::common::Fs;
use run::Bench;

fn random_runs(name: &str, fs: Fs, io: IoChoice) {
    if let Some(bench) = Bench::new(fs, io) {
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

/// No reflink: what is changed is copied.
#[test]
fn branches_ext4() {
    random_runs("branches_ext4", Fs::Ext4, IoChoice::Daemon);
}

/// What asks is right: a tree without branches is as the model.
#[test]
fn without_branches() {
    for io in [IoChoice::Daemon, IoChoice::Auto] {
        if let Some(bench) = Bench::new(Fs::Xfs, io) {
            bench.seeds("without_branches", false);
        }
    }
}
