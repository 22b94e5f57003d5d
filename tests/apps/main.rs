//! Real programs inside the mount: after each of them a checkpoint is what the tree was, and a restore brings it back.

#[path = "../common/mod.rs"]
mod common;
mod git;
mod support;
