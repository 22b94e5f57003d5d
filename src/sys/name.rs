//! Small conversions between our types and the kernel's: names, modes, devices, and the repeat after a signal.

use rustix::fs::{FileType, Mode};

use super::types::{Errno, Kind, SysResult};

/// Longest name of one component, in bytes (`NAME_MAX`).
pub const NAME_LEN_MAX: usize = 255;

/// Checks that `name` is one component that cannot lead out of its directory.
///
/// Errors: ENOENT when empty, ENAMETOOLONG beyond [`NAME_LEN_MAX`], EINVAL with a NUL or `/` in it or for `..`.
pub(super) fn component(name: &[u8]) -> SysResult<&[u8]> {
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    if name.len() > NAME_LEN_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name == b".." || name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(Errno::EINVAL);
    }
    Ok(name)
}

/// Calls until no signal interrupts (EINTR).
pub(super) fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> SysResult<T> {
    rustix::io::retry_on_intr(call).map_err(Errno::from)
}

/// `errno` of the call that just failed.
pub(super) fn last_errno() -> Errno {
    Errno::from(std::io::Error::last_os_error())
}

/// Turns what a libc call returned into a result: -1 means `errno`.
pub(super) fn check(returned: libc::c_int) -> SysResult<libc::c_int> {
    if returned == -1 { Err(last_errno()) } else { Ok(returned) }
}

/// As [`check`], calling again after a signal.
pub(super) fn check_retry(mut call: impl FnMut() -> libc::c_int) -> SysResult<libc::c_int> {
    loop {
        match check(call()) {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

/// The permission bits of `mode`, set-id and sticky bits included.
pub(super) fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) as rustix::fs::RawMode)
}

/// The kind that the kernel's file type stands for; `None` when it is unknown.
pub(super) fn kind_of(file_type: FileType) -> Option<Kind> {
    match file_type {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Dir),
        FileType::Symlink => Some(Kind::Symlink),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
        FileType::CharacterDevice => Some(Kind::CharDev),
        FileType::BlockDevice => Some(Kind::BlockDev),
        _ => None,
    }
}

/// The kernel's file type of a kind.
pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDev => FileType::CharacterDevice,
        Kind::BlockDev => FileType::BlockDevice,
    }
}

/// The whole `st_mode` of inode(7): the kind's `S_IFMT` bits and the permission bits of `mode`.
pub fn mode_bits(kind: Kind, mode: u32) -> u32 {
    (file_type(kind).as_raw_mode() as u32) | (mode & 0o7777)
}

/// A device number as stat(2) encodes it (makedev(3)).
pub fn make_device(major: u32, minor: u32) -> u64 {
    u64::from(libc::makedev(major as _, minor as _) as DeviceBits)
}

/// The major part of a device number (major(3)).
pub fn device_major(device: u64) -> u32 {
    libc::major(device as libc::dev_t) as u32
}

/// The minor part of a device number (minor(3)).
pub fn device_minor(device: u64) -> u32 {
    libc::minor(device as libc::dev_t) as u32
}

/// `dev_t` without its sign.
#[cfg(target_os = "linux")]
type DeviceBits = u64;
/// `dev_t` without its sign.
#[cfg(not(target_os = "linux"))]
type DeviceBits = u32;
