//! Extended attributes (xattr(7)) of all kinds of inodes, by all kinds of descriptors.

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;

use super::super::args::XattrMode;
use super::super::fault::CallKind;
use super::super::name::{OWN_XATTR_PREFIX, XATTR_LEN_MAX, component, retry};
use super::super::types::{Errno, SysResult, Xattrs};
use super::open::proc_path;

/// Size of the first buffer in bytes: nearly all values and lists fit.
const FIRST_LEN: usize = 512;

/// Returns the value of attribute `name`; [`Errno::NO_XATTR`] if it does not exist.
pub fn getxattr(fd: impl AsFd, name: &[u8]) -> SysResult<Vec<u8>> {
    let path = proc_path(&fd);
    read_growing(|buffer| rustix::fs::getxattr(path.as_str(), name, buffer))
}

/// Sets attribute `name`. EPERM for `user.` attributes on inodes other than files and directories,
/// and for `trusted.` ones without CAP_SYS_ADMIN.
pub fn setxattr(fd: impl AsFd, name: &[u8], value: &[u8], mode: XattrMode) -> SysResult<()> {
    let flags = match mode {
        XattrMode::Any => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    let path = proc_path(&fd);
    retry(CallKind::SetXattr, || {
        rustix::fs::setxattr(path.as_str(), name, value, flags)
    })
}

/// Removes attribute `name`; [`Errno::NO_XATTR`] if it does not exist.
pub fn removexattr(fd: impl AsFd, name: &[u8]) -> SysResult<()> {
    let path = proc_path(&fd);
    retry(CallKind::SetXattr, || {
        rustix::fs::removexattr(path.as_str(), name)
    })
}

/// Sets attribute `name` of an open file (not an `O_PATH` descriptor), which is faster.
pub fn set_file_xattr(file: &std::fs::File, name: &[u8], value: &[u8]) -> SysResult<()> {
    retry(CallKind::SetXattr, || {
        rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
    })
}

/// Removes attribute `name` of an open file, as [`set_file_xattr`].
pub fn remove_file_xattr(file: &std::fs::File, name: &[u8]) -> SysResult<()> {
    retry(CallKind::SetXattr, || rustix::fs::fremovexattr(file, name))
}

/// Returns the names of the attributes that this process may see (`trusted.` ones require
/// CAP_SYS_ADMIN), in the filesystem's order.
pub fn listxattr(fd: impl AsFd) -> SysResult<Vec<Vec<u8>>> {
    let path = proc_path(&fd);
    read_growing(|buffer| rustix::fs::listxattr(path.as_str(), buffer))
        .map(|list| split_list(&list))
}

fn split_list(list: &[u8]) -> Vec<Vec<u8>> {
    list.split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// As [`all_xattrs`], for a name in a directory, without opening the inode or following a link.
pub fn all_xattrs_at(dir: impl AsFd, name: &[u8]) -> SysResult<Xattrs> {
    let name = component(name)?;
    let path = [proc_path(&dir).as_bytes(), b"/", name].concat();
    collect(
        || {
            read_growing(|buffer| rustix::fs::llistxattr(path.as_slice(), buffer))
                .map(|list| split_list(&list))
        },
        |name| read_growing(|buffer| rustix::fs::lgetxattr(path.as_slice(), name, buffer)),
    )
}

/// Returns all attributes with their values, sorted by name. The list is empty on a filesystem
/// without extended attributes. An attribute removed during the call is skipped. An unreadable one
/// is an error, except our own.
pub fn all_xattrs(fd: impl AsFd) -> SysResult<Xattrs> {
    collect(|| listxattr(&fd), |name| getxattr(&fd, name))
}

fn collect(
    list: impl FnOnce() -> SysResult<Vec<Vec<u8>>>,
    get: impl Fn(&[u8]) -> SysResult<Vec<u8>>,
) -> SysResult<Xattrs> {
    let names = match list() {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        names => names?,
    };
    let mut xattrs = Vec::with_capacity(names.len());
    for name in names {
        match get(&name) {
            Ok(value) => xattrs.push((name, value)),
            Err(Errno::NO_XATTR | Errno::EOPNOTSUPP) => {}
            Err(Errno::EACCES) if name.starts_with(OWN_XATTR_PREFIX) => {}
            Err(errno) => return Err(errno),
        }
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}

/// Reads into a small buffer, and after ERANGE into one of the maximum length.
fn read_growing(
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> SysResult<Vec<u8>> {
    let mut buffer = vec![0; FIRST_LEN];
    let mut result = retry(CallKind::GetXattr, || read(&mut buffer));
    if result == Err(Errno::ERANGE) {
        buffer.resize(XATTR_LEN_MAX, 0);
        result = retry(CallKind::GetXattr, || read(&mut buffer));
    }
    buffer.truncate(result?);
    buffer.shrink_to_fit();
    Ok(buffer)
}
