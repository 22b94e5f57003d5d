//! Real programs inside the mount: after each of them, a checkpoint equals the tree, and a restore
//! brings it back.

mod branches;
mod build;
mod files;
mod git;
mod samba;
mod sqlite;
mod support;
