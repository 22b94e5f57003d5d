//! File data: allocation, clones, syncing; and stubs for the probes that macOS lacks.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, CloneFlags, Mode};

use super::super::args::Access;
use super::super::fault::CallKind;
use super::super::name::{check_retry, component, retry};
use super::super::path::{open_file_at, unlink_at};
use super::super::types::{Allocation, Errno, ExtentMap, SysResult};
use super::attr::stat_fd;

/// `FALLOC_FL_KEEP_SIZE` of Linux's fallocate(2).
const KEEP_SIZE: i32 = 1;
/// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE` of Linux's fallocate(2).
const PUNCH_HOLE: i32 = 3;

/// Allocates or punches `len` bytes at `offset`; `mode` has the bits of Linux's fallocate(2), of
/// which 0, KEEP_SIZE and PUNCH_HOLE | KEEP_SIZE are supported. EOPNOTSUPP for others, EINVAL for a
/// hole that is not block-aligned.
pub fn fallocate(file: impl AsFd, mode: i32, offset: u64, len: u64) -> SysResult<()> {
    let fd = file.as_fd().as_raw_fd();
    let signed = |value: u64| libc::off_t::try_from(value).map_err(|_| Errno::EFBIG);
    let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
    match mode {
        PUNCH_HOLE => {
            let hole = libc::fpunchhole_t {
                fp_flags: 0,
                reserved: 0,
                fp_offset: signed(offset)?,
                fp_length: signed(len)?,
            };
            // SAFETY: the descriptor is borrowed and `hole` lives through the call.
            check_retry(|| unsafe { libc::fcntl(fd, libc::F_PUNCHHOLE, &raw const hole) }).map(drop)
        }
        0 | KEEP_SIZE => {
            let size = stat_fd(&file)?.size;
            if end > size {
                let mut store = libc::fstore_t {
                    fst_flags: libc::F_ALLOCATEALL,
                    fst_posmode: libc::F_PEOFPOSMODE,
                    fst_offset: 0,
                    fst_length: signed(end - size)?,
                    fst_bytesalloc: 0,
                };
                // SAFETY: the descriptor is borrowed and `store`, which the kernel changes, lives
                // through the call.
                check_retry(|| unsafe { libc::fcntl(fd, libc::F_PREALLOCATE, &raw mut store) })?;
                if mode == 0 {
                    retry(CallKind::Truncate, || rustix::fs::ftruncate(&file, end))?;
                }
            }
            Ok(())
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Returns ENOSYS: macOS cannot copy between descriptors.
pub fn copy_file_range(
    _src: impl AsFd,
    _src_offset: &mut u64,
    _dst: impl AsFd,
    _dst_offset: &mut u64,
    _len: usize,
) -> SysResult<usize> {
    Err(Errno::ENOSYS)
}

/// As [`read_full_at`](super::super::read_full_at). No other process can hold a lock that it waits
/// for, because the kernel does no I/O on backing files by itself here.
pub fn read_unlocked_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> SysResult<usize> {
    super::super::read_full_at(file, buffer, offset)
}

/// Makes all earlier writes durable on all filesystems, down to the drive's platter
/// (`F_FULLFSYNC`).
pub fn syncfs(fd: impl AsFd) -> SysResult<()> {
    rustix::fs::sync();
    retry(CallKind::Sync, || rustix::fs::fcntl_fullfsync(&fd))
}

/// No effect: macOS cannot drop the pages of one file.
pub fn drop_cached(_file: impl AsFd, _offset: u64, _len: u64) {}

/// Returns ENOSYS: macOS has no asynchronous writeback.
pub fn start_writeback(_file: impl AsFd) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// Returns ENOSYS, as [`start_writeback`].
pub fn finish_writeback(_file: impl AsFd) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// No effect: not supported.
pub fn write_in_place(_file: &File) {}

/// Returns false: it cannot be determined without creating a file.
pub fn can_share(_file: &File) -> bool {
    false
}

/// Returns EOPNOTSUPP: APFS only clones to new names; see [`clone_to`].
pub fn clone_file(_src: &File, _dst: &File) -> SysResult<()> {
    Err(Errno::EOPNOTSUPP)
}

/// Creates the file `name` in `dir`, mode 0600, as a clone of `src`, and returns it open for
/// reading and writing. Times, extended attributes and flags are cloned too (fclonefileat(2)).
///
/// EEXIST if the name exists, EOPNOTSUPP or EXDEV if only a copy is possible. After a failure the
/// name is removed.
pub fn clone_to(src: &File, dir: impl AsFd, name: &[u8]) -> SysResult<File> {
    let checked = component(name)?;
    retry(CallKind::Clone, || {
        rustix::fs::fclonefileat(
            src,
            &dir,
            checked,
            CloneFlags::NOFOLLOW | CloneFlags::NOOWNERCOPY,
        )
    })?;
    let opened = retry(CallKind::SetAttributes, || {
        rustix::fs::chmodat(&dir, checked, Mode::RUSR | Mode::WUSR, AtFlags::empty())
    })
    .and_then(|()| open_file_at(&dir, name, Access::READ_WRITE));
    if opened.is_err() {
        // The caller needs the first error; `verify` finds a clone that remains.
        let _ = unlink_at(&dir, name);
    }
    opened
}

/// Returns ENOSYS: macOS does not report dirty pages.
pub fn dirty_pages(_file: impl AsFd) -> SysResult<u64> {
    Err(Errno::ENOSYS)
}

/// As [`dirty_pages`].
pub fn dirty_pages_before(_file: impl AsFd, _end: u64) -> SysResult<u64> {
    Err(Errno::ENOSYS)
}

/// Returns EOPNOTSUPP: macOS only clones whole files.
pub fn clone_head(_src: &File, _dst: &File, _len: u64) -> SysResult<()> {
    Err(Errno::EOPNOTSUPP)
}

/// Returns EOPNOTSUPP: macOS does not report shared extents.
pub fn shares_extents(_a: &File, _b: &File) -> SysResult<bool> {
    Err(Errno::EOPNOTSUPP)
}

/// Returns EOPNOTSUPP: macOS does not report the location of data.
pub fn extent_map(_file: impl AsFd, _size: u64) -> SysResult<Option<ExtentMap>> {
    Err(Errno::EOPNOTSUPP)
}

/// Returns EOPNOTSUPP: macOS does not report the location of data.
pub fn same_ranges(_a: &File, _b: &File, _size: u64) -> SysResult<Vec<std::ops::Range<u64>>> {
    Err(Errno::EOPNOTSUPP)
}

/// Returns EOPNOTSUPP: macOS cannot make existing files share data.
pub fn dedupe_range(
    _src: impl AsFd,
    _dst: impl AsFd,
    _offset: u64,
    _len: u64,
) -> SysResult<Option<u64>> {
    Err(Errno::EOPNOTSUPP)
}

/// Returns EOPNOTSUPP: macOS does not report the location of data.
pub fn allocation(_file: impl AsFd) -> SysResult<Allocation> {
    Err(Errno::EOPNOTSUPP)
}

/// Returns false: macOS does not report whether a file is open elsewhere.
pub fn truncate_unshared(_file: impl AsFd) -> SysResult<bool> {
    Ok(false)
}

/// Returns ENOSYS: macOS has no leases.
pub fn lease_free(_file: impl AsFd) -> SysResult<bool> {
    Err(Errno::ENOSYS)
}

/// No effect: the size of a pipe is fixed.
pub fn widen_pipe(_pipe: impl AsFd) {}
