//! The reference model: random operations on a real mount and on a tree in memory, and both
//! compared.
//!
//! `CKPTFS_SEED=N` (or `random`) is the first seed, `CKPTFS_OPS` the operations of a run,
//! `CKPTFS_SECONDS` how long runs are begun; `CKPTFS_REPLAY=FILE` runs one list. What fails is
//! shrunk and printed as a list.

pub mod calls;
mod cases;
mod checks;
mod control;
mod diffs;
pub mod expected;
pub mod generate;
mod map;
pub mod observe;
pub mod ops;
mod restores;
mod run;
pub mod tree;
pub mod world;

use crate::common::{Fs, Io, Variant, skip};
use run::Bench;

/// Seconds for which runs are begun, where CKPTFS_SECONDS says nothing.
const SECONDS: u64 = 25;
const SECONDS_COPY: u64 = 8;
const SECONDS_PLAIN: u64 = 2;

fn random_runs(name: &str, fs: Fs, io: Io, seconds: u64) {
    let variant = Variant { fs, io };
    match variant.unavailable() {
        Some(reason) => skip(&reason),
        None => Bench::new(variant).seeds(name, seconds),
    }
}

#[test]
fn xfs_passthrough() {
    random_runs("xfs_passthrough", Fs::Xfs, Io::Passthrough, SECONDS);
}

#[test]
fn xfs_daemon() {
    random_runs("xfs_daemon", Fs::Xfs, Io::Daemon, SECONDS);
}

#[test]
fn btrfs_passthrough() {
    random_runs("btrfs_passthrough", Fs::Btrfs, Io::Passthrough, SECONDS);
}

#[test]
fn btrfs_daemon() {
    random_runs("btrfs_daemon", Fs::Btrfs, Io::Daemon, SECONDS);
}

#[test]
fn ext4_daemon() {
    random_runs("ext4_daemon", Fs::Ext4, Io::Daemon, SECONDS_COPY);
}

#[test]
fn tmpfs_daemon() {
    random_runs("tmpfs_daemon", Fs::Tmpfs, Io::Daemon, SECONDS_COPY);
}

/// The model itself: without ckptfs it agrees with a filesystem.
#[test]
fn the_model_is_right() {
    for fs in [Fs::Xfs, Fs::Btrfs] {
        let variant = Variant { fs, io: Io::Daemon };
        match variant.unavailable() {
            Some(reason) => return skip(&reason),
            None => Bench::plain(variant).seeds("plain", SECONDS_PLAIN),
        }
    }
}
