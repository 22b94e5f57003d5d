//! Mounts are not shown twice here, and APFS has no subvolumes in a directory.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use super::super::types::{Errno, SysResult};

/// Not to be had here: ENOSYS.
pub fn copy_mount(_what: impl AsFd) -> SysResult<OwnedFd> {
    Err(Errno::ENOSYS)
}

/// Not supported here: ENOSYS.
pub fn copy_read_only(_dir: impl AsFd) -> SysResult<OwnedFd> {
    Err(Errno::ENOSYS)
}

/// Not to be had here: ENOSYS.
pub fn attach_mount(_copy: impl AsFd, _over: impl AsFd) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not to be had here: ENOSYS.
pub fn unmount_in(_dir: impl AsFd, _name: &OsStr) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// There are none.
pub fn subvolumes_below(_dir: impl AsFd) -> SysResult<Vec<PathBuf>> {
    Ok(Vec::new())
}
