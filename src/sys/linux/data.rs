//! File data: space, copies by the kernel, write-back.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::FallocateFlags;

use super::super::fault::Call;
use super::super::name::{check_retry, retry};
use super::super::types::{Errno, SysResult};

/// Allocates, punches, zeroes or shifts `len` bytes at `offset`; `mode` has the bits of fallocate(2).
pub fn fallocate(file: impl AsFd, mode: i32, offset: u64, len: u64) -> SysResult<()> {
    let mode = u32::try_from(mode).map_err(|_| Errno::EINVAL)?;
    retry(Call::Allocate, || rustix::fs::fallocate(&file, FallocateFlags::from_bits_retain(mode), offset, len))
}

/// Copies up to `len` bytes inside the kernel and moves both offsets on; gives how many bytes, 0 at the end of `src`.
///
/// Filesystems with reflink may share the extents. Errors: EXDEV, EINVAL, ENOSYS or EOPNOTSUPP where reading and writing
/// must do (copy_file_range(2)).
pub fn copy_file_range(src: impl AsFd, src_offset: &mut u64, dst: impl AsFd, dst_offset: &mut u64, len: usize) -> SysResult<usize> {
    retry(Call::Copy, || rustix::fs::copy_file_range(&src, Some(&mut *src_offset), &dst, Some(&mut *dst_offset), len))
}

/// Makes the whole filesystem durable that holds `fd` (syncfs(2)); an error since the last call on `fd` is reported once.
pub fn syncfs(fd: impl AsFd) -> SysResult<()> {
    retry(Call::Sync, || rustix::fs::syncfs(&fd))
}

/// Lets the page cache forget clean pages of a file (`POSIX_FADV_DONTNEED`); best effort.
pub fn drop_cached(file: impl AsFd, offset: u64, len: u64) {
    let _ = rustix::fs::fadvise(&file, offset, std::num::NonZeroU64::new(len), rustix::fs::Advice::DontNeed);
}

/// Starts writing the file's dirty pages out, without waiting and without promise (sync_file_range(2)).
pub fn start_writeback(file: impl AsFd) -> SysResult<()> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed through the call, and the other arguments are integers.
    check_retry(|| unsafe { libc::sync_file_range(fd, 0, 0, libc::SYNC_FILE_RANGE_WRITE) }).map(|_| ())
}

/// Writes the file's dirty pages out and waits until they are written; no promise that they survive a power cut (sync_file_range(2)).
pub fn finish_writeback(file: impl AsFd) -> SysResult<()> {
    let fd = file.as_fd().as_raw_fd();
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is borrowed through the call, and the other arguments are integers.
    check_retry(|| unsafe { libc::sync_file_range(fd, 0, 0, all) }).map(|_| ())
}
