//! The guarantees of `docs/semantics.md` and of the commands, on real mounts of real filesystems,
//! with both I/O paths.

mod absence;
mod attributes;
mod below;
mod durable;
mod edges;
mod fs_attributes;
mod handles;
mod inputs;
mod kernel;
mod lazy;
mod leaving;
mod mounter;
mod moved;
mod names;
mod nested;
mod overlay;
mod posix;
mod posix_names;
mod protected;
mod restore;
mod snapdir;
mod space;
mod status;
pub mod support;
mod unanswered;
mod user;
mod views;
mod xattrs;
