//! Stubs: takeover is not supported without `/dev/fuse`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::super::types::{Errno, SysResult};

/// Not supported.
pub struct SharedWords(OwnedFd);

impl SharedWords {
    /// Not supported: ENOSYS.
    pub fn create(_count: usize) -> SysResult<SharedWords> {
        Err(Errno::ENOSYS)
    }

    /// Not supported: ENOSYS.
    pub fn open(_fd: OwnedFd) -> SysResult<SharedWords> {
        Err(Errno::ENOSYS)
    }

    /// Returns no words.
    pub fn get(&self) -> &[AtomicU64] {
        &[]
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Not supported: ENOSYS.
pub fn message_pair() -> SysResult<(OwnedFd, OwnedFd)> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn send_message(_to: impl AsFd, _bytes: &[u8], _fds: &[BorrowedFd<'_>]) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn receive_message(_from: impl AsFd, _buffer: &mut [u8]) -> SysResult<(usize, Vec<OwnedFd>)> {
    Err(Errno::ENOSYS)
}

/// Not supported: ENOSYS.
pub fn replace_descriptor(_number: BorrowedFd<'_>, _with: impl AsFd) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Calls `wrap`; see the Linux module.
pub fn wrap_number<S, T>(wrap: unsafe fn(&S, u32) -> T, session: &S, number: u32) -> T {
    // SAFETY: no ID is ever registered here, so this is never called.
    unsafe { wrap(session, number) }
}

/// Not supported: ENOSYS.
pub fn backing_close(_device: impl AsFd, _number: u32) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Not supported.
pub struct Signals(OwnedFd);

impl Signals {
    /// Not supported: ENOSYS.
    pub fn new() -> SysResult<Signals> {
        Err(Errno::ENOSYS)
    }

    /// Returns `None`.
    pub fn take(&mut self) -> Option<i32> {
        None
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Not supported: ENOSYS.
pub fn wait_readable<const N: usize>(
    _fds: [BorrowedFd<'_>; N],
    _limit: Option<Duration>,
) -> SysResult<[bool; N]> {
    Err(Errno::ENOSYS)
}

/// Returns false: no descriptor outlives a worker here.
pub fn is_in_error(_fd: impl AsFd) -> bool {
    false
}
