//! Queries about a file that no portable call answers: dirty pages, shared extents, remaining
//! writers.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Once;

use super::super::fault::{self, CallKind};
use super::super::name::{check_retry, last_errno};
use super::super::signal::ignore_sigio;
use super::super::types::{Allocation, Errno, ExtentMap, PhysicalRange, SysResult};

/// `cachestat`, the same on every architecture except alpha (since 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of linux/mman.h: bytes; a length of 0 means to the end.
#[repr(C)]
struct CachestatRange {
    off: u64,
    len: u64,
}

/// `struct cachestat` of linux/mman.h: pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cache: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns the number of cached pages of the file that are not on disk yet: dirty or under
/// writeback (cachestat(2)). ENOSYS before Linux 6.5, EOPNOTSUPP for hugetlbfs, EPERM for files
/// that the caller neither owns nor may write.
pub fn dirty_pages(file: impl AsFd) -> SysResult<u64> {
    dirty_pages_before(file, 0)
}

/// As [`dirty_pages`], for the first `end` bytes; 0: the whole file.
pub fn dirty_pages_before(file: impl AsFd, end: u64) -> SysResult<u64> {
    let range = CachestatRange { off: 0, len: end };
    fault::check(CallKind::Probe)?;
    let mut stat = Cachestat::default();
    let fd = file.as_fd().as_raw_fd();
    loop {
        // SAFETY: both structures have the kernel's layout and live through the call; the kernel
        // only writes `stat`.
        let returned =
            unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const range, &raw mut stat, 0) };
        match if returned == 0 {
            Ok(())
        } else {
            Err(last_errno())
        } {
            Ok(()) => return Ok(stat.dirty.saturating_add(stat.writeback)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Opening a file while this process holds a lease on it makes the kernel send SIGIO, which would
/// terminate the process.
fn ignore_sigio_once() {
    static SIGIO_IGNORED: Once = Once::new();
    SIGIO_IGNORED.call_once(|| {
        // It cannot fail: the signal number is valid.
        let _ = ignore_sigio();
    });
}

/// Returns whether no writable open and no writable mapping of the file remains, including those of
/// this process.
///
/// It acquires and releases a read lease (fcntl(2), `F_SETLEASE`), which also detects mappings that
/// outlive their descriptor. `file` must be open for reading only. Errors: EACCES unless owner or
/// CAP_LEASE, EINVAL for inodes other than regular files. An open for writing while the lease is
/// held waits some microseconds. The first call ignores SIGIO for the process.
pub fn lease_free(file: impl AsFd) -> SysResult<bool> {
    fault::check(CallKind::Probe)?;
    ignore_sigio_once();
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed through the call, and the argument is an integer.
    match check_retry(|| unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) }) {
        Ok(_) => {}
        Err(Errno::EAGAIN) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    // SAFETY: as above.
    check_retry(|| unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) }).map(|_| true)
}

/// Truncates a file that nothing else has open or mapped, for reading or writing, including other
/// descriptors of this process. `false`: it is in use, and nothing was done.
///
/// It holds a write lease (fcntl(2), `F_SETLEASE`) during the call, so a concurrent open waits and
/// then finds the file empty. Errors: as [`lease_free`], and those of ftruncate(2).
pub fn truncate_unshared(file: impl AsFd) -> SysResult<bool> {
    fault::check(CallKind::Probe)?;
    ignore_sigio_once();
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed through the call, and the argument is an integer.
    match check_retry(|| unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) }) {
        Ok(_) => {}
        Err(Errno::EAGAIN | Errno::EBUSY) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    let truncated = super::super::data::truncate(&file, 0);
    // SAFETY: as above.
    let released = check_retry(|| unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) });
    truncated.and(released).map(|_| true)
}

/// `FS_IOC_FIEMAP` of linux/fs.h: `_IOWR('f', 11, struct fiemap)`, with the 32 bytes before the
/// extents.
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
/// Flushes before mapping (`FIEMAP_FLAG_SYNC`).
const FLAG_SYNC: u32 = 0x1;
/// The last extent of the file.
const EXTENT_LAST: u32 = 0x1;
/// Allocated but never written: reads as zeros, as a hole does.
pub(super) const EXTENT_UNWRITTEN: u32 = 0x800;
/// Part of it is shared, or was a moment ago (`FIEMAP_EXTENT_SHARED`); the other user is not
/// reported.
const EXTENT_SHARED: u32 = 0x2000;
/// Flags of extents whose physical address does not determine their content: UNKNOWN, DELALLOC,
/// ENCODED, DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE, DATA_TAIL.
pub(super) const EXTENT_OPAQUE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;
/// Stored with the inode's attributes (`FIEMAP_EXTENT_DATA_INLINE`), so it cannot be shared.
const EXTENT_INLINE: u32 = 0x200;
/// Of those, extents without an address yet, or without a comparable one. Compressed extents have
/// one.
const EXTENT_NOWHERE: u32 = EXTENT_OPAQUE & !(EXTENT_INLINE | 0x8);
/// Extents requested per call.
const EXTENTS_PER_CALL: usize = 128;
/// Maximum number of extents of a file to compare: 24 bytes of memory each.
pub(super) const EXTENTS_MAX: usize = 1 << 18;

/// `struct fiemap_extent` of linux/fiemap.h: bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FiemapExtent {
    pub(super) logical: u64,
    pub(super) physical: u64,
    pub(super) length: u64,
    reserved64: [u64; 2],
    pub(super) flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` of linux/fiemap.h.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS_PER_CALL],
}

/// A range of file data and its location on the device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
}

/// Returns whether two files of one filesystem have the same size and share all their data, so that
/// their contents are equal.
///
/// Also false if the location does not prove equality: inline, compressed or encrypted extents,
/// more than 2^18 of them, or different filesystems. Both files are flushed (`FIEMAP_FLAG_SYNC`);
/// concurrent writes may or may not be seen. Errors: EOPNOTSUPP if the filesystem does not report
/// extents.
pub fn shares_extents(a: &std::fs::File, b: &std::fs::File) -> SysResult<bool> {
    fault::check(CallKind::Probe)?;
    let (stat_a, stat_b) = (super::stat_fd(a)?, super::stat_fd(b)?);
    if stat_a.dev != stat_b.dev || stat_a.size != stat_b.size {
        return Ok(false);
    }
    match (
        extents(a, stat_a.size, EXTENT_OPAQUE, 0)?,
        extents(b, stat_b.size, EXTENT_OPAQUE, 0)?,
    ) {
        (Some(a), Some(b)) => Ok(a == b),
        _ => Ok(false),
    }
}

/// Returns the location of a file's data on the device, up to `size`. Two files of one filesystem
/// and size with equal maps share all of it (for compressed extents this is no proof). Inline data
/// is not included. `None` if the location does not determine the content: encrypted extents, or
/// more than 2^18 of them. The file is flushed.
///
/// Errors: EOPNOTSUPP if the filesystem does not report extents.
pub fn extent_map(file: impl AsFd, size: u64) -> SysResult<Option<ExtentMap>> {
    fault::check(CallKind::Probe)?;
    let found = extents(file, size, EXTENT_NOWHERE, EXTENT_INLINE)?;
    Ok(found.map(|extents| {
        ExtentMap(
            extents
                .iter()
                .map(|extent| (extent.logical, extent.physical, extent.length))
                .collect(),
        )
    }))
}

/// Returns the space allocated to a file (`FS_IOC_FIEMAP`). The file is flushed; concurrent writes
/// may or may not be seen.
///
/// Errors: EOPNOTSUPP if the filesystem does not report extents.
pub fn allocation(file: impl AsFd) -> SysResult<Allocation> {
    fault::check(CallKind::Probe)?;
    let mut found = Allocation::default();
    each_extent(file, u64::MAX, |extent| {
        let shared = extent.flags & EXTENT_SHARED != 0;
        if extent.flags & EXTENT_OPAQUE == 0 {
            found.placed.push(PhysicalRange {
                physical: extent.physical,
                length: extent.length,
                shared,
            });
        } else if !shared {
            found.unplaced_bytes = found.unplaced_bytes.saturating_add(extent.length);
        }
        true
    })?;
    Ok(found)
}

/// Returns the data extents of the file up to `size`, adjacent ones merged, skipping those with a
/// flag of `without`. `None` if one has a flag of `opaque`, or there are too many.
fn extents(
    file: impl AsFd,
    size: u64,
    opaque: u32,
    without: u32,
) -> SysResult<Option<Vec<Extent>>> {
    let mut found: Vec<Extent> = Vec::new();
    let whole = each_extent(file, size, |extent| {
        if extent.flags & without != 0 {
            return true;
        }
        if extent.flags & opaque != 0 {
            return false;
        }
        if extent.flags & EXTENT_UNWRITTEN == 0 && extent.logical < size {
            push_joined(
                &mut found,
                Extent {
                    length: extent.length.min(size - extent.logical),
                    ..Extent::from(*extent)
                },
            );
        }
        found.len() <= EXTENTS_MAX
    })?;
    Ok(whole.then_some(found))
}

/// Calls `look` for the extents of the file, in order, up to the one that reaches `size`. Returns
/// `false` if `look` does, or if an extent is empty.
pub(super) fn each_extent(
    file: impl AsFd,
    size: u64,
    mut look: impl FnMut(&FiemapExtent) -> bool,
) -> SysResult<bool> {
    let mut start = 0;
    // SAFETY: every field is an integer or an array of integers, for which zero is valid.
    let mut map: Box<Fiemap> = Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
    while start < size {
        let count = map_extents(&file, start, &mut map)?;
        let Some(mapped) = map.extents.get(..count) else {
            return Err(Errno::EIO);
        };
        if !mapped.iter().all(&mut look) {
            return Ok(false);
        }
        let Some(last) = mapped.last().filter(|last| last.flags & EXTENT_LAST == 0) else {
            break;
        };
        if last.length == 0 {
            return Ok(false);
        }
        start = last.logical.saturating_add(last.length);
    }
    Ok(true)
}

/// Requests the extents from `start` on; returns the number of extents in `map`. While btrfs
/// searches for sharing files it blocks commits of its transaction, so an idle thread runs with
/// normal priority during the call.
fn map_extents(file: impl AsFd, start: u64, map: &mut Fiemap) -> SysResult<usize> {
    map.start = start;
    map.length = u64::MAX - start;
    map.flags = FLAG_SYNC;
    map.mapped_extents = 0;
    map.extent_count = EXTENTS_PER_CALL as u32;
    map.reserved = 0;
    let fd = file.as_fd().as_raw_fd();
    let map_ptr: *mut Fiemap = map;
    // SAFETY: `map_ptr` points to a structure of the kernel's layout with room for `extent_count`
    // extents; it lives through the call.
    super::awake(|| check_retry(|| unsafe { libc::ioctl(fd, FS_IOC_FIEMAP as _, map_ptr) }))?;
    Ok(map.mapped_extents as usize)
}

impl From<FiemapExtent> for Extent {
    fn from(extent: FiemapExtent) -> Self {
        Extent {
            logical: extent.logical,
            physical: extent.physical,
            length: extent.length,
        }
    }
}

/// Appends an extent, merged with the previous one if they are adjacent in the file and on the
/// device: how a filesystem splits a range is irrelevant.
fn push_joined(extents: &mut Vec<Extent>, next: Extent) {
    match extents.last_mut() {
        Some(last)
            if last.logical.checked_add(last.length) == Some(next.logical)
                && last.physical.checked_add(last.length) == Some(next.physical) =>
        {
            last.length = last.length.saturating_add(next.length);
        }
        _ => extents.push(next),
    }
}
