//! Conversions between the types of this program and the kernel's (names, modes, devices), and the
//! retry after a signal.

use rustix::fs::{FileType, Mode};

use super::fault::{self, CallKind};
use super::last_eio;
use super::types::{Errno, Kind, SysResult};

/// Maximum length of a name in bytes (`NAME_MAX`).
pub const NAME_LEN_MAX: usize = 255;

/// Maximum length of the value and of the list of extended attributes on Linux, in bytes
/// (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
pub const XATTR_LEN_MAX: usize = 65_536;

/// Prefix of the names of our extended attributes. They are unreadable on inodes that the caller
/// may not read.
pub const OWN_XATTR_PREFIX: &[u8] = b"user.ckptfs.";
/// The same for inodes without user attributes: symbolic links, devices, FIFOs.
const OWN_TRUSTED_PREFIX: &[u8] = b"trusted.ckptfs.";

/// Reports whether an extended attribute is reserved for ckptfs and not part of a tree.
pub fn is_own_xattr(name: &[u8]) -> bool {
    name.starts_with(OWN_XATTR_PREFIX) || name.starts_with(OWN_TRUSTED_PREFIX)
}

/// Checks that `name` is one component that cannot lead out of its directory.
///
/// Errors: ENOENT if it is empty, ENAMETOOLONG beyond [`NAME_LEN_MAX`], EINVAL if it contains NUL
/// or `/` or is `..`.
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

/// Calls until no signal interrupts (EINTR). Tests can make calls of the kind `what` fail.
pub(super) fn retry<T>(
    what: CallKind,
    call: impl FnMut() -> rustix::io::Result<T>,
) -> SysResult<T> {
    let called = || rustix::io::retry_on_intr(call).map_err(|errno| one_enotsup(errno.into()));
    let done = fault::check(what).and_then(|()| called());
    done.inspect_err(|errno| last_eio::note(what, *errno))
}

/// Returns the `errno` of the call that just failed.
pub(super) fn last_errno() -> Errno {
    one_enotsup(std::io::Error::last_os_error().into())
}

/// Maps both numbers for "not supported" to one: on macOS ENOTSUP differs from EOPNOTSUPP, and the
/// kernel returns both.
fn one_enotsup(errno: Errno) -> Errno {
    if errno.0 == libc::ENOTSUP {
        Errno::EOPNOTSUPP
    } else {
        errno
    }
}

/// Converts the return value of a libc call to a result: -1 means `errno`.
pub(super) fn check(returned: libc::c_int) -> SysResult<libc::c_int> {
    if returned == -1 {
        Err(last_errno())
    } else {
        Ok(returned)
    }
}

/// As [`check`], retrying after a signal.
pub(super) fn check_retry(mut call: impl FnMut() -> libc::c_int) -> SysResult<libc::c_int> {
    loop {
        match check(call()) {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

/// The permission bits of `mode`, including set-id and sticky bits.
pub(super) fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) as rustix::fs::RawMode)
}

/// Converts the kernel's file type; `None` if it is unknown.
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

/// Returns the whole `st_mode` of inode(7): the `S_IFMT` bits of the kind, which all systems share,
/// and the permission bits of `mode`.
pub fn mode_bits(kind: Kind, mode: u32) -> u32 {
    let kind = match kind {
        Kind::Fifo => 0o010_000,
        Kind::CharDev => 0o020_000,
        Kind::Dir => 0o040_000,
        Kind::BlockDev => 0o060_000,
        Kind::File => 0o100_000,
        Kind::Symlink => 0o120_000,
        Kind::Socket => 0o140_000,
    };
    kind | (mode & 0o7777)
}

/// Encodes a device number as in stat(2) (makedev(3)).
pub fn make_device(major: u32, minor: u32) -> u64 {
    #[cfg(target_os = "linux")]
    return libc::makedev(major, minor);
    #[cfg(not(target_os = "linux"))]
    return u64::from(libc::makedev(major as i32, minor as i32) as u32);
}

/// Returns the major part of a device number (major(3)).
pub fn device_major(device: u64) -> u32 {
    libc::major(device as libc::dev_t) as u32
}

/// Returns the minor part of a device number (minor(3)).
pub fn device_minor(device: u64) -> u32 {
    libc::minor(device as libc::dev_t) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_survives_both_ways() {
        for (major, minor) in [(0, 0), (8, 1), (253, 300), (4095, 1_048_575)] {
            let device = make_device(major, minor);
            if cfg!(target_os = "linux") {
                assert_eq!((device_major(device), device_minor(device)), (major, minor));
            }
        }
        assert_eq!(mode_bits(Kind::Symlink, 0o777), 0o120_777);
    }
}
