//! Small files that reach the disk completely, and in the order of their writes, without a sync.
//!
//! A filesystem writes back data in any order, but metadata, including extended attributes, in
//! order (see `journal::tail`). The bytes are therefore stored in attributes as well as in the
//! file. Without attributes or space for them, with too many bytes, or on btrfs, where a synced
//! file reaches the disk ahead of earlier changes, the bytes are stored only in the file, and
//! synced.
//!
//! ```text
//! FILE                      the bytes; unsynced ones may be anything
//!   user.ckptfs.OOOOOOOO    the content from this offset (hexadecimal) on, which overrides the data: at most 1,960 bytes
//! ```
//! An attribute that would leave a gap is ignored.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::at;
use super::layout::XATTR_PREFIX;
use ckptfs_sys::fault::{self, CallKind};
use ckptfs_sys::{self as sys, Xattrs};

/// Bytes of an attribute: a whole number of pairs of `merges/ID.same`.
const CHUNK_BYTES: usize = 35 * 56;
/// Maximum number of attributes of a file.
const CHUNKS_MAX: usize = 128;
/// Number of attributes from which [`fold`] writes them to the file.
const FOLDED_FROM: usize = 64;

/// A file and its attributes.
struct XattrFile {
    file: File,
    attributes: Xattrs,
}

/// Returns the first `limit` bytes of a file.
///
/// # Errors
/// Those of open(2), read(2), getxattr(2).
pub(super) fn read(dir: impl AsFd, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    XattrFile::open(dir, name, OFlags::RDONLY)?.bytes(limit)
}

/// Replaces a file atomically, in order with earlier changes: after a power cut it has the old or
/// the new content, and with the new one all earlier changes are on disk. If that requires a sync,
/// `before` is called first, and the file is durable on return.
///
/// # Errors
/// Those of `before`, write(2), fsync(2), rename(2).
pub(super) fn write(
    dir: impl AsFd,
    name: &str,
    bytes: &[u8],
    before: &dyn Fn() -> io::Result<()>,
) -> io::Result<()> {
    let (dir, unfinished) = (dir.as_fd(), format!("{name}.new"));
    let remove = || match rustix::fs::unlinkat(dir, &unfinished, AtFlags::empty()) {
        Err(errno) if errno != Errno::NOENT => Err(io::Error::from(errno)),
        _ => Ok(()),
    };
    remove()?;
    if may_put(dir, 0, bytes) {
        let put = || {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            put(&at::open_file(dir, &unfinished, flags)?, 0, bytes)?;
            at::rename(dir, &unfinished, name)
        };
        if put().is_ok() {
            return Ok(());
        }
        remove()?;
    }
    before()?;
    at::write_whole(dir, name, bytes)
}

/// Appends bytes in parts of `part` bytes, each at a multiple of that; an incomplete part at the
/// end is overwritten. Appends only as many parts as fit into `limit` bytes, in order like
/// [`write()`].
///
/// # Errors
/// Those of write(2), fsync(2).
pub(super) fn append(
    dir: impl AsFd,
    name: &str,
    bytes: &[u8],
    (part, limit): (usize, u64),
) -> io::Result<()> {
    let dir = dir.as_fd();
    let held = XattrFile::open(dir, name, OFlags::RDWR | OFlags::CREATE)?;
    let end = held.end()? / part as u64 * part as u64;
    let room = usize::try_from(limit.saturating_sub(end)).unwrap_or(usize::MAX);
    let bytes = bytes.get(..room / part * part).unwrap_or(bytes);
    let is_put = may_put(dir, held.attributes.len(), bytes) && put(&held.file, end, bytes).is_ok();
    if is_put {
        Ok(())
    } else {
        held.sync(dir, end, bytes)
    }
}

/// Writes the attributes to the file if they are many.
///
/// # Errors
/// Those of write(2), fsync(2), removexattr(2).
pub(super) fn fold(dir: impl AsFd, name: &str) -> io::Result<()> {
    let held = match XattrFile::open(&dir, name, OFlags::RDWR) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        held => held?,
    };
    if held.attributes.len() < FOLDED_FROM {
        return Ok(());
    }
    let end = held.end()?;
    held.sync(dir.as_fd(), end, &[])
}

/// Returns whether metadata reaches the disk in order, even if a program syncs a file.
pub(super) fn is_kept(dir: impl AsFd) -> bool {
    sys::statfs_fd(dir).is_ok_and(|info| sys::fs_name(info.fs_type) != "btrfs")
}

fn may_put(dir: BorrowedFd<'_>, there: usize, bytes: &[u8]) -> bool {
    there + bytes.len().div_ceil(CHUNK_BYTES) <= CHUNKS_MAX && is_kept(dir)
}

/// Writes bytes to attributes, all or none, and to the file.
fn put(file: &File, at: u64, bytes: &[u8]) -> sys::SysResult<()> {
    let chunks = || (at..).step_by(CHUNK_BYTES).zip(bytes.chunks(CHUNK_BYTES));
    let mut all = chunks();
    let done = all
        .try_for_each(|(at, chunk)| sys::set_file_xattr(file, &attribute(at), chunk))
        .and_then(|()| sys::write_all_at(file, bytes, at));
    if done.is_err() {
        for (at, _) in chunks() {
            let _ = sys::remove_file_xattr(file, &attribute(at));
        }
    }
    done
}

fn attribute(at: u64) -> Vec<u8> {
    [XATTR_PREFIX, format!("{at:08x}").as_bytes()].concat()
}

fn offset(attribute: &[u8]) -> Option<u64> {
    let digits = attribute.strip_prefix(XATTR_PREFIX)?;
    let text = std::str::from_utf8(digits).ok()?;
    let at = u64::from(u32::from_str_radix(text, 16).ok()?);
    (self::attribute(at) == attribute).then_some(at)
}

impl XattrFile {
    fn open(dir: impl AsFd, name: &str, flags: OFlags) -> io::Result<XattrFile> {
        let file = at::open_file(dir, name, flags)?;
        let mut attributes = sys::all_xattrs(&file)?;
        attributes.retain(|(name, _)| offset(name).is_some());
        Ok(XattrFile { file, attributes })
    }

    /// Calls `each` with the offset and bytes of each attribute, and returns the end of the
    /// content.
    fn pieces<'a>(&'a self, len: u64, mut each: impl FnMut(u64, &'a [u8])) -> u64 {
        let mut end = len;
        // Sorted by name, and so by offset.
        for (name, bytes) in &self.attributes {
            if let Some(at) = offset(name).filter(|at| *at <= end) {
                each(at, bytes);
                end = end.max(at + bytes.len() as u64);
            }
        }
        end
    }

    fn end(&self) -> io::Result<u64> {
        Ok(self.pieces(self.file.metadata()?.len(), |_, _| {}))
    }

    fn bytes(&self, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        fault::check(CallKind::Read)?;
        (&self.file).take(limit).read_to_end(&mut bytes)?;
        self.pieces(bytes.len() as u64, |at, piece| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let over = bytes.len().saturating_sub(at).min(piece.len());
            let (inside, behind) = piece.split_at(over);
            if let Some(there) = bytes.get_mut(at..at.saturating_add(over)) {
                there.copy_from_slice(inside);
            }
            bytes.extend_from_slice(behind);
        });
        bytes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    /// Writes all attributes, and these bytes at the end, to the file. Durable on return.
    fn sync(&self, dir: BorrowedFd<'_>, end: u64, bytes: &[u8]) -> io::Result<()> {
        let mut written = Ok(());
        let mut write = |at, bytes: &[u8]| {
            if written.is_ok() {
                written = sys::write_all_at(&self.file, bytes, at);
            }
        };
        self.pieces(self.file.metadata()?.len(), &mut write);
        write(end, bytes);
        written?;
        fault::check(CallKind::Sync)?;
        self.file.sync_all()?;
        at::sync_dir(dir)?;
        let mut names = self.attributes.iter().map(|(name, _)| name);
        Ok(names.try_for_each(|name| sys::remove_file_xattr(&self.file, name))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 56;
    const ALL: (usize, u64) = (PART, 1 << 20);

    fn parts(of: u8, count: usize) -> Vec<u8> {
        vec![of; count * PART]
    }

    fn attributes(dir: &File, name: &str) -> usize {
        XattrFile::open(dir, name, OFlags::RDONLY)
            .unwrap()
            .attributes
            .len()
    }

    /// Returns a directory, and whether so large a file is stored in attributes there: ext4 has
    /// space for some, tmpfs for all.
    fn place(bytes: usize) -> (tempfile::TempDir, File, bool) {
        let temporary = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let temporary = temporary.unwrap();
        let dir = File::open(temporary.path()).unwrap();
        write(&dir, "probe", &vec![1; bytes], &|| Ok(())).unwrap();
        let puts = attributes(&dir, "probe") > 0;
        (temporary, dir, puts)
    }

    #[test]
    fn what_is_added_is_read_whether_it_is_in_attributes_or_folded() {
        let (temporary, dir, puts) = place(FOLDED_FROM * CHUNK_BYTES);
        let mut expected = Vec::new();
        for of in 1..=80 {
            let bytes = parts(of, 1 + usize::from(of) % 3 * 20);
            append(&dir, "same", &bytes, ALL).unwrap();
            expected.extend_from_slice(&bytes);
            assert_eq!(read(&dir, "same", ALL.1).unwrap(), expected, "{of}");
        }
        assert_eq!(attributes(&dir, "same") > FOLDED_FROM, puts);
        fold(&dir, "same").unwrap();
        assert!(attributes(&dir, "same") == 0 || !puts);
        assert_eq!(read(&dir, "same", ALL.1).unwrap(), expected);
        append(&dir, "same", &parts(81, 1), (PART, expected.len() as u64)).unwrap();
        assert_eq!(
            read(&dir, "same", ALL.1).unwrap(),
            expected,
            "there is no room"
        );
        assert_eq!(read(&dir, "same", 100).unwrap(), expected[..100]);
        // More than fits, and an incomplete part left by a kill.
        File::options()
            .append(true)
            .open(temporary.path().join("same"))
            .unwrap()
            .set_len(expected.len() as u64 + 5)
            .unwrap();
        let many = parts(82, CHUNKS_MAX * CHUNK_BYTES / PART + 1);
        append(&dir, "same", &many, ALL).unwrap();
        expected.extend(many);
        assert_eq!(read(&dir, "same", ALL.1).unwrap(), expected);
        assert_eq!(attributes(&dir, "same"), 0);
    }

    /// After a power cut during a fold, attributes override the data.
    #[test]
    fn what_is_in_attributes_counts_and_a_gap_does_not() {
        let (_temporary, dir, puts) = place(40 * PART);
        if !puts {
            return;
        }
        append(&dir, "same", &parts(1, 40), ALL).unwrap();
        let file = XattrFile::open(&dir, "same", OFlags::RDWR).unwrap().file;
        sys::write_all_at(&file, &parts(9, 100), 0).unwrap();
        let expected = [parts(1, 40), parts(9, 60)].concat();
        assert_eq!(read(&dir, "same", ALL.1).unwrap(), expected);
        for name in ["00100000", "ffffffff", "zz", "+0000001", "1"] {
            let name = [XATTR_PREFIX, name.as_bytes()].concat();
            sys::set_file_xattr(&file, &name, b"forged").unwrap();
        }
        assert_eq!(read(&dir, "same", ALL.1).unwrap(), expected);
    }

    #[test]
    fn what_is_written_anew_is_whole_and_waits_only_where_it_is_synced() {
        let (temporary, dir, puts) = place(3000);
        let (short, long) = (vec![b's'; 3000], vec![b'l'; CHUNKS_MAX * CHUNK_BYTES + 1]);
        // A leftover of a kill.
        std::fs::write(temporary.path().join("note.new"), "left").unwrap();
        for (bytes, synced) in [(&short, !puts), (&long, true), (&short, !puts)] {
            let waited = std::cell::Cell::new(false);
            let before = || {
                waited.set(true);
                Ok(())
            };
            write(&dir, "note", bytes, &before).unwrap();
            assert_eq!(
                (&read(&dir, "note", 1 << 20).unwrap(), waited.get()),
                (bytes, synced)
            );
        }
    }
}
