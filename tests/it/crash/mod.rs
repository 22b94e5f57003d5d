//! Crash consistency: `kill -9` of the daemon and power cuts.
//!
//! - `kill`: the daemon is killed at random moments while processes work on one mount.
//! - `nth`: the daemon is killed at its first, second, third ... changing system call of one
//!   operation.
//! - `cut`: the disk image is copied at a random moment, or some time after an event of `story`,
//!   and the copy is mounted.
//! - `replay`: a recorder below the disk logs every write and flush. Crash states are built from
//!   the log: unflushed writes are kept, dropped or picked at random.
//! - `verified`: `verify` runs repeatedly during the same workload.
//!
//! `CKPTFS_SEED` sets the seed, which is printed. `CKPTFS_KILLS`, `CKPTFS_CUTS`, `CKPTFS_STATES`
//! and `CKPTFS_VERIFIES` set the counts for each variant. `CKPTFS_LONG=1` selects the long form.

mod absence;
mod crash_workload;
mod cut;
pub mod disk;
mod files_left_in_place;
mod kill;
mod load;
mod nth;
mod ops;
mod order;
mod recorder;
mod recovery_checks;
mod replay;
mod undo;
mod verified;
mod worker_processes;

use crate::common::random::{any_seed, is_long};

/// The default seed: 1, or a new one for each run of the long form.
fn usual_seed() -> u64 {
    if is_long() { any_seed() } else { 1 }
}
