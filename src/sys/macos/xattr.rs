//! Extended attributes (getxattr(2)) of all kinds of inodes.

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;

use super::super::args::XattrMode;
use super::super::fault::CallKind;
use super::super::name::{OWN_XATTR_PREFIX, retry};
use super::super::types::{Errno, SysResult, Xattrs};

/// Size of the first buffer in bytes: nearly all values and lists fit.
const FIRST_LEN: usize = 512;

/// Maximum number of attempts while the value grows.
const TRIES_MAX: u32 = 16;

/// Returns the value of attribute `name`; [`Errno::NO_XATTR`] if it does not exist.
pub fn getxattr(fd: impl AsFd, name: &[u8]) -> SysResult<Vec<u8>> {
    read_growing(|buffer| rustix::fs::fgetxattr(&fd, name, buffer))
}

/// Sets attribute `name`.
pub fn setxattr(fd: impl AsFd, name: &[u8], value: &[u8], mode: XattrMode) -> SysResult<()> {
    let flags = match mode {
        XattrMode::Any => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    retry(CallKind::SetXattr, || {
        rustix::fs::fsetxattr(&fd, name, value, flags)
    })
}

/// Removes attribute `name`; [`Errno::NO_XATTR`] if it does not exist.
pub fn removexattr(fd: impl AsFd, name: &[u8]) -> SysResult<()> {
    retry(CallKind::SetXattr, || rustix::fs::fremovexattr(&fd, name))
}

/// Sets attribute `name` of an open file.
pub fn set_file_xattr(file: &std::fs::File, name: &[u8], value: &[u8]) -> SysResult<()> {
    setxattr(file, name, value, XattrMode::Any)
}

/// Removes attribute `name` of an open file.
pub fn remove_file_xattr(file: &std::fs::File, name: &[u8]) -> SysResult<()> {
    removexattr(file, name)
}

/// Returns the names of the attributes, in the filesystem's order.
pub fn listxattr(fd: impl AsFd) -> SysResult<Vec<Vec<u8>>> {
    let list = read_growing(|buffer| rustix::fs::flistxattr(&fd, buffer))?;
    Ok(list
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect())
}

/// As [`all_xattrs`], for a name in a directory, without following a link.
pub fn all_xattrs_at(dir: impl AsFd, name: &[u8]) -> SysResult<Xattrs> {
    all_xattrs(super::open_path_at(dir, name)?)
}

/// Returns all attributes with their values, sorted by name. The list is empty on a filesystem
/// without extended attributes. An attribute removed during the call is skipped. An unreadable one
/// is an error, except our own.
pub fn all_xattrs(fd: impl AsFd) -> SysResult<Xattrs> {
    let names = match listxattr(&fd) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        names => names?,
    };
    let mut xattrs = Vec::with_capacity(names.len());
    for name in names {
        match getxattr(&fd, &name) {
            Ok(value) => xattrs.push((name, value)),
            Err(Errno::NO_XATTR) => {}
            Err(Errno::EACCES) if name.starts_with(OWN_XATTR_PREFIX) => {}
            Err(errno) => return Err(errno),
        }
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}

/// Reads into a small buffer, and after ERANGE into one of the length that the kernel reports.
fn read_growing(
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> SysResult<Vec<u8>> {
    let mut buffer = vec![0; FIRST_LEN];
    for _ in 0..TRIES_MAX {
        match retry(CallKind::GetXattr, || read(&mut buffer)) {
            Ok(len) => {
                buffer.truncate(len);
                buffer.shrink_to_fit();
                return Ok(buffer);
            }
            Err(Errno::ERANGE) => {}
            Err(errno) => return Err(errno),
        }
        let needed = retry(CallKind::GetXattr, || read(&mut []))?;
        buffer.resize(needed.max(FIRST_LEN), 0);
    }
    Err(Errno::ERANGE)
}
