//! Project IDs of disk quotas (`FS_XFLAG_PROJINHERIT` of ioctl_xfs_fsgetxattr(2)). If new inodes
//! inherit the project of a directory, XFS and ext4 reject renames and links of inodes of other
//! projects into it with EXDEV.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::super::args::RenameMode;
use super::super::fault::CallKind;
use super::super::name::{check, check_retry, component, retry};
use super::super::path::rename_at;
use super::super::types::{Errno, SysResult};
use super::open::proc_path;

/// `FS_IOC_FSGETXATTR` of linux/fs.h: `_IOR('X', 31, struct fsxattr)`.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR` of linux/fs.h: `_IOW('X', 32, struct fsxattr)`.
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
/// New inodes in the directory inherit its project (`FS_XFLAG_PROJINHERIT`).
const PROJECT_INHERIT: u32 = 0x200;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
pub(super) struct FsXattr {
    pub(super) xflags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// Returns the extended inode attributes of an open file.
///
/// # Errors
/// ENOTTY or EOPNOTSUPP on filesystems without them.
pub(super) fn fsxattr(file: impl AsFd) -> SysResult<FsXattr> {
    // SAFETY: every field is an integer or an array of integers, for which zero is valid.
    let mut attr: FsXattr = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the descriptor is borrowed through the call, and the kernel writes a structure of
    // this layout, which lives through it.
    check_retry(|| unsafe {
        libc::ioctl(
            file.as_fd().as_raw_fd(),
            FS_IOC_FSGETXATTR as _,
            &raw mut attr,
        )
    })?;
    Ok(attr)
}

fn set_fsxattr(file: impl AsFd, attr: &FsXattr) -> SysResult<()> {
    // SAFETY: the descriptor is borrowed through the call, and the kernel reads a structure of this
    // layout, which lives through it.
    check_retry(|| unsafe {
        libc::ioctl(
            file.as_fd().as_raw_fd(),
            FS_IOC_FSSETXATTR as _,
            &raw const *attr,
        )
    })
    .map(drop)
}

/// Opens a directory by its descriptor for ioctls, which reject `O_PATH` descriptors.
fn open_dir(dir: impl AsFd) -> SysResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(CallKind::Open, || {
        rustix::fs::open(proc_path(&dir), flags, Mode::empty())
    })
}

/// As [`rename_at`], for inodes that are put back or preserved. If the rename fails with EXDEV, the
/// inode gets the project of the target directory, and the rename is retried. With
/// [`RenameMode::Exchange`] so does the inode at the target.
///
/// # Errors
/// Those of rename(2).
pub fn rename_home(
    from_dir: impl AsFd,
    from: &[u8],
    to_dir: impl AsFd,
    to: &[u8],
    mode: RenameMode,
) -> SysResult<()> {
    let rename = || rename_at(&from_dir, from, &to_dir, to, mode);
    let refused = rename();
    if refused != Err(Errno::EXDEV) {
        return refused;
    }
    adopt(&from_dir, from, &to_dir)?;
    if mode == RenameMode::Exchange {
        adopt(&to_dir, to, &from_dir)?;
    }
    rename()
}

/// Sets the project of an inode to that of the target directory, if its entries inherit it.
fn adopt(from_dir: impl AsFd, from: &[u8], to_dir: impl AsFd) -> SysResult<()> {
    let of_dir = fsxattr(open_dir(to_dir)?)?;
    if of_dir.xflags & PROJECT_INHERIT == 0 {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let name = component(from)?;
    let opened = retry(CallKind::Open, || {
        rustix::fs::openat(&from_dir, name, flags, Mode::empty())
    });
    let file = match opened {
        Err(Errno::ELOOP | Errno::ENXIO | Errno::ENODEV) => {
            return set_project_at(from_dir, from, of_dir.project);
        }
        file => file?,
    };
    let mut attr = fsxattr(&file)?;
    attr.project = of_dir.project;
    set_fsxattr(&file, &attr)
}

/// Numbers of file_getattr(2) and file_setattr(2), the same on every architecture except Alpha.
const FILE_GETATTR: libc::c_long = 468;
const FILE_SETATTR: libc::c_long = 469;

/// `struct file_attr` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct FileAttr {
    xflags: u64,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
}

/// Sets the project of an inode that cannot be opened: a link, a socket. No effect before Linux
/// 6.17.
fn set_project_at(dir: impl AsFd, name: &[u8], project: u32) -> SysResult<()> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    let (dir, mut attr) = (dir.as_fd().as_raw_fd(), FileAttr::default());
    let size = size_of::<FileAttr>();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    let call = |number, attr: &mut FileAttr| {
        // SAFETY: name and attributes live through the call, and the size is that of the structure,
        // which the kernel reads or writes.
        let done =
            unsafe { libc::syscall(number, dir, name.as_ptr(), &raw mut *attr, size, flags) };
        check(i32::try_from(done).unwrap_or(-1))
    };
    match call(FILE_GETATTR, &mut attr) {
        Err(Errno::ENOSYS | Errno::EOPNOTSUPP) => return Ok(()),
        got => got?,
    };
    attr.project = project;
    call(FILE_SETATTR, &mut attr).map(drop)
}

/// Stops new inodes in a directory from inheriting its project. No effect if that is not possible.
pub fn give_no_project(dir: impl AsFd) {
    let Ok(dir) = open_dir(dir) else { return };
    if let Ok(mut attr) = fsxattr(&dir)
        && attr.xflags & PROJECT_INHERIT != 0
    {
        attr.xflags &= !PROJECT_INHERIT;
        let _ = set_fsxattr(&dir, &attr);
    }
}
