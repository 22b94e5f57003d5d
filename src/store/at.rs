//! The few file calls that the store needs, all relative to a directory descriptor.
//!
//! Invariant: no function here takes a path. A name is one component, and a symbolic link in its
//! place is never followed: the daemon serves a mount that covers the directory it works in, and a
//! path that led through that mount would make it wait for itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use crate::sys;
use crate::sys::fault::{self, Call};

/// Most levels that [`remove_tree`] goes down.
const REMOVE_DEPTH_MAX: u32 = 4;

/// Opens a directory by name. `ELOOP` or `ENOTDIR` if it is none.
pub(super) fn open_dir(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    fault::check(Call::Open)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Makes a directory (mode 0700) unless there is something of that name; true if it was made.
pub(super) fn make_dir(parent: impl AsFd, name: &str) -> io::Result<bool> {
    fault::check(Call::Make)?;
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file by name with these flags; a new one has mode 0600. Never follows a link, never
/// blocks on a FIFO.
pub(super) fn open_file(parent: impl AsFd, name: &str, flags: OFlags) -> io::Result<File> {
    fault::check(if flags.contains(OFlags::CREATE) {
        Call::Create
    } else {
        Call::Open
    })?;
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(
        parent,
        name,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?))
}

/// The names in a directory, in no order, without `.` and `..`.
pub(super) fn names(dir: impl AsFd) -> io::Result<Vec<Vec<u8>>> {
    fault::check(Call::List)?;
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

/// The content of a small file; `EFBIG` if it has more than `limit` bytes.
pub(super) fn read_small(parent: impl AsFd, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    // Enough for most: two reads.
    let mut bytes = Vec::with_capacity(512);
    open_file(parent, name, OFlags::RDONLY)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(rustix::io::Errno::FBIG.into());
    }
    Ok(bytes)
}

/// Writes a file under another name, makes it durable, and gives it its name: whoever looks finds
/// all of it or none. The name is durable on return.
pub(super) fn write_whole<D: AsFd>(parent: D, name: &str, bytes: &[u8]) -> io::Result<()> {
    let parent = parent.as_fd();
    let unfinished = format!("{name}.new");
    let mut file = open_file(
        parent,
        &unfinished,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
    )?;
    fault::check(Call::Write)?;
    file.write_all(bytes)?;
    fault::check(Call::Sync)?;
    file.sync_all()?;
    rename(parent, &unfinished, name)?;
    sync_dir(parent)
}

/// Writes a new file, or another's content anew. Nothing of it is durable on return, and who looks
/// meanwhile may find a part.
pub(super) fn write_unsynced<D: AsFd>(parent: D, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut file = open_file(parent, name, flags)?;
    fault::check(Call::Write)?;
    file.write_all(bytes)
}

/// Makes a symbolic link with this text under another name, and gives it its name: whoever looks
/// finds all of it or none, also after a power cut, for the text is metadata. Not durable on
/// return: it is on the disk before whatever is done afterwards. `ENAMETOOLONG`: the filesystem has
/// no room for so long a text in a link.
pub(super) fn write_link(parent: impl AsFd, name: &str, text: &[u8]) -> io::Result<()> {
    let parent = parent.as_fd();
    let unfinished = format!("{name}.new");
    fault::check(Call::Make)?;
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

/// The text of a symbolic link.
pub(super) fn read_link(parent: impl AsFd, name: &str) -> io::Result<Vec<u8>> {
    fault::check(Call::Read)?;
    Ok(rustix::fs::readlinkat(parent, name, Vec::new())?.into_bytes())
}

/// Makes a file or a directory durable, with its name. It is not an error if there is none.
pub(super) fn sync_name(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fault::check(Call::Open)?;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(opened) => sync_dir(opened),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Gives a file of a directory another name there, in place of what had it.
pub(super) fn rename(dir: impl AsFd, from: &str, to: &str) -> io::Result<()> {
    fault::check(Call::Rename)?;
    Ok(rustix::fs::renameat(&dir, from, &dir, to)?)
}

/// Moves what has this name into another directory.
pub(super) fn move_to(dir: impl AsFd, name: &str, to: impl AsFd) -> io::Result<()> {
    fault::check(Call::Rename)?;
    Ok(rustix::fs::renameat(dir, name, to, name)?)
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: impl AsFd) -> io::Result<()> {
    fault::check(Call::Sync)?;
    Ok(rustix::fs::fsync(dir)?)
}

/// As [`sync_dir`]; what was done before is on the disk too. On btrfs a directory that is synced
/// comes there ahead of other changes of that moment: there the whole filesystem is synced.
pub(super) fn sync_in_order(dir: impl AsFd) -> io::Result<()> {
    let dir = dir.as_fd();
    if sys::statfs_fd(dir).is_ok_and(|info| sys::fs_name(info.fs_type) == "btrfs") {
        fault::check(Call::Sync)?;
        Ok(sys::syncfs(dir)?)
    } else {
        sync_dir(dir)
    }
}

/// Whether the name is that of a directory, itself and not what a link leads to. `ENOENT` if there
/// is none.
pub(super) fn is_dir(parent: impl AsFd, name: &[u8]) -> io::Result<bool> {
    fault::check(Call::Stat)?;
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Refuses (`EINVAL`) what is not a regular file with this one name: a link, a FIFO, a device, or a
/// file that somebody has elsewhere too.
pub(super) fn check_own_file(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let own = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1;
    if own {
        Ok(())
    } else {
        Err(rustix::io::Errno::INVAL.into())
    }
}

/// Sees to it that only its owner can use a file or directory of ours. It is not an error if there
/// is none.
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

/// Removes what has this name, and all below it. Follows no link. It is not an error if there is
/// nothing.
pub(super) fn remove_tree(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    remove_below(parent.as_fd(), name, REMOVE_DEPTH_MAX)
}

fn remove_below(parent: rustix::fd::BorrowedFd<'_>, name: &[u8], depth: u32) -> io::Result<()> {
    fault::check(Call::Unlink)?;
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
