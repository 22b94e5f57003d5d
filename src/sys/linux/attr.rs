//! Attributes of inodes and filesystems, by descriptors of every kind, and the calls mknod and
//! link.

use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Nsecs, Statx, StatxAttributes, StatxFlags, StatxTimestamp,
    Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};

use super::super::args::{FsInfo, SetTime};
use super::super::fault::CallKind;
use super::super::name::{component, kind_of, make_device, mode_bits, permissions, retry};
use super::super::types::{Errno, Kind, Protection, Stat, SysResult, Time};
use super::open::proc_path;
use super::requester_rights::act_for;

/// Fields requested of statx(2): those of stat(2), and the birth time.
const STATX_MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Names by magic number (statfs(2)) of the filesystems that this program distinguishes.
const FS_NAMES: [(u64, &str); 6] = [
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xef53, "ext4"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlayfs"),
    (0x6573_5546, "fuse"),
];

/// Returns the attributes of `name` in `dir`, without following a link or triggering an automount
/// (statx(2)).
pub fn stat_at(dir: impl AsFd, name: &[u8]) -> SysResult<Stat> {
    let name = component(name)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let statx = retry(CallKind::Stat, || {
        rustix::fs::statx(&dir, name, flags, STATX_MASK)
    })?;
    stat_of(&statx)
}

/// Returns the attributes of the inode that a descriptor names, which may be an `O_PATH` descriptor
/// (`AT_EMPTY_PATH`).
pub fn stat_fd(fd: impl AsFd) -> SysResult<Stat> {
    let statx = retry(CallKind::Stat, || {
        rustix::fs::statx(
            &fd,
            c"",
            AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
            STATX_MASK,
        )
    })?;
    stat_of(&statx)
}

/// Converts the kernel's record; EIO for a file type unknown to inode(7).
fn stat_of(statx: &Statx) -> SysResult<Stat> {
    let born = StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::BTIME);
    Ok(Stat {
        dev: make_device(statx.stx_dev_major, statx.stx_dev_minor),
        ino: statx.stx_ino,
        kind: kind_of(FileType::from_raw_mode(statx.stx_mode.into())).ok_or(Errno::EIO)?,
        mode: u32::from(statx.stx_mode) & 0o7777,
        nlink: statx.stx_nlink,
        uid: statx.stx_uid,
        gid: statx.stx_gid,
        rdev: make_device(statx.stx_rdev_major, statx.stx_rdev_minor),
        size: statx.stx_size,
        blocks: statx.stx_blocks,
        blksize: statx.stx_blksize,
        atime: time_of(&statx.stx_atime),
        mtime: time_of(&statx.stx_mtime),
        ctime: time_of(&statx.stx_ctime),
        btime: born.then(|| time_of(&statx.stx_btime)),
        protection: protection_of(statx.stx_attributes),
    })
}

/// Immutable takes precedence over append-only.
fn protection_of(attributes: StatxAttributes) -> Protection {
    if attributes.contains(StatxAttributes::IMMUTABLE) {
        Protection::Immutable
    } else if attributes.contains(StatxAttributes::APPEND) {
        Protection::AppendOnly
    } else {
        Protection::None
    }
}

/// Converts the kernel's time.
fn time_of(time: &StatxTimestamp) -> Time {
    Time {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    }
}

/// Creates an inode of any kind except directory and symbolic link (mknod(2)), for which it fails
/// with EINVAL. Devices require CAP_MKNOD. The umask of the process applies to `mode`. `rdev` is
/// encoded as in [`Stat::rdev`] and used for devices only.
pub fn mknod_at(dir: impl AsFd, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> SysResult<()> {
    let name = component(name)?;
    if matches!(kind, Kind::Dir | Kind::Symlink) {
        return Err(Errno::EINVAL);
    }
    let rdev = if matches!(kind, Kind::CharDev | Kind::BlockDev) {
        rdev
    } else {
        0
    };
    let file_type = FileType::from_raw_mode(mode_bits(kind, 0));
    retry(CallKind::Make, || {
        rustix::fs::mknodat(&dir, name, file_type, permissions(mode), rdev)
    })
}

/// Creates the name `name` in `dir` for the inode that a descriptor names; a symbolic link is not
/// followed. ENOENT if its last name has been removed (except for an `O_TMPFILE` file).
pub fn link_fd(fd: impl AsFd, dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    let name = component(name)?;
    match retry(CallKind::Link, || {
        rustix::fs::linkat(&fd, c"", &dir, name, AtFlags::EMPTY_PATH)
    }) {
        // linkat(2): AT_EMPTY_PATH without CAP_DAC_READ_SEARCH fails with ENOENT; /proc avoids it.
        Err(Errno::ENOENT) => {
            let path = proc_path(&fd);
            retry(CallKind::Link, || {
                rustix::fs::linkat(CWD, path.as_str(), &dir, name, AtFlags::SYMLINK_FOLLOW)
            })
        }
        result => result,
    }
}

/// Sets the permission bits, including set-id and sticky bits; EOPNOTSUPP for a symbolic link.
pub fn chmod_fd(fd: impl AsFd, mode: u32) -> SysResult<()> {
    // Before 6.6 some filesystems change the mode of a link, with or without reporting an error.
    if stat_fd(&fd)?.kind == Kind::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    let path = proc_path(&fd);
    let set = || {
        retry(CallKind::SetAttributes, || {
            rustix::fs::chmodat(CWD, path.as_str(), permissions(mode), AtFlags::empty())
        })
    };
    // For a group that this process is not in, the kernel silently drops the set-group-ID bit
    // without CAP_FSETID.
    if mode & 0o2000 != 0 {
        act_for(None, set)
    } else {
        set()
    }
}

/// Sets owner and group, each if present, also of a symbolic link (fchownat(2), `AT_EMPTY_PATH`).
///
/// The kernel clears set-id bits and `security.capability` of a file. EINVAL for the id 2^32-1,
/// which means "no change" to the kernel.
pub fn chown_fd(fd: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> SysResult<()> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::EINVAL);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    retry(CallKind::SetAttributes, || {
        rustix::fs::chownat(
            &fd,
            c"",
            uid,
            gid,
            AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
        )
    })
}

/// Sets access and modification time, also of a symbolic link (utimensat(2), `AT_EMPTY_PATH` since
/// 5.8). EINVAL unless nanoseconds are below 1,000,000,000.
pub fn utimens_fd(fd: impl AsFd, atime: SetTime, mtime: SetTime) -> SysResult<()> {
    let times = Timestamps {
        last_access: timespec(atime)?,
        last_modification: timespec(mtime)?,
    };
    match retry(CallKind::SetAttributes, || {
        rustix::fs::utimensat(
            &fd,
            c"",
            &times,
            AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
        )
    }) {
        Err(Errno::EINVAL) => {
            let path = proc_path(&fd);
            retry(CallKind::SetAttributes, || {
                rustix::fs::utimensat(CWD, path.as_str(), &times, AtFlags::empty())
            })
        }
        result => result,
    }
}

/// Converts `time` for utimensat(2). Its special values are nanoseconds out of range, so real ones
/// are checked.
pub(super) fn timespec(time: SetTime) -> SysResult<Timespec> {
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
            tv_nsec: time.nsec as Nsecs,
        },
        SetTime::At(_) => return Err(Errno::EINVAL),
    })
}

/// Returns size and free space of the filesystem of a descriptor, which may be an `O_PATH`
/// descriptor (fstatfs(2)).
pub fn statfs_fd(fd: impl AsFd) -> SysResult<FsInfo> {
    let info = retry(CallKind::Stat, || rustix::fs::fstatfs(&fd))?;
    let bsize = info.f_bsize as u32;
    Ok(FsInfo {
        blocks: info.f_blocks as u64,
        bfree: info.f_bfree as u64,
        bavail: info.f_bavail as u64,
        files: info.f_files as u64,
        ffree: info.f_ffree as u64,
        bsize,
        frsize: if info.f_frsize == 0 {
            bsize
        } else {
            info.f_frsize as u32
        },
        namelen: info.f_namelen as u32,
        // Magic numbers have 32 bits; the field is a signed word.
        fs_type: u64::from(info.f_type as u32),
    })
}

/// Returns the usual name of a filesystem by its magic number, or `unknown` if this program does
/// not distinguish it. ext2 and ext3 are `ext4`.
pub fn fs_name(magic: u64) -> &'static str {
    FS_NAMES
        .iter()
        .find(|(number, _)| *number == magic)
        .map_or("unknown", |(_, name)| name)
}
