//! Conversions between the types of `fuser` and the engine.
//!
//! The constants are the kernel's: a FUSE client sends the numbers of its system's `<fcntl.h>`, and
//! they are part of the protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, RenameFlags, Request,
    RequestId, TimeOrNow,
};

use super::eio_log;
use ckptfs_core::engine::request::{
    Caller, Entry, Fh, Listed, NewNode, NodeId, Opened, RenameMode, Seek, SetAttr, SetTime,
    XattrMode,
};
use ckptfs_sys::{Errno, Kind, Stat, Time};

/// Set in the ID of a request resent after the death of a predecessor (`FUSE_UNIQUE_RESEND`).
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// Maximum length of a listed name: longer ones break the kernel's readdir cache.
pub const NAME_BYTES_MAX: usize = 255;

/// Set in the node ID of a readdirplus entry without a lookup ([`unlooked_attr`]); no node of the
/// engine has it.
const UNLOOKED: u64 = 1 << 63;

const PERMISSION_BITS: u32 = 0o7777;
const S_IFMT: u32 = 0o170_000;

#[cfg(target_os = "linux")]
mod abi {
    pub const XATTR_CREATE: i32 = 1;
    pub const XATTR_REPLACE: i32 = 2;
    pub const SEEK_DATA: i32 = 3;
    pub const SEEK_HOLE: i32 = 4;
}
#[cfg(not(target_os = "linux"))]
mod abi {
    pub const XATTR_CREATE: i32 = 2;
    pub const XATTR_REPLACE: i32 = 4;
    pub const SEEK_DATA: i32 = 4;
    pub const SEEK_HOLE: i32 = 3;
}

/// Returns the node of a request, and records it for the log.
pub fn node(ino: INodeNo) -> NodeId {
    let node = NodeId(ino.0);
    eio_log::about(node);
    node
}

/// Returns the node of a FORGET, unless the entry had no lookup: then no count is to be lowered.
pub fn forgotten(ino: INodeNo) -> Option<NodeId> {
    (ino.0 & UNLOOKED == 0).then_some(NodeId(ino.0))
}

pub fn handle(fh: FileHandle) -> Fh {
    Fh(fh.0)
}

pub fn caller(request: &Request) -> Caller {
    let RequestId(unique) = request.unique();
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
        request: unique & !UNIQUE_RESEND,
        again: unique & UNIQUE_RESEND != 0,
    }
}

pub fn errno(errno: Errno) -> fuser::Errno {
    eio_log::note(errno);
    fuser::Errno::from_i32(errno.0)
}

pub fn generation(entry: &Entry) -> Generation {
    Generation(entry.generation)
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDev => FileType::CharDevice,
        Kind::BlockDev => FileType::BlockDevice,
    }
}

/// Exact for every time that a stat record can hold, including times before 1970.
fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let second = if time.sec < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    second
        .and_then(|second| second.checked_add(Duration::from_nanos(time.nsec.into())))
        .unwrap_or(UNIX_EPOCH)
}

/// Reverses the decoding of the times of a setattr in `fuser` 0.18.0. Before 1970 it subtracts the
/// nanoseconds instead of adding them (`system_time_from_time` in its `time.rs`, marked TODO
/// there), so both numbers are recovered as the kernel sent them.
fn time(decoded: SystemTime) -> Time {
    match decoded.duration_since(UNIX_EPOCH) {
        Ok(after) => Time {
            sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nsec: after.subsec_nanos(),
        },
        Err(error) => {
            let before = error.duration();
            Time {
                sec: 0_i64
                    .checked_sub_unsigned(before.as_secs())
                    .unwrap_or(i64::MIN),
                nsec: before.subsec_nanos(),
            }
        }
    }
}

fn new_time(time_or_now: TimeOrNow) -> SetTime {
    match time_or_now {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(decoded) => SetTime::At(time(decoded)),
    }
}

pub fn set_attr(
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
) -> SetAttr {
    let mode = mode.map(|mode| mode & PERMISSION_BITS);
    SetAttr {
        mode,
        uid,
        gid,
        size,
        atime: atime.map(new_time),
        mtime: mtime.map(new_time),
    }
}

/// `rdev` needs no conversion: the kernel's `new_encode_dev` equals userspace's encoding for all of
/// its device numbers.
pub fn file_attr(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(stat.atime),
        mtime: system_time(stat.mtime),
        ctime: system_time(stat.ctime),
        crtime: system_time(stat.btime.unwrap_or(stat.ctime)),
        kind: file_type(stat.kind),
        perm: (stat.mode & PERMISSION_BITS) as u16,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev as u32,
        blksize: stat.blksize,
        flags: 0,
    }
}

fn bare_attr(ino: u64, kind: Kind) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The attributes of a negative entry: node 0 means that the name does not exist, and the entry's
/// timeout limits caching of that.
pub fn absent_attr() -> FileAttr {
    bare_attr(0, Kind::File)
}

/// The attributes of `.` and `..` in readdirplus: the kernel uses number and kind, and counts no
/// lookup.
pub fn dot_attr(listed: &Listed) -> FileAttr {
    bare_attr(listed.node.0, listed.kind)
}

/// The attributes of a readdirplus entry without valid attributes. No file can have their size, so
/// the kernel lists name and number, rejects the lookup (`fuse_invalid_attr` in fs/fuse/dir.c) and
/// sends a FORGET for it.
///
/// The protocol provides node ID 0 for this, but `fuser` sends one number as node ID and as
/// `d_ino`, and a C library may skip names with number 0.
pub fn refused_attr(entry: &Entry) -> FileAttr {
    refused(entry.node.0, entry.stat.kind)
}

/// The attributes of a name whose lookup failed: as [`refused_attr`], with a node ID from a
/// separate range, whose FORGET [`forgotten`] drops. `d_ino` differs from the number in stat(2).
pub fn unlooked_attr(listed: &Listed) -> FileAttr {
    refused(listed.node.0 | UNLOOKED, listed.kind)
}

fn refused(ino: u64, kind: Kind) -> FileAttr {
    FileAttr {
        size: u64::MAX,
        ..bare_attr(ino, kind)
    }
}

pub fn open_flags(opened: &Opened) -> FopenFlags {
    let mut flags = passthrough_flags(opened);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags
}

/// The flags permitted with `FOPEN_PASSTHROUGH`; with others the kernel fails the open
/// (`FOPEN_PASSTHROUGH_MASK` in fs/fuse/iomode.c).
pub fn passthrough_flags(opened: &Opened) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct_io);
    flags.set(FopenFlags::FOPEN_NOFLUSH, opened.no_flush);
    flags
}

/// Every listing may be cached: changes come through the kernel, or the daemon notifies it.
pub fn dir_flags() -> FopenFlags {
    FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
}

/// Decodes the mode of mknod(2); `None` for a kind that it cannot create.
pub fn new_node(mode: u32, umask: u32, rdev: u32) -> Option<NewNode> {
    let kind = match mode & S_IFMT {
        0 | 0o100_000 => Kind::File,
        0o010_000 => Kind::Fifo,
        0o140_000 => Kind::Socket,
        0o020_000 => Kind::CharDev,
        0o060_000 => Kind::BlockDev,
        _ => return None,
    };
    Some(NewNode {
        kind,
        mode: mode & PERMISSION_BITS,
        umask,
        rdev: rdev.into(),
    })
}

pub fn new_dir(mode: u32, umask: u32) -> NewNode {
    NewNode {
        kind: Kind::Dir,
        mode: mode & PERMISSION_BITS,
        umask,
        rdev: 0,
    }
}

pub fn create_mode(mode: u32) -> u32 {
    mode & PERMISSION_BITS
}

/// Returns `None` for unknown flags.
pub fn rename_how(flags: RenameFlags) -> Option<RenameMode> {
    match flags.bits() {
        0 => Some(RenameMode::Replace),
        1 => Some(RenameMode::NoReplace),
        2 => Some(RenameMode::Exchange),
        4 => Some(RenameMode::Whiteout),
        5 => Some(RenameMode::NoReplaceWhiteout),
        _ => None,
    }
}

/// `position` is macOS's offset into a resource fork; only 0 is supported.
pub fn xattr_how(flags: i32, position: u32) -> Option<XattrMode> {
    match flags {
        _ if position != 0 => None,
        0 => Some(XattrMode::Any),
        abi::XATTR_CREATE => Some(XattrMode::Create),
        abi::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

/// The kernel handles the other values of `whence` itself.
pub fn seek(whence: i32) -> Option<Seek> {
    match whence {
        abi::SEEK_DATA => Some(Seek::Data),
        abi::SEEK_HOLE => Some(Seek::Hole),
        _ => None,
    }
}

/// Encodes the names for listxattr(2), each terminated by a NUL.
pub fn joined(names: &[Vec<u8>]) -> Vec<u8> {
    names
        .iter()
        .flat_map(|name| name.iter().copied().chain([0]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time as decoded by `fuser` 0.18.0.
    fn as_fuser_decodes(sec: i64, nsec: u32) -> SystemTime {
        if sec >= 0 {
            UNIX_EPOCH + Duration::new(sec.unsigned_abs(), nsec)
        } else {
            UNIX_EPOCH - Duration::new(sec.unsigned_abs(), nsec)
        }
    }

    #[test]
    fn times_of_a_setattr_come_back_as_the_kernel_sent_them() {
        for (sec, nsec) in [
            (0, 0),
            (0, 1),
            (1, 999_999_999),
            (-1, 0),
            (-1, 999_999_999),
            (-2, 800_000_000),
            (i64::MAX, 0),
            (i64::MIN, 0),
        ] {
            assert_eq!(time(as_fuser_decodes(sec, nsec)), Time { sec, nsec });
        }
    }

    #[test]
    fn times_of_a_stat_record_are_exact() {
        assert_eq!(
            system_time(Time {
                sec: -2,
                nsec: 800_000_000
            }),
            UNIX_EPOCH - Duration::new(1, 200_000_000)
        );
        assert_eq!(
            system_time(Time { sec: 3, nsec: 5 }),
            UNIX_EPOCH + Duration::new(3, 5)
        );
        for sec in [i64::MIN, i64::MAX] {
            assert_ne!(
                system_time(Time {
                    sec,
                    nsec: 999_999_999
                }),
                UNIX_EPOCH,
                "no overflow at {sec}"
            );
        }
    }

    #[test]
    fn mknod_makes_files_and_special_files_only() {
        assert_eq!(
            new_node(0o100_644, 0, 0).map(|new| new.kind),
            Some(Kind::File)
        );
        assert_eq!(new_node(0o644, 0, 0).map(|new| new.kind), Some(Kind::File));
        assert_eq!(
            new_node(0o020_600, 0, 0x103).map(|new| (new.kind, new.rdev)),
            Some((Kind::CharDev, 0x103))
        );
        assert!(new_node(0o040_755, 0, 0).is_none());
    }
}
