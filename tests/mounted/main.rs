//! The promises of `docs/semantics.md` and of the commands, on real mounts of real filesystems, in both I/O paths.

#[path = "../common/mod.rs"]
mod common;

mod durable;
mod restore;
mod status;
mod support;
mod views;
