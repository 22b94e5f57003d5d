//! The promises of `docs/semantics.md` and of the commands, on real mounts of real filesystems, in
//! both I/O paths.

mod absence;
mod attributes;
mod below;
mod durable;
mod edges;
mod handles;
mod inputs;
mod names;
mod overlay;
mod posix;
mod posix_names;
mod restore;
mod space;
mod status;
pub mod support;
mod user;
mod views;
mod xattrs;
