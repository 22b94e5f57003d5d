//! The cut: what a checkpoint shows of files that are being written while it is made, and what its view shows ever after.
//!
//! `CKPTFS_CUTS=1000` makes that many checkpoints per variant; without it each makes enough to notice a cut that is wrong now and then.

#[path = "../common/mod.rs"]
mod common;
mod map;
mod one_instant;
mod writer;
