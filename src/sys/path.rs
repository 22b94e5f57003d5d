//! Calls on one name in one directory that both systems have.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};

use super::args::{Open, OpenKind, RenameMode};
use super::fault::Call;
use super::name::{component, permissions, retry};
use super::os;
use super::types::{Errno, SysResult};

/// Flags of every descriptor for a directory's names.
pub(super) const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens the directory at `path`, links followed: the one call that takes a whole path, for the
/// backing directory itself.
pub fn open_root(path: &Path) -> SysResult<OwnedFd> {
    retry(Call::Open, || {
        rustix::fs::openat(CWD, path, DIR_FLAGS, Mode::empty())
    })
}

/// Opens the directory `name` in `dir` for reading. ENOTDIR (or ELOOP) when it is something else, a
/// link included.
pub fn open_dir_at(dir: impl AsFd, name: &[u8]) -> SysResult<OwnedFd> {
    let name = component(name)?;
    retry(Call::Open, || {
        rustix::fs::openat(&dir, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())
    })
}

/// Opens the file `name` in `dir`. ELOOP when it is a link, ENXIO when it is a socket or a FIFO
/// without a reader.
///
/// It opens FIFOs and devices too, and without blocking: whoever wants regular files only looks at
/// [`super::stat_fd`].
pub fn open_file_at(dir: impl AsFd, name: &[u8], open: Open) -> SysResult<File> {
    let name = component(name)?;
    let fd = retry(Call::Open, || {
        rustix::fs::openat(
            &dir,
            name,
            os::open_flags(open) | OFlags::NOFOLLOW,
            Mode::empty(),
        )
    })?;
    os::after_open(fd, open)
}

/// Makes the directory `name` in `dir` (mkdirat(2)); `mode` is masked by the process's umask
/// ([`super::umask0`]).
pub fn mkdir_at(dir: impl AsFd, name: &[u8], mode: u32) -> SysResult<()> {
    let name = component(name)?;
    retry(Call::Make, || {
        rustix::fs::mkdirat(&dir, name, permissions(mode))
    })
}

/// Makes `name` in `dir` a symbolic link that says `target`, any bytes without NUL (symlinkat(2)).
pub fn symlink_at(target: &[u8], dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    let name = component(name)?;
    retry(Call::Make, || rustix::fs::symlinkat(target, &dir, name))
}

/// Gives the inode `from` in `from_dir` the further name `to` in `to_dir`; of a symbolic link, the
/// link itself (linkat(2)).
pub fn link_at(from_dir: impl AsFd, from: &[u8], to_dir: impl AsFd, to: &[u8]) -> SysResult<()> {
    let (from, to) = (component(from)?, component(to)?);
    retry(Call::Link, || {
        rustix::fs::linkat(&from_dir, from, &to_dir, to, AtFlags::empty())
    })
}

/// Writes a file whole, in place of what was there: a reader finds the old bytes or the new ones.
/// It is on disk when this returns, its name may not be.
///
/// # Errors
/// The old one is there then.
pub fn replace_file(dir: impl AsFd, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let new = format!("{name}.new-{}", std::process::id());
    let written = (|| {
        let mut file = os::create_file_at(&dir, new.as_bytes(), Open::READ_WRITE, 0o600)?;
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
        // It stays where even that fails, and does nothing there.
        let _ = unlink_at(&dir, new.as_bytes());
    }
    written
}

/// Removes the name of something that is not a directory: EISDIR (EPERM on macOS) otherwise
/// (unlinkat(2)).
pub fn unlink_at(dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    let name = component(name)?;
    retry(Call::Unlink, || {
        rustix::fs::unlinkat(&dir, name, AtFlags::empty())
    })
}

/// Removes an empty directory (`AT_REMOVEDIR`).
pub fn rmdir_at(dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    let name = component(name)?;
    retry(Call::Unlink, || {
        rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)
    })
}

/// What a symbolic link says; EINVAL when it is none (readlinkat(2)).
pub fn readlink_at(dir: impl AsFd, name: &[u8]) -> SysResult<Vec<u8>> {
    let name = component(name)?;
    retry(Call::Read, || {
        rustix::fs::readlinkat(&dir, name, Vec::new())
    })
    .map(|target| target.into_bytes())
}

/// Target of the symbolic link that `fd` names (an `O_PATH` descriptor of the link itself).
///
/// Errors: ENOENT or EINVAL if it is no link.
pub fn readlink_fd(fd: impl AsFd) -> SysResult<Vec<u8>> {
    retry(Call::Read, || rustix::fs::readlinkat(&fd, c"", Vec::new()))
        .map(|target| target.into_bytes())
}

/// Moves `from` in `from_dir` to `to` in `to_dir`, in one step (renameat2(2); renameatx_np on
/// macOS).
///
/// Errors: EINVAL where the filesystem does not have `mode`.
pub fn rename_at(
    from_dir: impl AsFd,
    from: &[u8],
    to_dir: impl AsFd,
    to: &[u8],
    mode: RenameMode,
) -> SysResult<()> {
    let (from, to) = (component(from)?, component(to)?);
    retry(Call::Rename, || match mode {
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

/// Opens `path`, relative to `dir`, component by component, without ever leaving `dir` or following
/// a link.
///
/// Errors: EXDEV for a path that leads out (absolute, or any `..`), ELOOP or ENOTDIR for a link on
/// the way.
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
    let mut at = retry(Call::Open, || {
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
