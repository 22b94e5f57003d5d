//! Stubs: the kernel generates FSEvents itself and does not report listeners.

use std::os::fd::AsFd;

use super::super::args::Watched;
use super::super::types::{Errno, SysResult};

/// Not supported: ENOSYS.
pub fn watched(_dev: u64) -> SysResult<Watched> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn leave_descriptors() -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn keep_descriptor(_number: i32) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn touch_at(_dir: impl AsFd, _name: &[u8], _content_only: bool) -> SysResult<()> {
    Err(Errno::ENOSYS)
}
