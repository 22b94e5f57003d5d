//! Extended attributes of one inode as a set: size limit, and replacement.

use std::os::fd::OwnedFd;

use ckptfs_store::journal::codec::PAYLOAD_MAX;
use ckptfs_sys::{self as sys, Errno, SysResult, XattrMode, Xattrs};

/// Maximum size of names and values of the extended attributes of an inode. They are recorded
/// together, with its place, in one journal payload.
const XATTRS_BYTES_MAX: usize = PAYLOAD_MAX / 2;

/// Rejects an extended attribute that would make the set too large to record or to list: every
/// later change of the inode would fail.
pub(super) fn check_room(fd: &OwnedFd, name: &[u8], value: &[u8]) -> SysResult<()> {
    let names = match sys::listxattr(fd) {
        Err(Errno::EOPNOTSUPP) => return Ok(()),
        Err(Errno::E2BIG) => return Err(Errno::ENOSPC),
        names => names?,
    };
    let others = || names.iter().filter(|known| *known != name);
    let list = others().map(|known| known.len() + 1).sum::<usize>() + name.len() + 1;
    if list > sys::XATTR_LEN_MAX {
        return Err(Errno::ENOSPC);
    }
    if (names.len() + 1) * sys::XATTR_LEN_MAX + list <= XATTRS_BYTES_MAX {
        return Ok(());
    }
    let mut bytes = list + value.len();
    for known in others() {
        bytes += sys::getxattr(fd, known)?.len();
    }
    if bytes > XATTRS_BYTES_MAX {
        Err(Errno::ENOSPC)
    } else {
        Ok(())
    }
}

/// Changes the extended attributes from `now` to exactly `wanted`.
pub(super) fn set_xattrs(fd: &OwnedFd, now: &Xattrs, wanted: &Xattrs) -> SysResult<()> {
    for (name, _) in now
        .iter()
        .filter(|(name, _)| !wanted.iter().any(|(other, _)| other == name))
    {
        match sys::removexattr(fd, name) {
            Ok(()) | Err(Errno::NO_XATTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    for (name, value) in wanted.iter().filter(|pair| !now.contains(pair)) {
        sys::setxattr(fd, name, value, XattrMode::Any)?;
    }
    Ok(())
}
