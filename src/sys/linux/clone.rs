//! Reflink (ioctl_ficlone(2)), and sharing of equal data (ioctl_fideduperange(2)).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use super::super::args::Access;
use super::super::fault::{self, CallKind};
use super::super::last_eio;
use super::super::name::check_retry;
use super::super::path::unlink_at;
use super::super::types::{Errno, SysResult};
use super::open::create_file_at;

/// Replaces the data of `dst`, open for writing, by a clone of all data of `src`; attributes are
/// unchanged.
///
/// Dirty pages of `src` are written back first. Not durable on return. Errors: EOPNOTSUPP (EXDEV
/// across filesystems, EINVAL for inodes other than regular files) where only a copy is possible.
pub fn clone_file(src: &File, dst: &File) -> SysResult<()> {
    fault::check(CallKind::Clone)?;
    let mut alike = false;
    loop {
        match reflink_copy::reflink_file(src, dst).map_err(Errno::from) {
            Err(Errno::EINTR) => {}
            Err(Errno::EINVAL) if !alike && make_alike(src, dst) => alike = true,
            result => return result.inspect_err(|errno| last_eio::note(CallKind::Clone, *errno)),
        }
    }
}

/// Gives the empty `dst` the same setting for checksums and copy-on-write as `src` (FS_NOCOW_FL of
/// ioctl_iflags(2)). btrfs clones only between files with equal settings
/// (btrfs_remap_file_range_prep, fs/btrfs/reflink.c). Returns whether `dst` was changed.
pub fn make_alike(src: &File, dst: &File) -> bool {
    let flags = |file: &File| rustix::fs::ioctl_getflags(file);
    let (Ok(wanted), Ok(has)) = (flags(src), flags(dst)) else {
        return false;
    };
    let nocow = rustix::fs::IFlags::NOCOW;
    let changed = has.difference(nocow) | wanted.intersection(nocow);
    changed != has && rustix::fs::ioctl_setflags(dst, changed).is_ok()
}

/// Returns whether the filesystem of this file, open for writing, supports reflink, without
/// creating or changing anything.
///
/// Cloning a file onto itself fails with EINVAL if reflink is supported, and as an unknown call
/// otherwise: do_clone_file_range in fs/remap_range.c.
pub fn can_share(file: &File) -> bool {
    matches!(
        rustix::fs::ioctl_ficlone(file, file),
        Ok(()) | Err(rustix::io::Errno::INVAL)
    )
}

/// Creates the file `name` in `dir`, mode 0600, as a clone of `src`, and returns it open for
/// reading and writing.
///
/// EEXIST if the name exists; other errors as [`clone_file`]. After a failure the name is removed.
pub fn clone_to(src: &File, dir: impl AsFd, name: &[u8]) -> SysResult<File> {
    let dst = create_file_at(&dir, name, Access::READ_WRITE, 0o600)?;
    match clone_file(src, &dst) {
        Ok(()) => Ok(dst),
        Err(errno) => {
            // The caller needs the first error; `verify` finds an empty file that remains.
            let _ = unlink_at(&dir, name);
            Err(errno)
        }
    }
}

/// Clones the first `len` bytes of `src`, a multiple of the block size, into the empty `dst`, open
/// for writing. Only dirty pages in this range are written back first. Errors: as [`clone_file`];
/// EINVAL if `len` is no multiple.
pub fn clone_head(src: &File, dst: &File, len: u64) -> SysResult<()> {
    let range = libc::file_clone_range {
        src_fd: src.as_raw_fd().into(),
        src_offset: 0,
        src_length: len,
        dest_offset: 0,
    };
    fault::check(CallKind::Clone)?;
    let clone = || {
        // SAFETY: `range` has the kernel's layout and is only read; both descriptors are borrowed
        // through the call.
        check_retry(|| unsafe {
            libc::ioctl(dst.as_raw_fd(), libc::FICLONERANGE as _, &raw const range)
        })
    };
    match clone() {
        Err(Errno::EINVAL) if make_alike(src, dst) => clone(),
        cloned => cloned,
    }
    .map(drop)
}

/// `FIDEDUPERANGE` of linux/fs.h: `_IOWR(0x94, 54, struct file_dedupe_range)`, with the 24 bytes
/// before the targets.
const FIDEDUPERANGE: u32 = 0xc018_9436;
/// `FILE_DEDUPE_RANGE_DIFFERS`: the bytes differ, and nothing was done.
const RANGE_DIFFERS: i32 = 1;

/// `struct file_dedupe_range` of linux/fs.h with room for one `struct file_dedupe_range_info`.
#[repr(C)]
struct DedupeRange {
    src_offset: u64,
    src_length: u64,
    dest_count: u16,
    reserved1: u16,
    reserved2: u32,
    dest_fd: i64,
    dest_offset: u64,
    bytes_deduped: u64,
    status: i32,
    reserved: u32,
}

/// Makes `len` bytes of `dst` at `offset` share the extents of the same range of `src` if the bytes
/// are equal: the kernel compares them with both files locked. Returns the number of bytes shared,
/// which may be short, and 0 if nothing can be shared. `None`: the bytes differ, and nothing was
/// done.
///
/// Neither the bytes nor the times of either file change. A range ends at a block boundary, or at
/// the end of both files; btrfs accepts up to 16 MiB per call. `dst` may be open for reading only
/// if the caller is its owner or has CAP_SYS_ADMIN. Errors: EOPNOTSUPP or EINVAL if the filesystem
/// lacks support, EXDEV across filesystems, EPERM.
pub fn dedupe_range(
    src: impl AsFd,
    dst: impl AsFd,
    offset: u64,
    len: u64,
) -> SysResult<Option<u64>> {
    fault::check(CallKind::Clone)?;
    let mut range = DedupeRange {
        src_offset: offset,
        src_length: len,
        dest_count: 1,
        reserved1: 0,
        reserved2: 0,
        dest_fd: i64::from(dst.as_fd().as_raw_fd()),
        dest_offset: offset,
        bytes_deduped: 0,
        status: 0,
        reserved: 0,
    };
    let fd = src.as_fd().as_raw_fd();
    let range_ptr: *mut DedupeRange = &raw mut range;
    // SAFETY: `range_ptr` points to a structure of the kernel's layout with one target, as its
    // count states; it and both descriptors live through the call.
    check_retry(|| unsafe { libc::ioctl(fd, FIDEDUPERANGE as _, range_ptr) })?;
    match range.status {
        RANGE_DIFFERS => Ok(None),
        0 => Ok(Some(range.bytes_deduped)),
        errno => Err(Errno(errno.saturating_neg())),
    }
}
