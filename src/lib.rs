//! ckptfs: a filesystem that lays itself over a directory and gives it instant checkpoints.
//!
//! The layers, top to bottom; nothing imports upward (docs/design.md): `cli`, `csi`, `volumes`, `control`, `fuse`, `transfer`, `engine`, `live`, `history`, `store`, `sys`.

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
#[cfg(all(feature = "cli", feature = "fuse"))]
pub mod volumes;
