//! Opening files and directories.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags};

use super::super::args::{Access, OpenKind};
use super::super::fault::CallKind;
use super::super::name::{component, permissions, retry};
use super::super::path::{DIR_FLAGS, walk_beneath};
use super::super::types::{Errno, SysResult};

/// The flag of a rename that leaves a whiteout (`RENAME_WHITEOUT` of renameat2(2)).
pub(crate) const WHITEOUT: Option<rustix::fs::RenameFlags> =
    Some(rustix::fs::RenameFlags::WHITEOUT);

/// Flags of a descriptor that only names an inode.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Maximum number of retries of openat2 after a concurrent rename (EAGAIN of openat2(2)).
const RESOLVE_TRIES_MAX: u32 = 64;

/// The flags of open(2) for `open`, except `O_NOFOLLOW`.
pub(in super::super) fn open_flags(open: Access) -> OFlags {
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags |= match (open.read, open.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    flags.set(OFlags::APPEND, open.append);
    flags.set(OFlags::TRUNC, open.truncate);
    flags.set(OFlags::DIRECT, open.direct);
    flags.set(OFlags::SYNC, open.sync);
    flags.set(OFlags::DSYNC, open.dsync);
    flags.set(OFlags::NOATIME, open.noatime);
    flags
}

/// Sets modes that the flags of open(2) cannot express; none on Linux.
pub(in super::super) fn after_open(fd: OwnedFd, _open: Access) -> SysResult<File> {
    Ok(File::from(fd))
}

/// Creates the file `name` in `dir`; EEXIST if the name exists, even as a dangling link (`O_CREAT |
/// O_EXCL`). The umask of the process applies to `mode`.
pub fn create_file_at(dir: impl AsFd, name: &[u8], open: Access, mode: u32) -> SysResult<File> {
    let name = component(name)?;
    let flags = open_flags(open) | OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL;
    retry(CallKind::Create, || {
        rustix::fs::openat(&dir, name, flags, permissions(mode))
    })
    .map(File::from)
}

/// Creates an unnamed file that ends when closed: on the filesystem of `dir`, or in memory
/// (open(2), `O_TMPFILE`; memfd_create(2)).
pub fn unnamed_file(dir: Option<&OwnedFd>) -> SysResult<File> {
    let on_disk = dir.map(|dir| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR).map_err(Errno::from)
    });
    match on_disk {
        // A network filesystem has no such files.
        None | Some(Err(Errno::EOPNOTSUPP | Errno::EISDIR)) => {
            Ok(rustix::fs::memfd_create(c"ckptfs", MemfdFlags::CLOEXEC).map(File::from)?)
        }
        Some(made) => made.map(File::from),
    }
}

/// Opens a descriptor that only names the inode `name` in `dir`, of any kind (`O_PATH`). It
/// requires no permission on the inode, keeps it from being freed, and does not follow a link.
pub fn open_path_at(dir: impl AsFd, name: &[u8]) -> SysResult<OwnedFd> {
    let name = component(name)?;
    retry(CallKind::Open, || {
        rustix::fs::openat(&dir, name, PATH_FLAGS, Mode::empty())
    })
}

/// Opens `path`, relative to `dir`, without leaving `dir` or following a link (openat2(2)).
///
/// Errors: EXDEV for a path that leads out (absolute, or too many `..`), ELOOP for a link in it.
/// With [`OpenKind::Path`] a link as the last component is opened itself. Without openat2 in the
/// kernel, any `..` is EXDEV, and a link in the path may be ENOTDIR.
pub fn open_beneath(dir: impl AsFd, path: &[u8], kind: OpenKind) -> SysResult<OwnedFd> {
    let flags = match kind {
        OpenKind::Path => PATH_FLAGS,
        OpenKind::Dir => DIR_FLAGS | OFlags::NOFOLLOW,
        OpenKind::File(open) => open_flags(open) | OFlags::NOFOLLOW,
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let mut tries = 0;
    loop {
        match retry(CallKind::Open, || {
            rustix::fs::openat2(&dir, path, flags, Mode::empty(), resolve)
        }) {
            Err(Errno::EAGAIN) if tries < RESOLVE_TRIES_MAX => tries += 1,
            // Before 5.6, and in sandboxes without it.
            Err(Errno::ENOSYS) => return walk_beneath(dir, path, kind),
            result => return result,
        }
    }
}

/// Opens the inode of a descriptor, which may be an `O_PATH` descriptor, again, subject to its
/// current permissions. ELOOP for a symbolic link.
pub fn reopen(fd: impl AsFd, open: Access) -> SysResult<File> {
    let path = proc_path(&fd);
    retry(CallKind::Open, || {
        rustix::fs::openat(CWD, path.as_str(), open_flags(open), Mode::empty())
    })
    .map(File::from)
}

/// Returns the current path of a descriptor's directory, also below a mount that covers it, and
/// after a rename of a directory above it.
///
/// # Errors
/// ENOENT: it was removed, or is not reachable from the root of this process.
pub fn path_of(dir: impl AsFd) -> SysResult<PathBuf> {
    let path = std::fs::read_link(proc_path(&dir))?;
    if path.is_absolute() && rustix::fs::fstat(&dir)?.st_nlink > 0 {
        Ok(path)
    } else {
        Err(Errno::ENOENT)
    }
}

/// The `/proc` link that leads to a descriptor's inode.
pub(super) fn proc_path(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}
