//! The cut: how a checkpoint captures files during concurrent writes, and that its view never
//! changes.
//!
//! `CKPTFS_CUTS=1000` makes that many checkpoints for each kind of write; the default is enough to
//! detect a cut that is wrong occasionally.

mod freed;
mod held_mapping;
mod long_open;
pub mod map;
mod one_instant;
mod outlived;
mod views;
mod writer;
