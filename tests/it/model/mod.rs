//! The reference model: random operations on a real mount and on a tree in memory, which are
//! compared.
//!
//! `CKPTFS_SEED=N` (or `random`) sets the first seed, `CKPTFS_OPS` the operations per run, and
//! `CKPTFS_SECONDS` the time in which runs are started. `CKPTFS_REPLAY=FILE` runs one list. A
//! failure is shrunk and printed as a list, and the next seed is run. From 60 seconds on (or with
//! `CKPTFS_CUTS=1`) the long form runs, on a disk that supports power cuts; otherwise the operation
//! `cut` does nothing.

pub mod calls;
mod cases;
mod checks;
mod control;
mod counts;
mod cut;
mod diffs;
pub mod expected;
mod frees;
pub mod generate;
mod map;
mod marks;
pub mod observe;
pub mod ops;
mod restores;
mod run;
mod sequences;
mod setup;
pub mod tree;
pub mod world;

use crate::common::{Fs, Io, Variant, skip};
use run::ModelBench;

/// Default of `CKPTFS_SECONDS`.
const SECONDS: u64 = 25;
const SECONDS_COPY: u64 = 8;
const SECONDS_PLAIN: u64 = 2;

/// Threshold of the long form.
const SECONDS_LONG: u64 = 60;

fn is_long() -> bool {
    let seconds = std::env::var("CKPTFS_SECONDS").ok();
    let seconds: Option<u64> = seconds.and_then(|seconds| seconds.parse().ok());
    std::env::var_os("CKPTFS_CUTS").is_some() || seconds.is_some_and(|told| told >= SECONDS_LONG)
}

fn random_runs(name: &str, fs: Fs, io: Io, seconds: u64) {
    let variant = Variant { fs, io };
    match variant.unavailable() {
        Some(reason) => skip(&reason),
        None if is_long() => ModelBench::cutting(variant).seeds(name, seconds),
        None => ModelBench::new(variant).seeds(name, seconds),
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

/// The model agrees with a filesystem without ckptfs.
#[test]
fn the_model_is_right() {
    for fs in [Fs::Xfs, Fs::Btrfs] {
        let variant = Variant { fs, io: Io::Daemon };
        match variant.unavailable() {
            Some(reason) => return skip(&reason),
            None => ModelBench::plain(variant).seeds("plain", SECONDS_PLAIN),
        }
    }
}
