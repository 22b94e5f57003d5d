//! Extended attributes (xattr(7)) of inodes of every kind, by descriptors of every kind.

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;

use super::super::args::XattrMode;
use super::super::fault::Call;
use super::super::name::{OWN_XATTR_PREFIX, XATTR_LEN_MAX, component, retry};
use super::super::types::{Errno, SysResult, Xattrs};
use super::open::proc_path;

/// Bytes tried first: nearly all values and lists fit.
const FIRST_LEN: usize = 512;

/// The value of attribute `name`; [`Errno::NO_XATTR`] when there is none.
pub fn getxattr(fd: impl AsFd, name: &[u8]) -> SysResult<Vec<u8>> {
    let path = proc_path(&fd);
    read_growing(|buffer| rustix::fs::getxattr(path.as_str(), name, buffer))
}

/// Sets attribute `name`. EPERM for `user.` ones on anything but files and directories, and for
/// `trusted.` without CAP_SYS_ADMIN.
pub fn setxattr(fd: impl AsFd, name: &[u8], value: &[u8], mode: XattrMode) -> SysResult<()> {
    let flags = match mode {
        XattrMode::Any => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    let path = proc_path(&fd);
    retry(Call::SetXattr, || {
        rustix::fs::setxattr(path.as_str(), name, value, flags)
    })
}

/// Removes attribute `name`; [`Errno::NO_XATTR`] when there is none.
pub fn removexattr(fd: impl AsFd, name: &[u8]) -> SysResult<()> {
    let path = proc_path(&fd);
    retry(Call::SetXattr, || {
        rustix::fs::removexattr(path.as_str(), name)
    })
}

/// Sets attribute `name` of a file that is open (no `O_PATH` descriptor), which is quicker.
pub fn set_file_xattr(file: &std::fs::File, name: &[u8], value: &[u8]) -> SysResult<()> {
    retry(Call::SetXattr, || {
        rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
    })
}

/// Removes attribute `name` of a file that is open, as [`set_file_xattr`].
pub fn remove_file_xattr(file: &std::fs::File, name: &[u8]) -> SysResult<()> {
    retry(Call::SetXattr, || rustix::fs::fremovexattr(file, name))
}

/// The names of the attributes that this process may see (`trusted.` ones need CAP_SYS_ADMIN), in
/// the filesystem's order.
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

/// As [`all_xattrs`], of what a name in a directory leads to, and no further: without opening it.
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

/// All attributes with their values, sorted by name; none where the filesystem has no attributes.
/// One that is removed meanwhile is left out; one that may not be read is an error, unless it is one of ours.
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

/// Reads into a small buffer, and where that is too short (ERANGE) into the largest that can be
/// needed.
fn read_growing(
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> SysResult<Vec<u8>> {
    let mut buffer = vec![0; FIRST_LEN];
    let mut result = retry(Call::GetXattr, || read(&mut buffer));
    if result == Err(Errno::ERANGE) {
        buffer.resize(XATTR_LEN_MAX, 0);
        result = retry(Call::GetXattr, || read(&mut buffer));
    }
    buffer.truncate(result?);
    buffer.shrink_to_fit();
    Ok(buffer)
}
