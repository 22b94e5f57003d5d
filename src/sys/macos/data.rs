//! File data: space, clones, flushing; and the probes that macOS does not have.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, CloneFlags, Mode};

use super::super::args::Open;
use super::super::fault::Call;
use super::super::name::{check_retry, component, retry};
use super::super::path::{open_file_at, unlink_at};
use super::super::types::{Allocation, Errno, ExtentMap, SysResult};
use super::attr::stat_fd;

/// `FALLOC_FL_KEEP_SIZE` of Linux's fallocate(2).
const KEEP_SIZE: i32 = 1;
/// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE` of Linux's fallocate(2).
const PUNCH_HOLE: i32 = 3;

/// Allocates or punches `len` bytes at `offset`; `mode` has the bits of Linux's fallocate(2), of
/// which 0, KEEP_SIZE and PUNCH_HOLE | KEEP_SIZE are served. EOPNOTSUPP for others, EINVAL for a
/// hole that is not aligned to blocks.
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
                    retry(Call::Truncate, || rustix::fs::ftruncate(&file, end))?;
                }
            }
            Ok(())
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// ENOSYS: the kernel copies between descriptors on Linux only.
pub fn copy_file_range(
    _src: impl AsFd,
    _src_offset: &mut u64,
    _dst: impl AsFd,
    _dst_offset: &mut u64,
    _len: usize,
) -> SysResult<usize> {
    Err(Errno::ENOSYS)
}

/// As [`read_full_at`](super::super::read_full_at): nobody else can hold a lock that it waits for,
/// for the kernel does no I/O of others here.
pub fn read_unlocked_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> SysResult<usize> {
    super::super::read_full_at(file, buffer, offset)
}

/// Makes everything durable that was written before, on all filesystems, down to the drive's
/// platter (`F_FULLFSYNC`).
pub fn syncfs(fd: impl AsFd) -> SysResult<()> {
    rustix::fs::sync();
    retry(Call::Sync, || rustix::fs::fcntl_fullfsync(&fd))
}

/// Nothing: pages of a file cannot be dropped by themselves here.
pub fn drop_cached(_file: impl AsFd, _offset: u64, _len: u64) {}

/// ENOSYS: there is no write-back without waiting here.
pub fn start_writeback(_file: impl AsFd) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// ENOSYS: as [`start_writeback`].
pub fn finish_writeback(_file: impl AsFd) -> SysResult<()> {
    Err(Errno::ENOSYS)
}

/// There is no such thing here.
pub fn write_in_place(_file: &File) {}

/// Not to be told without making something.
pub fn can_share(_file: &File) -> bool {
    false
}

/// EOPNOTSUPP: APFS clones into new names only; see [`clone_to`].
pub fn clone_file(_src: &File, _dst: &File) -> SysResult<()> {
    Err(Errno::EOPNOTSUPP)
}

/// Makes the new file `name` in `dir`, mode 0600, share all of `src`'s data, and gives it open for
/// reading and writing. Times, extended attributes and flags come along (fclonefileat(2)).
///
/// EEXIST when the name is taken, EOPNOTSUPP or EXDEV where only a copy will do. After a failure
/// the name is not there.
pub fn clone_to(src: &File, dir: impl AsFd, name: &[u8]) -> SysResult<File> {
    let checked = component(name)?;
    retry(Call::Clone, || {
        rustix::fs::fclonefileat(
            src,
            &dir,
            checked,
            CloneFlags::NOFOLLOW | CloneFlags::NOOWNERCOPY,
        )
    })?;
    let opened = retry(Call::SetAttributes, || {
        rustix::fs::chmodat(&dir, checked, Mode::RUSR | Mode::WUSR, AtFlags::empty())
    })
    .and_then(|()| open_file_at(&dir, name, Open::READ_WRITE));
    if opened.is_err() {
        // What went wrong first is what the caller must know; a clone that stays is found by fsck.
        let _ = unlink_at(&dir, name);
    }
    opened
}

/// ENOSYS: nothing tells the number of dirty pages here.
pub fn dirty_pages(_file: impl AsFd) -> SysResult<u64> {
    Err(Errno::ENOSYS)
}

/// As [`dirty_pages`].
pub fn dirty_pages_before(_file: impl AsFd, _end: u64) -> SysResult<u64> {
    Err(Errno::ENOSYS)
}

/// EOPNOTSUPP: only whole files are cloned here.
pub fn clone_head(_src: &File, _dst: &File, _len: u64) -> SysResult<()> {
    Err(Errno::EOPNOTSUPP)
}

/// EOPNOTSUPP: nothing tells which extents two files share here.
pub fn shares_extents(_a: &File, _b: &File) -> SysResult<bool> {
    Err(Errno::EOPNOTSUPP)
}

/// EOPNOTSUPP: nothing tells where a file's data is here.
pub fn extent_map(_file: impl AsFd, _size: u64) -> SysResult<Option<ExtentMap>> {
    Err(Errno::EOPNOTSUPP)
}

/// EOPNOTSUPP: nothing tells where a file's data is here.
pub fn same_ranges(_a: &File, _b: &File, _size: u64) -> SysResult<Vec<std::ops::Range<u64>>> {
    Err(Errno::EOPNOTSUPP)
}

/// EOPNOTSUPP: two files that exist cannot be made to share here.
pub fn dedupe_range(
    _src: impl AsFd,
    _dst: impl AsFd,
    _offset: u64,
    _len: u64,
) -> SysResult<Option<u64>> {
    Err(Errno::EOPNOTSUPP)
}

/// EOPNOTSUPP: nothing tells where a file's space is here.
pub fn allocation(_file: impl AsFd) -> SysResult<Allocation> {
    Err(Errno::EOPNOTSUPP)
}

/// `false`: nothing tells whether somebody else has a file open here.
pub fn truncate_unshared(_file: impl AsFd) -> SysResult<bool> {
    Ok(false)
}

/// ENOSYS: there are no leases here.
pub fn lease_free(_file: impl AsFd) -> SysResult<bool> {
    Err(Errno::ENOSYS)
}

/// A pipe takes as much as it does.
pub fn widen_pipe(_pipe: impl AsFd) {}
