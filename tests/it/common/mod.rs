//! The shared harness of the integration tests: real filesystems on image files, real mounts of the
//! real binary, and whole-tree comparison.
//!
//! The usual test is one function for every combination:
//!
//! ```ignore
//! use common::{Variant, for_each_variant};
//! fn a_view_keeps_the_old_bytes(v: Variant) {
//!     let rig = v.start();                                    // image, mkfs, loop mount, `ckptfs mount`
//!     std::fs::write(rig.path().join("f"), "old").unwrap();
//!     let id = rig.mount.checkpoint();
//!     std::fs::write(rig.path().join("f"), "new").unwrap();
//!     assert_eq!(std::fs::read(rig.view(id).join("f")).unwrap(), b"old");
//! }                                                           // unmounts, detaches, removes
//! for_each_variant! { reflink => a_view_keeps_the_old_bytes }
//! ```
//!
//! Every wait has a limit: commands have timeouts, and a mount that exceeds its lifetime is
//! aborted. Values clean up when dropped; `tests/cleanup.sh` removes the remains of a killed test
//! process, at the next start or by `tests/run.py`.
#![allow(dead_code, unused_imports, unused_macros)]

pub mod caller;
pub mod command;
pub mod fuse_replies;
pub mod image;
pub mod mount;
pub mod mount_opts;
pub mod open_store;
pub mod page;
pub mod pool;
pub mod process;
pub mod prometheus;
pub mod random;
#[cfg(feature = "remote")]
pub mod remotes;
pub mod run_dir;
pub mod sample;
pub mod space;
pub mod strace;
pub mod timing_retries;
pub mod tree;
pub mod user;
pub mod variant;
pub mod wait;

pub use caller::{CallerCreds, caller};
pub use command::{fails, has, run_limited, stdout_of, succeeds, tool};
pub use image::{Below, Fs, Image};
pub use mount::Mount;
pub use mount_opts::{Io, MountOpts, OnBranches};
pub use open_store::OpenStore;
pub use run_dir::{RunDir, scratch};
pub use sample::sample_tree;
pub use tree::{NodeInfo, TreeOpts, assert_same_tree, copy_tree, tree_of};
pub(crate) use variant::for_each_variant;
pub use variant::{Rig, Variant, skip};
pub use wait::{same, seen, wait_longer, wait_until};
