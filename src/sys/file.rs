//! Attributes of open files (not of `O_PATH` descriptors), by the calls that need no path: faster
//! than those for all kinds of descriptors.

use std::fs::File;

use rustix::fs::{Gid, Timespec, Timestamps, Uid};

use super::fault::CallKind;
use super::name::{OWN_XATTR_PREFIX, permissions, retry};
use super::types::{Errno, SysResult, Time, Xattrs};

/// Size of the first buffer in bytes: nearly all values and lists fit.
const FIRST_LEN: usize = 512;
/// Maximum length of a value and of a list in the kernel (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const LEN_MAX: usize = 65_536;

/// Returns all extended attributes with their values, sorted by name. The list is empty on a
/// filesystem without extended attributes.
///
/// # Errors
/// Those of fgetxattr(2). An attribute removed during the call is skipped.
pub fn file_xattrs(file: &File) -> SysResult<Xattrs> {
    let list = match read_growing(|buffer| rustix::fs::flistxattr(file, buffer)) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        list => list?,
    };
    let mut xattrs = Vec::new();
    for name in list
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        match read_growing(|buffer| rustix::fs::fgetxattr(file, name, buffer)) {
            Ok(value) => xattrs.push((name.to_vec(), value)),
            Err(Errno::NO_XATTR | Errno::EOPNOTSUPP) => {}
            Err(Errno::EACCES) if name.starts_with(OWN_XATTR_PREFIX) => {}
            Err(errno) => return Err(errno),
        }
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}

/// Reads into a small buffer, and after ERANGE into one of the maximum length. An empty result
/// allocates nothing.
fn read_growing(
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> SysResult<Vec<u8>> {
    let mut small = [0; FIRST_LEN];
    match retry(CallKind::GetXattr, || read(&mut small)) {
        Err(Errno::ERANGE) => {
            let mut large = vec![0; LEN_MAX];
            let length = retry(CallKind::GetXattr, || read(&mut large))?;
            large.truncate(length);
            Ok(large)
        }
        length => Ok(small.get(..length?).unwrap_or_default().to_vec()),
    }
}

/// Sets the permission bits, including set-id and sticky bits (fchmod(2)).
pub fn set_file_mode(file: &File, mode: u32) -> SysResult<()> {
    retry(CallKind::SetAttributes, || {
        rustix::fs::fchmod(file, permissions(mode))
    })
}

/// Sets owner and group (fchown(2)), which clears set-id bits. Fails with EINVAL for the id 2^32-1,
/// which means "no change" to the kernel.
pub fn set_file_owner(file: &File, uid: u32, gid: u32) -> SysResult<()> {
    if uid == u32::MAX || gid == u32::MAX {
        return Err(Errno::EINVAL);
    }
    retry(CallKind::SetAttributes, || {
        rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
    })
}

/// Sets access and modification time (futimens(3)). Fails with EINVAL unless nanoseconds are below
/// 1,000,000,000.
pub fn set_file_times(file: &File, atime: Time, mtime: Time) -> SysResult<()> {
    if atime.nsec >= 1_000_000_000 || mtime.nsec >= 1_000_000_000 {
        return Err(Errno::EINVAL);
    }
    let timespec = |time: Time| Timespec {
        tv_sec: time.sec,
        tv_nsec: time.nsec.into(),
    };
    let times = Timestamps {
        last_access: timespec(atime),
        last_modification: timespec(mtime),
    };
    retry(CallKind::SetAttributes, || {
        rustix::fs::futimens(file, &times)
    })
}
