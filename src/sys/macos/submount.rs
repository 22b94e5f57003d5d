//! Stubs: macOS has no bind mounts, and APFS no subvolumes in a directory.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use super::super::types::{Errno, SysResult};

/// Not supported: ENOSYS.
pub fn copy_mount(_what: impl AsFd) -> SysResult<OwnedFd> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn copy_read_only(_dir: impl AsFd) -> SysResult<OwnedFd> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn attach_mount(_copy: impl AsFd, _over: impl AsFd) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn unmount_in(_dir: impl AsFd, _name: &OsStr) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Returns no subvolumes.
pub fn subvolumes_below(_dir: impl AsFd) -> SysResult<Vec<PathBuf>> {
    Ok(Vec::new())
}
