//! Questions about a file that no portable call answers: what is dirty, what is shared, who may
//! still write.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Once;

use super::super::fault::{self, Call};
use super::super::name::{check_retry, last_errno};
use super::super::signal::ignore_sigio;
use super::super::types::{Allocation, Errno, ExtentMap, Placed, SysResult};

/// `cachestat` of every architecture's table but alpha's (since 6.5).
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

/// Pages of the file in memory that are not on disk yet: dirty and under write-back (cachestat(2)).
/// ENOSYS before Linux 6.5, EOPNOTSUPP for hugetlbfs, EPERM for files that are neither owned nor
/// writable.
pub fn dirty_pages(file: impl AsFd) -> SysResult<u64> {
    dirty_pages_before(file, 0)
}

/// As [`dirty_pages`], of the first `end` bytes alone; 0: of all.
pub fn dirty_pages_before(file: impl AsFd, end: u64) -> SysResult<u64> {
    let range = CachestatRange { off: 0, len: end };
    fault::check(Call::Probe)?;
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

/// Somebody who opens a file while we hold a lease on it makes the kernel send SIGIO, which would
/// end the process.
fn ignore_sigio_once() {
    static SIGIO_IGNORED: Once = Once::new();
    SIGIO_IGNORED.call_once(|| {
        // It cannot fail: the signal's number is valid.
        let _ = ignore_sigio();
    });
}

/// Whether no writable open and no writable mapping of the file is left, this process's own
/// included.
///
/// It takes a read lease and gives it back (fcntl(2), `F_SETLEASE`): exact also for mappings that
/// outlive their descriptor. `file` must be open for reading only. Errors: EACCES unless owner or
/// CAP_LEASE, EINVAL for what is no regular file. An open for writing that comes while the lease is
/// held waits some microseconds. The first call ignores SIGIO for the process.
pub fn lease_free(file: impl AsFd) -> SysResult<bool> {
    fault::check(Call::Probe)?;
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

/// Empties a file that nobody else has open or mapped, for reading or writing, other descriptors of
/// this process included; `false`: somebody has, and nothing was done.
///
/// It holds a write lease (fcntl(2), `F_SETLEASE`) meanwhile, so who opens the file then waits, and
/// finds it empty. Errors: as [`lease_free`], and those of ftruncate(2).
pub fn truncate_unshared(file: impl AsFd) -> SysResult<bool> {
    fault::check(Call::Probe)?;
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
/// The file's last extent.
const EXTENT_LAST: u32 = 0x1;
/// Allocated and never written: reads as zeros, as a hole does.
pub(super) const EXTENT_UNWRITTEN: u32 = 0x800;
/// Somebody else uses some of it too, or did a moment ago (`FIEMAP_EXTENT_SHARED`); it does not say
/// who.
const EXTENT_SHARED: u32 = 0x2000;
/// Flags of extents whose physical place does not tell their content: UNKNOWN, DELALLOC, ENCODED,
/// DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE, DATA_TAIL.
pub(super) const EXTENT_OPAQUE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;
/// Beside the inode's attributes (`FIEMAP_EXTENT_DATA_INLINE`): nothing else can have it there.
const EXTENT_INLINE: u32 = 0x200;
/// Of those, the extents that are nowhere yet, or at no place that could be compared; compressed
/// ones are at one.
const EXTENT_NOWHERE: u32 = EXTENT_OPAQUE & !(EXTENT_INLINE | 0x8);
/// Extents asked for at once.
const EXTENTS_PER_CALL: usize = 128;
/// Extents beyond which a file is not compared: 24 bytes of memory each.
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

/// A range of a file's data and where it is on the device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
}

/// Whether two files of one filesystem have the same size and share all their data, so that their
/// contents are equal.
///
/// False also where the place on the device does not prove it: inline, compressed or encrypted
/// extents, more than 2^18 of them, or different filesystems. Both files are flushed
/// (`FIEMAP_FLAG_SYNC`); what is written meanwhile is seen or not. Errors: EOPNOTSUPP where the
/// filesystem cannot tell.
pub fn shares_extents(a: &std::fs::File, b: &std::fs::File) -> SysResult<bool> {
    fault::check(Call::Probe)?;
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

/// Where a file's data is, up to `size`: two files of one filesystem and size with the same map
/// share all of it (of compressed extents that is no proof). What stands beside the inode's
/// attributes has no place. `None` where the place does not tell: encrypted extents, or more than
/// 2^18 of them. The file is flushed.
///
/// Errors: EOPNOTSUPP where the filesystem cannot tell.
pub fn extent_map(file: impl AsFd, size: u64) -> SysResult<Option<ExtentMap>> {
    fault::check(Call::Probe)?;
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

/// Where the space is that a file takes (`FS_IOC_FIEMAP`). The file is flushed; what is written
/// meanwhile is seen or not.
///
/// Errors: EOPNOTSUPP where the filesystem cannot tell.
pub fn allocation(file: impl AsFd) -> SysResult<Allocation> {
    fault::check(Call::Probe)?;
    let mut found = Allocation::default();
    each_extent(file, u64::MAX, |extent| {
        let shared = extent.flags & EXTENT_SHARED != 0;
        if extent.flags & EXTENT_OPAQUE == 0 {
            found.placed.push(Placed {
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

/// The file's data extents up to `size`, neighbours joined, without those with a flag of `without`;
/// `None` when one has a flag of `opaque`, or there are too many.
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

/// Shows `look` the file's extents, in order, up to one that goes over `size` or until it says
/// `false`; `false` then, and if one is empty.
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

/// Asks for the extents from `start` on; gives how many there are in `map`. To find who shares one,
/// btrfs keeps its transaction from being committed: an idle thread is not idle meanwhile.
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

/// Adds an extent, as a part of the one before where it goes on in the file and on the device: how
/// a filesystem splits a range is no difference.
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
