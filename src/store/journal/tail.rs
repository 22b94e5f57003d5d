//! The tail: a second copy of the records appended since the last sync, in extended attributes.
//!
//! Frames are file data; the changes they describe are metadata. XFS and btrfs write metadata to
//! disk in order, but data at any time. A power cut could thus leave a rename without the record
//! made before it, and a view would show a wrong state undetectably. Extended attributes are
//! metadata, so each append also stores its bytes there: if a change is on disk, its record is.
//!
//! A sync begins a new tail file and removes the older ones once their frames are on disk. The name
//! of a tail file contains the end of the journal at its creation. Name and content form the
//! **witness**: the journal position up to which the tree is on disk. No operation recorded beyond
//! it is on disk (on btrfs, except for changes that an application synced).
//!
//! ```text
//! journal/tail-SSSSSSSS-OOOOOOOO     segment and offset, hexadecimal; empty, mode 0600
//!   user.ckptfs.SSSSSSSSOOOOOOOO     bytes of the journal from this address on, up to 2,000
//! ```
//! On a filesystem without such attributes no tail exists, and records not yet synced are lost in a
//! power cut.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, OFlags};

use super::segment::{self, SEGMENT_BYTES, SEGMENT_HEADER};
use crate::at;
use crate::error::{StoreError, StoreResult};
use crate::ids::Address;
use ckptfs_sys::{self as sys, Errno};

/// Size of an attribute, in bytes: XFS stores values above 3,072 outside its log, and ext4 has
/// space for about 4,000 in total.
const CHUNK_BYTES: usize = 2000;
/// A longer append, in bytes, is synced instead.
const APPEND_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of attributes of a file: the kernel lists up to 64 KiB of names, 2,259 of this
/// length.
const CHUNKS_MAX: usize = 1024;
const FILE_PREFIX: &str = "tail-";
const NAME_PREFIX: &[u8] = crate::layout::XATTR_PREFIX;

/// The tail of an open journal.
#[derive(Debug)]
pub(super) struct JournalTail {
    dir: OwnedFd,
    /// The current file, and its number of attributes.
    current: Option<(File, usize)>,
    /// All tail files, the current one last.
    names: Vec<String>,
    /// The filesystem does not support such attributes.
    unsupported: bool,
}

pub(super) fn file_name(at: Address) -> String {
    format!("{FILE_PREFIX}{:08x}-{:08x}", at.segment, at.offset)
}

pub(super) fn chunk_name(at: Address) -> Vec<u8> {
    [
        NAME_PREFIX,
        format!("{:08x}{:08x}", at.segment, at.offset).as_bytes(),
    ]
    .concat()
}

fn parse(digits: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(digits)
        .ok()
        .filter(|text| text.len() == 8 && !text.starts_with('+'))?;
    u32::from_str_radix(text, 16).ok()
}

/// Splits an append into chunks with their addresses.
fn chunks(at: Address, bytes: &[u8]) -> impl Iterator<Item = (Address, &[u8])> {
    let offsets = (at.offset..).step_by(CHUNK_BYTES);
    offsets
        .zip(bytes.chunks(CHUNK_BYTES))
        .map(move |(offset, chunk)| {
            (
                Address {
                    segment: at.segment,
                    offset,
                },
                chunk,
            )
        })
}

impl JournalTail {
    /// Returns the tail of the journal in `dir`. The old tail files `names` have been read, and the
    /// next sync removes them.
    pub(super) fn new(dir: OwnedFd, names: Vec<String>) -> JournalTail {
        JournalTail {
            dir,
            current: None,
            names,
            unsupported: sys::host::left_out("tail"),
        }
    }

    /// Stores the bytes appended at `at`. Returns `false` if they cannot be stored, so that the
    /// append must be synced for the same durability.
    pub(super) fn put(&mut self, at: Address, bytes: &[u8]) -> bool {
        if self.unsupported {
            return true;
        }
        if bytes.len() > APPEND_BYTES_MAX {
            return false;
        }
        match self.try_put(at, bytes) {
            Ok(()) => true,
            Err(Errno::EOPNOTSUPP) => {
                self.unsupported = true;
                true
            }
            // The file is full (ext4); continue in a new one.
            Err(Errno::ENOSPC | Errno::E2BIG | Errno::ERANGE) if self.begin(at).is_ok() => {
                self.try_put(at, bytes).is_ok()
            }
            Err(_) => false,
        }
    }

    fn try_put(&mut self, at: Address, bytes: &[u8]) -> Result<(), Errno> {
        if self
            .current
            .as_ref()
            .is_none_or(|(_, count)| *count >= CHUNKS_MAX)
        {
            self.begin(at)?;
        }
        let (file, count) = self.current.as_mut().ok_or(Errno::EIO)?;
        *count += bytes.len().div_ceil(CHUNK_BYTES);
        chunks(at, bytes)
            .try_for_each(|(at, chunk)| sys::set_file_xattr(file, &chunk_name(at), chunk))
    }

    /// Begins a new file at the journal end `at`.
    fn begin(&mut self, at: Address) -> Result<(), Errno> {
        // A file that ext4 filled may have the name already.
        let name = (0..).map(|turn| {
            if turn == 0 {
                file_name(at)
            } else {
                format!("{}-{turn}", file_name(at))
            }
        });
        let name = name
            .take(64)
            .find(|name| !self.names.contains(name))
            .ok_or(Errno::EEXIST)?;
        let file =
            at::open_file(&self.dir, &name, OFlags::RDWR | OFlags::CREATE).map_err(Errno::from)?;
        self.current = Some((file, 0));
        self.names.push(name);
        Ok(())
    }

    /// Removes the attributes of a failed append.
    pub(super) fn take_back(&self, at: Address, bytes: &[u8]) {
        let Some((file, _)) = &self.current else {
            return;
        };
        for (at, _) in chunks(at, bytes) {
            let _ = sys::remove_file_xattr(file, &chunk_name(at));
        }
    }

    /// Empties the tail, because all frames are on disk. Returns the files to remove.
    pub(super) fn clear(&mut self) -> Vec<String> {
        self.current = None;
        std::mem::take(&mut self.names)
    }

    /// Begins a new file for a sync of the journal up to `at`. Returns the files to remove after
    /// the sync.
    pub(super) fn turn(&mut self, at: Address) -> Vec<String> {
        if self.unsupported || self.begin(at).is_err() {
            return Vec::new();
        }
        let old = self.names.len().saturating_sub(1);
        self.names.drain(..old).collect()
    }

    /// Puts back names that could not be removed.
    pub(super) fn keep(&mut self, mut names: Vec<String>) {
        names.append(&mut self.names);
        self.names = names;
    }
}

/// Removes tail files; returns those that remain.
pub(super) fn remove(dir: impl AsFd, names: Vec<String>) -> Vec<String> {
    let stays = |name: &String| {
        !matches!(
            rustix::fs::unlinkat(&dir, name, AtFlags::empty()),
            Ok(()) | Err(rustix::io::Errno::NOENT)
        )
    };
    names.into_iter().filter(stays).collect()
}

/// As [`remove`], for files followed by a later one with at least the same witness.
///
/// On XFS their attributes are removed first. Kernels without commit b854e1c4eff3 ("xfs: close
/// crash window in attr dabtree inactivation", 2026) free the attribute blocks of an unlinked file
/// in steps. A power cut between two of them leaves an inode that only `xfs_repair` can remove.
pub(super) fn remove_old(dir: impl AsFd, names: Vec<String>) -> Vec<String> {
    let dir = dir.as_fd();
    if sys::statfs_fd(dir).is_ok_and(|info| sys::fs_name(info.fs_type) == "xfs") {
        names.iter().for_each(|name| remove_attributes(dir, name));
    }
    remove(dir, names)
}

/// Attributes that cannot be removed are freed with the file.
fn remove_attributes(dir: BorrowedFd<'_>, name: &str) {
    let Ok(file) = at::open_file(dir, name, OFlags::RDWR) else {
        return;
    };
    for attribute in sys::listxattr(&file).unwrap_or_default() {
        let _ = rustix::fs::fremovexattr(&file, attribute.as_slice());
    }
}

/// The content of the tail files of a journal.
#[derive(Debug, Default)]
pub(super) struct TailContents {
    /// The files.
    pub(super) names: Vec<String>,
    /// The journal position up to which the tree is on disk, if a tail exists.
    pub(super) witness: Option<Address>,
    /// Last change of any of them, nanoseconds since 1970. Each append changes an attribute and so
    /// the ctime, atomically with the record that it stores.
    pub(super) written_ns: Option<i64>,
    /// Bytes of the journal, by address.
    chunks: Vec<(Address, Vec<u8>)>,
}

/// Reads the tail files.
pub(super) fn read(dir: impl AsFd) -> StoreResult<TailContents> {
    let mut found = TailContents::default();
    let mut names: Vec<(Address, String)> = at::names(&dir)
        .map_err(StoreError::io("list", "journal"))?
        .iter()
        .filter_map(|name| parse_file(name))
        .collect();
    names.sort();
    for (made, name) in names {
        found.witness = found.witness.max(Some(made));
        let file =
            at::open_file(&dir, &name, OFlags::RDONLY).map_err(StoreError::io("open", &name))?;
        let ctime = sys::stat_fd(&file)
            .map_err(|errno| StoreError::io("stat", &name)(std::io::Error::from(errno)))?
            .ctime;
        let ctime_ns = ctime.nanoseconds();
        found.written_ns = found.written_ns.max(Some(ctime_ns));
        let attributes = sys::all_xattrs(&file)
            .map_err(|errno| StoreError::io("read", &name)(std::io::Error::from(errno)))?;
        for (attribute, bytes) in attributes {
            let Some(digits) = attribute
                .strip_prefix(NAME_PREFIX)
                .filter(|digits| digits.len() == 16)
            else {
                continue;
            };
            let (Some(segment), Some(offset)) = (
                digits.get(..8).and_then(parse),
                digits.get(8..).and_then(parse),
            ) else {
                continue;
            };
            let Some(end) = u32::try_from(bytes.len())
                .ok()
                .and_then(|len| offset.checked_add(len))
                .filter(|end| *end <= SEGMENT_BYTES)
            else {
                continue;
            };
            if offset < SEGMENT_HEADER || bytes.is_empty() {
                continue;
            }
            found.witness = found.witness.max(Some(Address {
                segment,
                offset: end,
            }));
            found.chunks.push((Address { segment, offset }, bytes));
        }
        found.names.push(name);
    }
    Ok(found)
}

fn parse_file(name: &[u8]) -> Option<(Address, String)> {
    let text = std::str::from_utf8(name).ok()?;
    let digits = text.strip_prefix(FILE_PREFIX)?.as_bytes();
    let (segment, offset) = (
        digits.get(..8).and_then(parse)?,
        digits.get(9..17).and_then(parse)?,
    );
    (digits.get(8) == Some(&b'-')).then(|| (Address { segment, offset }, text.to_owned()))
}

impl TailContents {
    /// Writes bytes that the segments lack from `end` on; returns `true` if any were written.
    /// Everything before `end` is intact.
    pub(super) fn fill(&self, dir: impl AsFd, end: Address) -> StoreResult<bool> {
        let mut filled = false;
        for (at, bytes) in &self.chunks {
            // Bytes before the end are intact and never overwritten, whatever the tail contains.
            let before = if at.segment == end.segment {
                end.offset.saturating_sub(at.offset) as usize
            } else {
                0
            };
            let Some(bytes) = bytes
                .get(before..)
                .filter(|bytes| !bytes.is_empty() && at.segment >= end.segment)
            else {
                continue;
            };
            let at = Address {
                segment: at.segment,
                offset: at.offset + before as u32,
            };
            let name = segment::file_name(at.segment);
            let failed = || StoreError::io("mend the journal's segment", &name);
            let file = match at::open_file(&dir, &name, OFlags::RDWR) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed()(error)),
            };
            let mut there = vec![0; bytes.len()];
            let read =
                segment::read_up_to(&file, &mut there, u64::from(at.offset)).map_err(failed())?;
            if there.get(..read) != Some(bytes) {
                let written = sys::write_all_at(&file, bytes, u64::from(at.offset));
                written.map_err(|errno| failed()(std::io::Error::from(errno)))?;
                filled = true;
            }
        }
        Ok(filled)
    }
}
