//! The parts that the command line and its satellites share: finding the tree, reading its past
//! through the mount, errors and exit statuses, output.
//!
//! A satellite is a program of its own that `ckptfs` runs for some verbs; it uses this crate and
//! `ckptfs-api` only.

pub mod attrs;
pub mod changes;
pub mod changes_by_process;
pub mod context;
pub mod details;
pub mod error;
pub mod graph;
pub mod hunks;
pub mod interrupt;
pub mod listing;
pub mod locate;
pub mod mounts;
pub mod names;
pub mod output;
pub mod pager;
pub mod past;
pub mod patch;
pub mod progress;
pub mod time;
pub mod tree_path;
