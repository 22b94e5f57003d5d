//! What is left when the daemon is killed or the power is cut.
//!
//! `kill`: processes work on one mount while the daemon is killed at random moments. `nth`: it is
//! killed at its first, second, third ... system call of one operation. `cut`: the disk image is
//! frozen at a random moment, or some time after one of the things that `story` does, and mounted
//! again. `replay`: a recorder below the disk logs every
//! write and flush, and what a power cut may leave is made from that, with the writes that were not
//! flushed kept, dropped or picked at random.
//!
//! `verified`: `verify` runs again and again while all that happens.
//!
//! `CKPTFS_SEED` is the seed, which is printed; `CKPTFS_KILLS`, `CKPTFS_CUTS`, `CKPTFS_STATES`, `CKPTFS_VERIFIES`
//! are counts for each variant; `CKPTFS_LONG=1` gives the long form.

mod absence;
mod after;
mod crew;
mod cut;
pub mod disk;
mod kill;
mod load;
mod nth;
mod ops;
mod order;
mod recorder;
mod replay;
mod spared;
mod story;
mod undo;
mod verified;

use crate::common::random::{any_seed, is_long};

/// The seed where none is asked for: in the long form another each time.
fn usual_seed() -> u64 {
    if is_long() { any_seed() } else { 1 }
}
