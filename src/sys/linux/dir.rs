//! Listing a directory.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, RawDir, SeekFrom};

use super::super::args::{Access, DirEntry};
use super::super::fault::{self, CallKind};
use super::super::name::{kind_of, retry};
use super::super::path::DIR_FLAGS;
use super::super::types::{Errno, SysResult};
use super::open::reopen;

/// Buffer size in bytes: some 800 names.
const BUFFER_LEN: usize = 32 * 1024;

/// Returns all names of the directory of `fd` (which may be an `O_PATH` descriptor) except `.` and
/// `..`, in the filesystem's order.
///
/// It reads through a separate open file description, so calls on the same descriptor do not
/// interfere. Names added or removed during the call may or may not be included (getdents(2)). A
/// removed directory is empty.
pub fn list_dir(fd: impl AsFd) -> SysResult<Vec<DirEntry>> {
    let mut entries = read_dir(fd, 0, usize::MAX)?.0;
    entries.retain(|entry| entry.name != b"." && entry.name != b"..");
    Ok(entries)
}

/// Returns names of a directory, including `.` and `..`, from a position (0: the beginning; else
/// [`DirEntry::next`]): at least `count`, unless the returned flag reports the end. Otherwise as
/// [`list_dir`].
pub fn read_dir(fd: impl AsFd, from: u64, count: usize) -> SysResult<(Vec<DirEntry>, bool)> {
    let dir = match retry(CallKind::Open, || {
        rustix::fs::openat(&fd, c".", DIR_FLAGS, Mode::empty())
    }) {
        // Resolving "." requires search permission; listing does not.
        Err(Errno::EACCES) => reopen(&fd, Access::READ)?.into(),
        dir => dir?,
    };
    if from > 0 {
        rustix::fs::seek(&dir, SeekFrom::Start(from)).map_err(Errno::from)?;
    }
    read_from(dir, count)
}

/// As [`list_dir`], through `dir` itself, open for reading and never listed before: two calls
/// fewer.
pub fn list_new_dir(dir: &OwnedFd) -> SysResult<Vec<DirEntry>> {
    let mut entries = read_from(dir, usize::MAX)?.0;
    entries.retain(|entry| entry.name != b"." && entry.name != b"..");
    Ok(entries)
}

fn read_from(dir: impl AsFd, count: usize) -> SysResult<(Vec<DirEntry>, bool)> {
    fault::check(CallKind::List)?;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_LEN];
    let mut reader = RawDir::new(dir, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::NOENT) => break,
            Err(errno) => return Err(errno.into()),
        };
        let name = entry.file_name().to_bytes().to_vec();
        entries.push(DirEntry {
            name,
            ino: entry.ino(),
            kind: kind_of(entry.file_type()),
            next: entry.next_entry_cookie(),
        });
        if entries.len() >= count && reader.is_buffer_empty() {
            return Ok((entries, false));
        }
    }
    Ok((entries, true))
}
