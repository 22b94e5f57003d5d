//! Opening files and directories.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags};

use super::super::args::{Access, OpenKind};
use super::super::fault::CallKind;
use super::super::name::{component, permissions, retry};
use super::super::path::walk_beneath;
use super::super::types::{Errno, SysResult};
use super::attr::stat_fd;

/// The flag of a rename that leaves a whiteout: not supported.
pub(crate) const WHITEOUT: Option<rustix::fs::RenameFlags> = None;

/// Flags of a descriptor that only names an inode, including a symbolic link.
const PATH_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::SYMLINK)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

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
    flags.set(OFlags::SYNC, open.sync);
    flags.set(OFlags::DSYNC, open.dsync);
    flags
}

/// Returns the current path of a descriptor's directory (`F_GETPATH`).
///
/// # Errors
/// ENOENT: it was removed.
pub fn path_of(dir: impl AsFd) -> SysResult<PathBuf> {
    let path = rustix::fs::getpath(&dir)?;
    Ok(PathBuf::from(OsString::from_vec(path.into_bytes())))
}

/// Sets modes that the flags of open(2) cannot express: bypassing the page cache (`F_NOCACHE`).
pub(in super::super) fn after_open(fd: OwnedFd, open: Access) -> SysResult<File> {
    if open.direct {
        retry(CallKind::Probe, || rustix::fs::fcntl_nocache(&fd, true))?;
    }
    Ok(File::from(fd))
}

/// Creates the file `name` in `dir`; EEXIST if the name exists, even as a dangling link (`O_CREAT |
/// O_EXCL`). The umask of the process applies to `mode`.
pub fn create_file_at(dir: impl AsFd, name: &[u8], open: Access, mode: u32) -> SysResult<File> {
    let name = component(name)?;
    let flags = open_flags(open) | OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL;
    let fd = retry(CallKind::Create, || {
        rustix::fs::openat(&dir, name, flags, permissions(mode))
    })?;
    after_open(fd, open)
}

/// Creates an unnamed file that ends when closed: in `dir`, or in the directory for temporary
/// files. It briefly has a name.
pub fn unnamed_file(dir: Option<&OwnedFd>) -> SysResult<File> {
    let name = format!(
        ".ckptfs-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let open = Access {
        read: true,
        ..Access::WRITE
    };
    let temporary = match dir {
        Some(dir) => dir.try_clone()?,
        None => OwnedFd::from(File::open(std::env::temp_dir())?),
    };
    let file = create_file_at(&temporary, name.as_bytes(), open, 0o600)?;
    rustix::fs::unlinkat(&temporary, name.as_str(), rustix::fs::AtFlags::empty())?;
    Ok(file)
}

/// The next number in temporary names.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Opens a descriptor that names the inode `name` in `dir`, of any kind, without following a link.
/// EOPNOTSUPP for sockets.
pub fn open_path_at(dir: impl AsFd, name: &[u8]) -> SysResult<OwnedFd> {
    let name = component(name)?;
    retry(CallKind::Open, || {
        rustix::fs::openat(&dir, name, PATH_FLAGS, Mode::empty())
    })
}

/// Opens `path`, relative to `dir`, without leaving `dir` or following a link.
///
/// Errors: EXDEV for a path that leads out (absolute, or with `..`), ELOOP or ENOTDIR for a link in
/// it.
pub fn open_beneath(dir: impl AsFd, path: &[u8], kind: OpenKind) -> SysResult<OwnedFd> {
    walk_beneath(dir, path, kind)
}

/// Opens the inode of a descriptor again, subject to its current permissions, by its current path
/// (F_GETPATH). ELOOP for a symbolic link, ESTALE if the path names another inode by now.
pub fn reopen(fd: impl AsFd, open: Access) -> SysResult<File> {
    let path = retry(CallKind::Probe, || rustix::fs::getpath(&fd))?;
    // Truncation must wait until the inode is verified.
    let flags = open_flags(Access {
        truncate: false,
        ..open
    }) | OFlags::NOFOLLOW;
    let opened = retry(CallKind::Open, || {
        rustix::fs::openat(CWD, path.as_c_str(), flags, Mode::empty())
    })?;
    let (before, after) = (stat_fd(&fd)?, stat_fd(&opened)?);
    if (before.dev, before.ino) != (after.dev, after.ino) {
        return Err(Errno::ESTALE);
    }
    if open.truncate {
        retry(CallKind::Truncate, || rustix::fs::ftruncate(&opened, 0))?;
    }
    after_open(opened, open)
}
