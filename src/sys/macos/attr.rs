//! Attributes of inodes and filesystems, by descriptors of every kind, the calls mknod and link,
//! and listing.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Nsecs, RawMode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    Uid,
};

use super::super::args::{Access, DirEntry, FsInfo, SetTime};
use super::super::fault::CallKind;
use super::super::name::{
    NAME_LEN_MAX, check_retry, component, kind_of, mode_bits, permissions, retry,
};
use super::super::path::unlink_at;
use super::super::types::{Errno, Kind, Protection, Stat, SysResult, Time};
use super::open::create_file_at;

/// Returns the attributes of `name` in `dir`, without following a link (fstatat(2)).
pub fn stat_at(dir: impl AsFd, name: &[u8]) -> SysResult<Stat> {
    let name = component(name)?;
    stat_of(&retry(CallKind::Stat, || {
        rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
    })?)
}

/// Returns the attributes of the inode that a descriptor names (fstat(2)).
pub fn stat_fd(fd: impl AsFd) -> SysResult<Stat> {
    stat_of(&retry(CallKind::Stat, || rustix::fs::fstat(&fd))?)
}

/// Converts the kernel's record; EIO for an unknown file type.
fn stat_of(stat: &rustix::fs::Stat) -> SysResult<Stat> {
    Ok(Stat {
        dev: u64::from(stat.st_dev as u32),
        ino: stat.st_ino,
        kind: kind_of(FileType::from_raw_mode(stat.st_mode as RawMode)).ok_or(Errno::EIO)?,
        mode: u32::from(stat.st_mode) & 0o7777,
        nlink: u32::from(stat.st_nlink),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: u64::from(stat.st_rdev as u32),
        size: u64::try_from(stat.st_size).map_err(|_| Errno::EOVERFLOW)?,
        blocks: u64::try_from(stat.st_blocks).map_err(|_| Errno::EOVERFLOW)?,
        blksize: stat.st_blksize as u32,
        atime: Time {
            sec: stat.st_atime,
            nsec: stat.st_atime_nsec as u32,
        },
        mtime: Time {
            sec: stat.st_mtime,
            nsec: stat.st_mtime_nsec as u32,
        },
        ctime: Time {
            sec: stat.st_ctime,
            nsec: stat.st_ctime_nsec as u32,
        },
        btime: Some(Time {
            sec: stat.st_birthtime,
            nsec: stat.st_birthtime_nsec as u32,
        }),
        protection: Protection::None,
    })
}

/// Creates an inode of any kind except directory and symbolic link (EINVAL) and socket
/// (EOPNOTSUPP). Devices require root. The umask of the process applies to `mode`. `rdev` is
/// encoded as in [`Stat::rdev`] and used for devices only.
pub fn mknod_at(dir: impl AsFd, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> SysResult<()> {
    let rdev = match kind {
        Kind::Dir | Kind::Symlink => return Err(Errno::EINVAL),
        Kind::Socket => return Err(Errno::EOPNOTSUPP),
        Kind::File => return create_file_at(dir, name, Access::WRITE, mode).map(drop),
        Kind::Fifo => 0,
        Kind::CharDev | Kind::BlockDev => rdev as libc::dev_t,
    };
    let name = CString::new(component(name)?).map_err(|_| Errno::EINVAL)?;
    let mode = mode_bits(kind, mode) as libc::mode_t;
    let dir = dir.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed and the name lives, with its NUL, through the call.
    check_retry(|| unsafe { libc::mknodat(dir, name.as_ptr(), mode, rdev) }).map(drop)
}

/// Creates the name `name` in `dir` for the inode that a descriptor names, by its current path
/// (F_GETPATH). ESTALE if the path names another inode by now; `name` is then removed again.
pub fn link_fd(fd: impl AsFd, dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    let name = component(name)?;
    let path = retry(CallKind::Probe, || rustix::fs::getpath(&fd))?;
    retry(CallKind::Link, || {
        rustix::fs::linkat(CWD, path.as_c_str(), &dir, name, AtFlags::empty())
    })?;
    let (wanted, made) = (stat_fd(&fd)?, stat_at(&dir, name)?);
    if (wanted.dev, wanted.ino) != (made.dev, made.ino) {
        unlink_at(&dir, name)?;
        return Err(Errno::ESTALE);
    }
    Ok(())
}

/// Sets the permission bits, including set-id and sticky bits; EOPNOTSUPP for a symbolic link, as
/// on Linux.
pub fn chmod_fd(fd: impl AsFd, mode: u32) -> SysResult<()> {
    if stat_fd(&fd)?.kind == Kind::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    retry(CallKind::SetAttributes, || {
        rustix::fs::fchmod(&fd, permissions(mode))
    })
}

/// Sets owner and group, each if present, also of a symbolic link. EINVAL for the id 2^32-1, which
/// means "no change" to the kernel.
pub fn chown_fd(fd: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> SysResult<()> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::EINVAL);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    retry(CallKind::SetAttributes, || {
        rustix::fs::fchown(&fd, uid, gid)
    })
}

/// Sets access and modification time, also of a symbolic link (futimens(2)). EINVAL unless
/// nanoseconds are below 1,000,000,000.
pub fn utimens_fd(fd: impl AsFd, atime: SetTime, mtime: SetTime) -> SysResult<()> {
    let times = Timestamps {
        last_access: timespec(atime)?,
        last_modification: timespec(mtime)?,
    };
    retry(CallKind::SetAttributes, || {
        rustix::fs::futimens(&fd, &times)
    })
}

/// Converts `time` for futimens(2). Its special values are nanoseconds out of range, so real ones
/// are checked.
fn timespec(time: SetTime) -> SysResult<Timespec> {
    Ok(match time {
        SetTime::Omit => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT as Nsecs,
        },
        SetTime::Now => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW as Nsecs,
        },
        SetTime::At(time) if time.nsec < 1_000_000_000 => Timespec {
            tv_sec: time.sec,
            tv_nsec: Nsecs::from(time.nsec),
        },
        SetTime::At(_) => return Err(Errno::EINVAL),
    })
}

/// Returns size and free space of the filesystem of a descriptor (fstatfs(2)).
///
/// Filesystem types have no fixed numbers here: [`FsInfo::fs_type`] is the first 8 bytes of the
/// type's name.
pub fn statfs_fd(fd: impl AsFd) -> SysResult<FsInfo> {
    let info = retry(CallKind::Stat, || rustix::fs::fstatfs(&fd))?;
    let mut fs_type = [0; 8];
    for (to, from) in fs_type.iter_mut().zip(info.f_fstypename) {
        *to = from as u8;
    }
    Ok(FsInfo {
        blocks: info.f_blocks,
        bfree: info.f_bfree,
        bavail: info.f_bavail,
        files: info.f_files,
        ffree: info.f_ffree,
        bsize: u32::try_from(info.f_iosize).unwrap_or(info.f_bsize),
        frsize: info.f_bsize,
        namelen: NAME_LEN_MAX as u32,
        fs_type: u64::from_le_bytes(fs_type),
    })
}

/// Returns the usual name of a filesystem by the number from [`statfs_fd`], or `unknown` if this
/// program does not distinguish it.
pub fn fs_name(magic: u64) -> &'static str {
    match &magic.to_le_bytes() {
        b"apfs\0\0\0\0" => "apfs",
        b"hfs\0\0\0\0\0" => "hfs",
        b"macfuse\0" => "fuse",
        _ => "unknown",
    }
}

/// As [`list_dir`].
pub fn list_new_dir(dir: &OwnedFd) -> SysResult<Vec<DirEntry>> {
    list_dir(dir)
}

/// Returns all names of the directory of `fd` except `.` and `..`, in the filesystem's order.
///
/// It reads through a separate open file description, so calls on the same descriptor do not
/// interfere. Names added or removed during the call may or may not be included.
pub fn list_dir(fd: impl AsFd) -> SysResult<Vec<DirEntry>> {
    let mut entries = read_dir(fd, 0, usize::MAX)?.0;
    entries.retain(|entry| entry.name != b"." && entry.name != b"..");
    Ok(entries)
}

/// Returns names of a directory, including `.` and `..`, from a position (0: the beginning; else
/// [`DirEntry::next`]) to the end, and true. Positions are counted here: adding or removing a name
/// shifts those after it.
pub fn read_dir(fd: impl AsFd, from: u64, _count: usize) -> SysResult<(Vec<DirEntry>, bool)> {
    let mut entries = Vec::new();
    for (entry, next) in retry(CallKind::List, || Dir::read_from(&fd))?.zip(1..) {
        let entry = entry?;
        if next > from {
            let name = entry.file_name().to_bytes().to_vec();
            entries.push(DirEntry {
                name,
                ino: entry.ino(),
                kind: kind_of(entry.file_type()),
                next,
            });
        }
    }
    Ok((entries, true))
}
