//! ckptfs: a filesystem that lays itself over a directory and gives it instant checkpoints.
//!
//! The layers, top to bottom; nothing imports upward (docs/design.md): `cli`, `csi`, `volumes`,
//! `control`, `fuse`, `transfer`, `engine`, `live`, `tree`, `history`, `store`, `sys`.

#[cfg(all(feature = "cli", feature = "fuse"))]
pub mod cli;
pub mod control;
#[cfg(feature = "csi")]
pub mod csi;
pub mod engine;
#[cfg(feature = "fuse")]
pub mod fuse;
pub mod history;
pub mod live;
pub mod store;
pub mod sys;
pub mod transfer;
pub mod tree;
#[cfg(all(feature = "cli", feature = "fuse"))]
pub mod volumes;
