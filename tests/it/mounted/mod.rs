//! The guarantees of `docs/semantics.md` and of the commands, on real mounts of real filesystems,
//! with both I/O paths.

mod absence;
mod attributes;
mod durable;
mod fs_attributes;
mod handles;
mod inputs;
mod kernel;
mod lazy;
mod mount_failures;
mod mounter_limits;
mod moved;
mod names;
mod nested;
mod overlay;
mod past_the_mount;
mod posix;
mod posix_names;
mod protected;
mod remount_after_unmount;
mod restore;
mod snapdir;
mod space;
mod status;
mod stopped_daemon;
pub mod support;
mod user;
mod views;
mod xattrs;
