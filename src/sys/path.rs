//! Calls on one name in one directory, for all systems.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};

use super::args::{Access, OpenKind, RenameMode};
use super::fault::CallKind;
use super::name::{component, permissions, retry};
use super::os;
use super::types::{Errno, SysResult};

/// Flags of every descriptor for listing and resolving the names of a directory.
pub(super) const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens the directory at `path`, following links: the only call with a whole path, for the backing
/// directory itself.
pub fn open_root(path: &Path) -> SysResult<OwnedFd> {
    retry(CallKind::Open, || {
        rustix::fs::openat(CWD, path, DIR_FLAGS, Mode::empty())
    })
}

/// Opens the directory `name` in `dir` for reading. ENOTDIR (or ELOOP) for other kinds, including a
/// link.
pub fn open_dir_at(dir: impl AsFd, name: &[u8]) -> SysResult<OwnedFd> {
    let name = component(name)?;
    retry(CallKind::Open, || {
        rustix::fs::openat(&dir, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())
    })
}

/// Opens the file `name` in `dir`. ELOOP for a link; ENXIO for a socket, and for writing to a FIFO
/// without a reader.
///
/// It also opens FIFOs and devices, without blocking. Callers that accept only regular files check
/// [`super::stat_fd`].
pub fn open_file_at(dir: impl AsFd, name: &[u8], open: Access) -> SysResult<File> {
    let name = component(name)?;
    let fd = retry(CallKind::Open, || {
        rustix::fs::openat(
            &dir,
            name,
            os::open_flags(open) | OFlags::NOFOLLOW,
            Mode::empty(),
        )
    })?;
    os::after_open(fd, open)
}

/// Creates the directory `name` in `dir` (mkdirat(2)); the umask of the process applies to `mode`
/// ([`super::umask0`]).
pub fn mkdir_at(dir: impl AsFd, name: &[u8], mode: u32) -> SysResult<()> {
    let name = component(name)?;
    retry(CallKind::Make, || {
        rustix::fs::mkdirat(&dir, name, permissions(mode))
    })
}

/// Creates the symbolic link `name` in `dir` with this target, any bytes without NUL
/// (symlinkat(2)).
pub fn symlink_at(target: &[u8], dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    let name = component(name)?;
    retry(CallKind::Make, || rustix::fs::symlinkat(target, &dir, name))
}

/// Creates the name `to` in `to_dir` for the inode `from` in `from_dir`; a symbolic link is not
/// followed (linkat(2)).
pub fn link_at(from_dir: impl AsFd, from: &[u8], to_dir: impl AsFd, to: &[u8]) -> SysResult<()> {
    let (from, to) = (component(from)?, component(to)?);
    retry(CallKind::Link, || {
        rustix::fs::linkat(&from_dir, from, &to_dir, to, AtFlags::empty())
    })
}

/// Replaces the content of a file atomically: a reader sees the old bytes or the new ones. The
/// content is durable on return; the name may not be.
///
/// # Errors
/// On an error the old file is unchanged.
pub fn replace_file(dir: impl AsFd, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let new = format!("{name}.new-{}", std::process::id());
    let written = (|| {
        let mut file = os::create_file_at(&dir, new.as_bytes(), Access::READ_WRITE, 0o600)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(rename_at(
            &dir,
            new.as_bytes(),
            &dir,
            name.as_bytes(),
            RenameMode::Replace,
        )?)
    })();
    if written.is_err() {
        // If this fails, the leftover does no harm.
        let _ = unlink_at(&dir, new.as_bytes());
    }
    written
}

/// Removes the name of an inode other than a directory; EISDIR (EPERM on macOS) for a directory
/// (unlinkat(2)).
pub fn unlink_at(dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    let name = component(name)?;
    retry(CallKind::Unlink, || {
        rustix::fs::unlinkat(&dir, name, AtFlags::empty())
    })
}

/// Removes an empty directory (`AT_REMOVEDIR`).
pub fn rmdir_at(dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    let name = component(name)?;
    retry(CallKind::Unlink, || {
        rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)
    })
}

/// Returns the target of a symbolic link; EINVAL for other kinds (readlinkat(2)).
pub fn readlink_at(dir: impl AsFd, name: &[u8]) -> SysResult<Vec<u8>> {
    let name = component(name)?;
    retry(CallKind::Read, || {
        rustix::fs::readlinkat(&dir, name, Vec::new())
    })
    .map(|target| target.into_bytes())
}

/// Returns the target of the symbolic link that `fd` names (an `O_PATH` descriptor of the link
/// itself).
///
/// Errors: ENOENT or EINVAL if it is no link.
pub fn readlink_fd(fd: impl AsFd) -> SysResult<Vec<u8>> {
    retry(CallKind::Read, || {
        rustix::fs::readlinkat(&fd, c"", Vec::new())
    })
    .map(|target| target.into_bytes())
}

/// Renames `from` in `from_dir` to `to` in `to_dir` atomically (renameat2(2); renameatx_np on
/// macOS).
///
/// Errors: EINVAL if the filesystem does not support `mode`.
pub fn rename_at(
    from_dir: impl AsFd,
    from: &[u8],
    to_dir: impl AsFd,
    to: &[u8],
    mode: RenameMode,
) -> SysResult<()> {
    let (from, to) = (component(from)?, component(to)?);
    retry(CallKind::Rename, || match mode {
        RenameMode::Replace => rustix::fs::renameat(&from_dir, from, &to_dir, to),
        RenameMode::NoReplace => {
            rustix::fs::renameat_with(&from_dir, from, &to_dir, to, RenameFlags::NOREPLACE)
        }
        RenameMode::Exchange => {
            rustix::fs::renameat_with(&from_dir, from, &to_dir, to, RenameFlags::EXCHANGE)
        }
        RenameMode::Whiteout => rustix::fs::renameat_with(
            &from_dir,
            from,
            &to_dir,
            to,
            os::WHITEOUT.ok_or(rustix::io::Errno::INVAL)?,
        ),
        RenameMode::NoReplaceWhiteout => {
            let flags = RenameFlags::NOREPLACE | os::WHITEOUT.ok_or(rustix::io::Errno::INVAL)?;
            rustix::fs::renameat_with(&from_dir, from, &to_dir, to, flags)
        }
    })
}

/// Opens `path`, relative to `dir`, component by component, without leaving `dir` or following a
/// link.
///
/// Errors: EXDEV for a path that leads out (absolute, or with `..`), ELOOP or ENOTDIR for a link in
/// it.
pub(super) fn walk_beneath(dir: impl AsFd, path: &[u8], kind: OpenKind) -> SysResult<OwnedFd> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    let mut names = path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .peekable();
    if path.first() == Some(&b'/') || names.clone().any(|name| name == b"..") {
        return Err(Errno::EXDEV);
    }
    let mut at = retry(CallKind::Open, || {
        rustix::fs::openat(&dir, c".", DIR_FLAGS, Mode::empty())
    })?;
    while let Some(name) = names.next() {
        at = match (names.peek(), kind) {
            (Some(_), _) | (None, OpenKind::Dir) => open_dir_at(&at, name)?,
            (None, OpenKind::Path) => os::open_path_at(&at, name)?,
            (None, OpenKind::File(open)) => open_file_at(&at, name, open)?.into(),
        };
    }
    Ok(at)
}
