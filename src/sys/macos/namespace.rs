//! There is no namespace of mounts here.

use std::os::fd::BorrowedFd;
use std::path::Path;

use super::super::types::{Errno, SysResult};

/// Not to be had here: ENOSYS.
pub fn private_mounts() -> SysResult<bool> {
    Err(Errno::ENOSYS)
}

/// Not to be had here: ENOSYS.
pub fn mount_bind(_from: &Path, _to: &Path) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not to be had here: ENOSYS.
pub fn mount_scratch(_at: &Path) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not to be had here: ENOSYS.
pub fn mount_overlay(
    _at: &Path,
    _lower: BorrowedFd<'_>,
    _upper: BorrowedFd<'_>,
    _work: BorrowedFd<'_>,
    _user: bool,
) -> SysResult<()> {
    Err(Errno::ENOSYS)
}
