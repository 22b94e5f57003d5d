//! The guarantees of `docs/semantics.md` and of the commands, on real mounts of real filesystems,
//! with both I/O paths.

mod absence;
mod attributes;
mod past_the_mount;
mod durable;
mod mount_failures;
mod fs_attributes;
mod handles;
mod inputs;
mod kernel;
mod lazy;
mod remount_after_unmount;
mod mounter_limits;
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
mod stopped_daemon;
mod user;
mod views;
mod xattrs;
