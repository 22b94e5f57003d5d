//! The file calls of the store, all relative to a directory descriptor.
//!
//! Invariant: no function takes a path. A name is one component, and a symbolic link in its place
//! is never followed. The daemon serves a mount that covers the directory it works in; a path
//! through that mount would make it wait for itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use ckptfs_sys as sys;
use ckptfs_sys::fault::{self, CallKind};

/// Maximum depth that [`remove_tree`] descends.
const REMOVE_DEPTH_MAX: u32 = 4;

/// Opens a directory by name; `ELOOP` or `ENOTDIR` for anything else.
pub(super) fn open_dir(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    fault::check(CallKind::Open)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Creates a directory (mode 0700) unless the name exists. Returns whether it was created.
pub(super) fn make_dir(parent: impl AsFd, name: &str) -> io::Result<bool> {
    fault::check(CallKind::Make)?;
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file by name with these flags; a new file has mode 0600. Never follows a link or blocks
/// on a FIFO.
pub(super) fn open_file(parent: impl AsFd, name: &str, flags: OFlags) -> io::Result<File> {
    fault::check(if flags.contains(OFlags::CREATE) {
        CallKind::Create
    } else {
        CallKind::Open
    })?;
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(
        parent,
        name,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?))
}

/// Returns the names in a directory, unordered, without `.` and `..`.
pub(super) fn names(dir: impl AsFd) -> io::Result<Vec<Vec<u8>>> {
    fault::check(CallKind::List)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// Returns the content of a small file; `EFBIG` if it exceeds `limit` bytes.
pub(super) fn read_small(parent: impl AsFd, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    // Most files fit, so two reads suffice.
    let mut bytes = Vec::with_capacity(512);
    open_file(parent, name, OFlags::RDONLY)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(rustix::io::Errno::FBIG.into());
    }
    Ok(bytes)
}

/// Replaces a file atomically: writes a temporary file, syncs it and renames it. The name is
/// durable on return.
pub(super) fn write_whole<D: AsFd>(parent: D, name: &str, bytes: &[u8]) -> io::Result<()> {
    let parent = parent.as_fd();
    let unfinished = format!("{name}.new");
    let mut file = open_file(
        parent,
        &unfinished,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
    )?;
    fault::check(CallKind::Write)?;
    file.write_all(bytes)?;
    fault::check(CallKind::Sync)?;
    file.sync_all()?;
    rename(parent, &unfinished, name)?;
    sync_dir(parent)
}

/// Creates or overwrites a file. Nothing is durable on return, and a concurrent reader may see a
/// part.
pub(super) fn write_unsynced<D: AsFd>(parent: D, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut file = open_file(parent, name, flags)?;
    fault::check(CallKind::Write)?;
    file.write_all(bytes)
}

/// Replaces a symbolic link atomically, by creating a temporary link and renaming it. This also
/// holds after a power cut, because the target of a link is metadata. Not durable on return, but on
/// disk before any later change. `ENAMETOOLONG`: the filesystem cannot store so long a target.
pub(super) fn write_link(parent: impl AsFd, name: &str, text: &[u8]) -> io::Result<()> {
    let parent = parent.as_fd();
    let unfinished = format!("{name}.new");
    fault::check(CallKind::Make)?;
    let link = || rustix::fs::symlinkat(text, parent, &unfinished);
    match link() {
        Err(rustix::io::Errno::EXIST) => {
            rustix::fs::unlinkat(parent, &unfinished, AtFlags::empty())?;
            link()?;
        }
        made => made?,
    }
    rename(parent, &unfinished, name)
}

/// Returns the target of a symbolic link.
pub(super) fn read_link(parent: impl AsFd, name: &str) -> io::Result<Vec<u8>> {
    fault::check(CallKind::Read)?;
    Ok(rustix::fs::readlinkat(parent, name, Vec::new())?.into_bytes())
}

/// Syncs a file or directory by name. A missing name is not an error.
pub(super) fn sync_name(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fault::check(CallKind::Open)?;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(opened) => sync_dir(opened),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Renames a file within a directory and replaces the target.
pub(super) fn rename(dir: impl AsFd, from: &str, to: &str) -> io::Result<()> {
    fault::check(CallKind::Rename)?;
    Ok(rustix::fs::renameat(&dir, from, &dir, to)?)
}

/// Moves a name to another directory.
pub(super) fn move_to(dir: impl AsFd, name: &str, to: impl AsFd) -> io::Result<()> {
    fault::check(CallKind::Rename)?;
    Ok(rustix::fs::renameat(dir, name, to, name)?)
}

/// Syncs a directory, so that its names are durable.
pub(super) fn sync_dir(dir: impl AsFd) -> io::Result<()> {
    fault::check(CallKind::Sync)?;
    Ok(rustix::fs::fsync(dir)?)
}

/// As [`sync_dir`], but all earlier changes are durable on return. On btrfs a synced directory
/// reaches the disk ahead of other recent changes, so there the whole filesystem is synced.
pub(super) fn sync_in_order(dir: impl AsFd) -> io::Result<()> {
    let dir = dir.as_fd();
    if sys::statfs_fd(dir).is_ok_and(|info| sys::fs_name(info.fs_type) == "btrfs") {
        fault::check(CallKind::Sync)?;
        Ok(sys::syncfs(dir)?)
    } else {
        sync_dir(dir)
    }
}

/// Returns whether the name is a directory, without following a link. `ENOENT` if it does not
/// exist.
pub(super) fn is_dir(parent: impl AsFd, name: &[u8]) -> io::Result<bool> {
    fault::check(CallKind::Stat)?;
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Rejects (`EINVAL`) anything except a regular file with this one name: a link, a FIFO, a device,
/// or a file that has another hard link.
pub(super) fn check_own_file(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let own = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1;
    if own {
        Ok(())
    } else {
        Err(rustix::io::Errno::INVAL.into())
    }
}

/// Restricts one of the store's files or directories to its owner. A missing name is not an error.
pub(super) fn restrict(parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        stat => stat?,
    };
    let ours = matches!(
        FileType::from_raw_mode(stat.st_mode),
        FileType::RegularFile | FileType::Directory
    );
    if !ours || stat.st_mode & 0o077 == 0 {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::fchmod(
        rustix::fs::openat(parent, name, flags, Mode::empty())?,
        Mode::from_raw_mode(stat.st_mode & 0o700),
    )?)
}

/// Removes a name and everything below it. Follows no link. A missing name is not an error.
pub(super) fn remove_tree(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    remove_below(parent.as_fd(), name, REMOVE_DEPTH_MAX)
}

fn remove_below(parent: rustix::fd::BorrowedFd<'_>, name: &[u8], depth: u32) -> io::Result<()> {
    fault::check(CallKind::Unlink)?;
    let gone = |error: io::Error| {
        if error.kind() == io::ErrorKind::NotFound {
            Ok(())
        } else {
            Err(error)
        }
    };
    match is_dir(parent, name) {
        Ok(false) => {
            return rustix::fs::unlinkat(parent, name, AtFlags::empty())
                .map_err(io::Error::from)
                .or_else(gone);
        }
        Ok(true) => {}
        Err(error) => return gone(error),
    }
    let depth = depth
        .checked_sub(1)
        .ok_or(io::Error::from(rustix::io::Errno::LOOP))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    for child in names(&dir)? {
        remove_below(dir.as_fd(), &child, depth)?;
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}
