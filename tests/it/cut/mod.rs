//! The cut: what a checkpoint shows of files that are being written while it is made, and what its
//! view shows ever after.
//!
//! `CKPTFS_CUTS=1000` makes that many checkpoints for each way to write; without it each makes
//! enough to notice a cut that is wrong now and then.

mod freed;
mod held_mapping;
mod long_open;
pub mod map;
mod one_instant;
mod outlived;
mod views;
mod writer;
