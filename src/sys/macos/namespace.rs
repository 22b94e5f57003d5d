//! Stubs: macOS has no mount namespaces.

use std::os::fd::BorrowedFd;
use std::path::Path;

use super::super::types::{Errno, SysResult};

/// Not supported: ENOSYS.
pub fn private_mounts() -> SysResult<bool> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn mount_bind(_from: &Path, _to: &Path) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn mount_scratch(_at: &Path) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn mount_overlay(
    _at: &Path,
    _lower: BorrowedFd<'_>,
    _upper: BorrowedFd<'_>,
    _work: BorrowedFd<'_>,
    _user: bool,
) -> SysResult<()> {
    Err(Errno::ENOSYS)
}
