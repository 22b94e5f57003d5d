//! File data: allocation, copies by the kernel, writeback.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::FallocateFlags;

use super::super::fault::{self, CallKind};
use super::super::name::{check_retry, last_errno, retry};
use super::super::types::{Errno, SysResult};
use super::attr::stat_fd;

/// Disables copy-on-write for an empty file (btrfs: FS_NOCOW_FL of ioctl_iflags(2)), so that writes
/// to allocated space need no further space. Best effort.
pub fn write_in_place(file: &File) {
    if let Ok(flags) = rustix::fs::ioctl_getflags(file) {
        let _ = rustix::fs::ioctl_setflags(file, flags | rustix::fs::IFlags::NOCOW);
    }
}

/// Allocates, punches, zeroes or shifts `len` bytes at `offset`; `mode` has the bits of
/// fallocate(2).
pub fn fallocate(file: impl AsFd, mode: i32, offset: u64, len: u64) -> SysResult<()> {
    let mode = u32::try_from(mode).map_err(|_| Errno::EINVAL)?;
    retry(CallKind::Allocate, || {
        rustix::fs::fallocate(&file, FallocateFlags::from_bits_retain(mode), offset, len)
    })
}

/// Copies up to `len` bytes inside the kernel and advances both offsets. Returns the number of
/// bytes copied, 0 at the end of `src`.
///
/// Filesystems with reflink may share the extents. Errors: EXDEV, EINVAL, ENOSYS or EOPNOTSUPP if
/// the caller must read and write instead (copy_file_range(2)).
pub fn copy_file_range(
    src: impl AsFd,
    src_offset: &mut u64,
    dst: impl AsFd,
    dst_offset: &mut u64,
    len: usize,
) -> SysResult<usize> {
    retry(CallKind::Copy, || {
        rustix::fs::copy_file_range(
            &src,
            Some(&mut *src_offset),
            &dst,
            Some(&mut *dst_offset),
            len,
        )
    })
}

/// `RWF_NOWAIT` of linux/fs.h: EAGAIN instead of waiting for a lock or the disk.
const NOWAIT: libc::c_int = 8;

/// As [`read_full_at`](super::super::read_full_at), but without waiting for the inode lock, which
/// writes hold, and on XFS reads. Data not available at once is read from the page cache through a
/// mapping, for which the kernel does not take that lock.
///
/// As with a mapping, a concurrent write may be seen in part. If the file is truncated during the
/// call, the read ends there.
pub fn read_unlocked_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> SysResult<usize> {
    let fd = file.as_fd().as_raw_fd();
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let vector = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let at = libc::off_t::try_from(offset + filled as u64).map_err(|_| Errno::EINVAL)?;
        fault::check(CallKind::Read)?;
        // SAFETY: `vector` is one buffer; it and the descriptor are borrowed through the call.
        let read = unsafe { libc::preadv2(fd, &raw const vector, 1, at, NOWAIT) };
        match if read < 0 {
            Err(last_errno())
        } else {
            Ok(read)
        } {
            Ok(0) => return Ok(filled),
            Ok(read) => filled += read.unsigned_abs(),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN | Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                return read_mapped_at(&file, rest, offset + filled as u64)
                    .map(|read| filled + read);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Reads through a mapping that the kernel copies from: access beyond the end of a truncated file
/// is an error instead of SIGBUS.
fn read_mapped_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> SysResult<usize> {
    let left = stat_fd(&file)?.size.saturating_sub(offset);
    let length = usize::try_from(left)
        .unwrap_or(usize::MAX)
        .min(buffer.len());
    if length == 0 {
        return Ok(0);
    }
    let begin = offset % rustix::param::page_size() as u64;
    let mapped = length + begin as usize;
    let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses, private to this function,
    // without references into it.
    let place = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            mapped,
            read,
            shared,
            &file,
            offset - begin,
        )
    }?;
    let into = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: length,
    };
    let from = libc::iovec {
        iov_base: place.wrapping_byte_add(begin as usize),
        iov_len: length,
    };
    // SAFETY: `into` is a buffer borrowed for writing, with room for `length` bytes; `from` is in
    // the mapping, and only the kernel reads it.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const into, 1, &raw const from, 1, 0)
    };
    let copied = if copied < 0 {
        Err(last_errno())
    } else {
        Ok(copied.unsigned_abs())
    };
    // SAFETY: the mapping made above, without references to it.
    unsafe { rustix::mm::munmap(place, mapped) }?;
    match copied {
        Ok(copied) => Ok(copied),
        // The file has been truncated to end before.
        Err(Errno::EFAULT) if stat_fd(&file)?.size <= offset => Ok(0),
        Err(Errno::EFAULT) => Err(Errno::EIO),
        Err(errno) => Err(errno),
    }
}

/// Makes the whole filesystem of `fd` durable (syncfs(2)); an error since the last call on `fd` is
/// reported once.
pub fn syncfs(fd: impl AsFd) -> SysResult<()> {
    retry(CallKind::Sync, || rustix::fs::syncfs(&fd))
}

/// Drops clean pages of a file from the page cache (`POSIX_FADV_DONTNEED`); best effort.
pub fn drop_cached(file: impl AsFd, offset: u64, len: u64) {
    let _ = rustix::fs::fadvise(
        &file,
        offset,
        std::num::NonZeroU64::new(len),
        rustix::fs::Advice::DontNeed,
    );
}

/// Starts writeback of the file's dirty pages, without waiting or a guarantee (sync_file_range(2)).
pub fn start_writeback(file: impl AsFd) -> SysResult<()> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed through the call, and the other arguments are integers.
    check_retry(|| unsafe { libc::sync_file_range(fd, 0, 0, libc::SYNC_FILE_RANGE_WRITE) })
        .map(|_| ())
}

/// Writes back the file's dirty pages and waits for completion. It does not guarantee that they
/// survive a power failure (sync_file_range(2)).
pub fn finish_writeback(file: impl AsFd) -> SysResult<()> {
    let fd = file.as_fd().as_raw_fd();
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is borrowed through the call, and the other arguments are integers.
    check_retry(|| unsafe { libc::sync_file_range(fd, 0, 0, all) }).map(|_| ())
}

/// Enlarges the buffer of a pipe, so that writer and reader wake each other less often. No effect
/// on other descriptors, or without permission.
pub fn widen_pipe(pipe: impl AsFd) {
    const BYTES: libc::c_int = 1 << 20;
    // SAFETY: fcntl(2) with F_SETPIPE_SZ takes integers only, and the descriptor is open through
    // the call.
    let _ = unsafe { libc::fcntl(pipe.as_fd().as_raw_fd(), libc::F_SETPIPE_SZ, BYTES) };
}
