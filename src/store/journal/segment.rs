//! Segment files: creation, opening, listing, and block-wise reading. The parent module has the
//! byte layout.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::frame::{self, FrameAt, Header, JournalKey, Link};
use super::pack::{self, Pack};
use crate::at;
use crate::error::{StoreError, StoreResult};
use crate::ids::Address;
use ckptfs_sys::{self as sys, Errno};

/// Size of a segment, in bytes.
pub(super) const SEGMENT_BYTES: u32 = 8 << 20;
/// Bytes before the first frame of a segment.
pub(super) const SEGMENT_HEADER: u32 = 64;
/// First bytes of a segment.
const MAGIC: &[u8; 8] = b"ckptjrnl";
/// Version of the segment header and frames.
const VERSION: u32 = 1;
/// Smallest useful preallocation of a segment, in bytes.
pub(super) const PREALLOCATED_MIN: u32 = 64 << 10;
/// Read size of a [`SegmentReader`], in bytes.
const BLOCK: usize = 256 << 10;

/// Returns the file name of a segment.
pub(super) fn file_name(number: u32) -> String {
    format!("{number:08}")
}

/// Returns the numbers of all segments and of the packed ones, sorted. Other files are ignored.
pub(super) fn list(dir: impl AsFd) -> StoreResult<(Vec<u32>, Vec<u32>)> {
    let numbers = |dir: BorrowedFd<'_>| -> StoreResult<Vec<u32>> {
        let names = at::names(dir).map_err(StoreError::io("list", "journal"))?;
        let number = |name: Vec<u8>| {
            let text = String::from_utf8(name).ok()?;
            let number = text.parse().ok()?;
            (file_name(number) == text && number > 0).then_some(number)
        };
        let mut numbers: Vec<u32> = names.into_iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    };
    // In this order, so that a segment packed during the call is in at least one of the two lists.
    let mut all = numbers(dir.as_fd())?;
    let packed = pack::dir(dir.as_fd())?
        .map(|packs| numbers(packs.as_fd()))
        .transpose()?
        .unwrap_or_default();
    all.extend(&packed);
    all.sort_unstable();
    all.dedup();
    Ok((all, packed))
}

fn header(identity: &JournalKey, number: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEGMENT_HEADER as usize);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&identity.id.0);
    let hash = blake3::keyed_hash(&identity.key, &bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

/// Returns the error for a segment that is missing, incomplete, or of another store.
pub(super) fn damaged(segment: u32) -> StoreError {
    StoreError::JournalDamaged { segment, offset: 0 }
}

/// Opens a segment. Fails with `JournalDamaged` at offset 0 if the header does not match this
/// segment of this store.
pub(super) fn open(
    dir: impl AsFd,
    identity: &JournalKey,
    number: u32,
    write: bool,
) -> StoreResult<File> {
    let name = file_name(number);
    let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let file = at::open_file(dir, &name, flags)
        .map_err(StoreError::io("open the journal's segment", &name))?;
    let mut found = [0; SEGMENT_HEADER as usize];
    let damaged = damaged(number);
    match read_up_to(&file, &mut found, 0) {
        Ok(_) if found.as_slice() == header(identity, number) => Ok(file),
        Ok(_) => Err(damaged),
        Err(error) => Err(StoreError::io("read the journal's segment", name)(error)),
    }
}

/// Creates a segment with its header, preallocating `bytes` where the filesystem supports it. With
/// `synced`, name, size and header are durable on return, so that later writes need only
/// fdatasync(2). On failure no segment exists.
pub(super) fn make(
    dir: impl AsFd,
    identity: &JournalKey,
    number: u32,
    bytes: u32,
    synced: bool,
) -> StoreResult<File> {
    let dir = dir.as_fd();
    let (name, unfinished) = (file_name(number), format!("new-{number:08}"));
    let made = (|| -> io::Result<File> {
        let file = at::open_file(
            dir,
            &unfinished,
            OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        )?;
        sys::write_in_place(&file);
        preallocate(&file, bytes)?;
        sys::write_all_at(&file, &header(identity, number), 0)?;
        if synced {
            sys::fsync(&file)?;
        }
        at::rename(dir, &unfinished, &name)?;
        if synced {
            // A tail file in the directory must not reach the disk before other changes of that
            // time: the witness would exist without the tree.
            at::sync_in_order(dir)?;
        }
        Ok(file)
    })();
    made.map_err(|error| {
        // Frees space that was allocated before the disk was full.
        let _ = rustix::fs::unlinkat(dir, &unfinished, rustix::fs::AtFlags::empty());
        StoreError::io("make the journal's segment", name)(error)
    })
}

/// Allocates space that reads as zeros, on a nearly full filesystem as much as is available.
/// Without support for this, the segment grows with each write.
fn preallocate(file: &File, bytes: u32) -> io::Result<()> {
    let mut bytes = bytes;
    loop {
        match preallocate_all(file, bytes) {
            Err(error)
                if error.raw_os_error() == Some(Errno::ENOSPC.0) && bytes > PREALLOCATED_MIN =>
            {
                sys::truncate(file, 0)?;
                bytes = (bytes / 4).max(PREALLOCATED_MIN);
            }
            result => return result,
        }
    }
}

/// Returns the size of a segment file, in bytes.
pub(super) fn size(file: &File) -> u32 {
    file.metadata().map_or(0, |metadata| {
        u32::try_from(metadata.len()).unwrap_or(u32::MAX)
    })
}

/// Allocates space up to `wanted`, if possible somewhat more, but not above `max`. Returns the end
/// of the allocated space, `u32::MAX` if the filesystem cannot preallocate.
pub(super) fn extend(file: &File, wanted: u32, max: u32) -> io::Result<u32> {
    let generous = wanted.next_multiple_of(PREALLOCATED_MIN).min(max);
    for upto in [generous, wanted] {
        match sys::fallocate(file, 0, 0, u64::from(upto)) {
            Ok(()) => return Ok(upto.max(size(file))),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => return Ok(u32::MAX),
            Err(Errno::ENOSPC) if upto > wanted => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(size(file))
}

fn preallocate_all(file: &File, bytes: u32) -> io::Result<()> {
    match sys::fallocate(file, 0, 0, u64::from(bytes)) {
        // macOS allocates the space without changing the size.
        Ok(()) => Ok(sys::truncate(file, u64::from(bytes))?),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Fills `buf` from `offset` up to the end of the file; returns the number of bytes read.
pub(super) fn read_up_to(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    Ok(sys::read_full_at(file, buf, offset)?)
}

/// Reports whether nothing was written at `offset`: no frame has a header of zeros.
pub(super) fn is_blank(file: &File, offset: u64) -> bool {
    let mut begin = [0; frame::HEADER];
    read_up_to(file, &mut begin, offset).is_ok_and(|_| begin.iter().all(|byte| *byte == 0))
}

/// An open segment for reading.
#[derive(Clone)]
pub(super) enum SegmentSource {
    File(Arc<File>),
    Pack(Arc<Pack>),
}

impl SegmentSource {
    /// Opens a segment, packed or not. Fails with `JournalDamaged` at offset 0 if it does not
    /// belong to this segment of this store.
    pub fn open(dir: impl AsFd, identity: &JournalKey, number: u32) -> StoreResult<SegmentSource> {
        let dir = dir.as_fd();
        let packed = || -> StoreResult<Option<SegmentSource>> {
            Ok(Pack::open(dir, identity, number)?.map(|pack| SegmentSource::Pack(Arc::new(pack))))
        };
        if let Some(pack) = packed()? {
            return Ok(pack);
        }
        match open(dir, identity, number, false) {
            // It may just have been packed.
            Err(error) if error.errno() == Errno::ENOENT => packed()?.ok_or(error),
            file => Ok(SegmentSource::File(Arc::new(file?))),
        }
    }

    pub fn is_packed(&self) -> bool {
        matches!(self, SegmentSource::Pack(_))
    }
}

/// Reads a segment sequentially.
pub(super) struct SegmentReader {
    number: u32,
    from: From,
}

enum From {
    File(Blocks),
    Pack(Arc<Pack>),
}

/// Reads a segment file in large blocks.
struct Blocks {
    file: Arc<File>,
    number: u32,
    begin: u32,
    /// Bytes from this offset on are not needed.
    end: u32,
    bytes: Vec<u8>,
}

impl SegmentReader {
    pub fn new(source: SegmentSource, number: u32, end: u32) -> SegmentReader {
        let from = match source {
            SegmentSource::File(file) => From::File(Blocks {
                file,
                number,
                begin: 0,
                end,
                bytes: Vec::new(),
            }),
            SegmentSource::Pack(pack) => From::Pack(pack),
        };
        SegmentReader { number, from }
    }

    /// Returns the number of the segment.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Examines this offset.
    pub fn look(&mut self, offset: u32, key: &[u8; 32]) -> StoreResult<FrameAt<'_>> {
        match &mut self.from {
            From::Pack(pack) => Ok(pack.look(offset)),
            From::File(blocks) => {
                let header = Header::parse(blocks.bytes(offset, frame::HEADER)?);
                let need = header
                    .filter(Header::plausible)
                    .and_then(|header| header.total())
                    .unwrap_or(frame::HEADER);
                Ok(frame::look(blocks.bytes(offset, need)?, key))
            }
        }
    }

    /// Returns the link that the first frame continues, and the number up to which all frames were
    /// on disk when it was written; `None` if no complete frame exists.
    pub fn first(&mut self, key: &[u8; 32]) -> StoreResult<Option<(Link, u64)>> {
        // Only frames on disk are packed.
        if let From::Pack(pack) = &self.from {
            return Ok(Some((pack.first(), pack.first().seq)));
        }
        Ok(match self.look(SEGMENT_HEADER, key)? {
            FrameAt::Frame(header, _, _) => Some((header.before(), header.durable)),
            FrameAt::Gap(_) | FrameAt::Nothing | FrameAt::Rubbish => None,
        })
    }

    /// Returns the end of the frame at `offset`.
    pub fn end_of(&self, offset: u32, header: &Header) -> Address {
        let total = header
            .total()
            .and_then(|total| u32::try_from(total).ok())
            .unwrap_or(u32::MAX);
        Address {
            segment: self.number,
            offset: offset.saturating_add(total),
        }
    }
}

impl Blocks {
    /// Returns the bytes from an offset on: at least `need`, or up to the end of the file.
    fn bytes(&mut self, offset: u32, need: usize) -> StoreResult<&[u8]> {
        let from = offset.checked_sub(self.begin).map(|from| from as usize);
        let from = match from {
            Some(from)
                if self
                    .bytes
                    .len()
                    .checked_sub(from)
                    .is_some_and(|have| have >= need) =>
            {
                from
            }
            _ => {
                let left = self.end.saturating_sub(offset) as usize;
                let wanted = need.max(BLOCK.min(left));
                if self.bytes.len() < wanted {
                    self.bytes = vec![0; wanted];
                }
                self.bytes.truncate(wanted);
                let filled = read_up_to(&self.file, &mut self.bytes, u64::from(offset));
                let filled = filled.map_err(StoreError::io(
                    "read the journal's segment",
                    file_name(self.number),
                ))?;
                self.bytes.truncate(filled);
                self.begin = offset;
                0
            }
        };
        Ok(self.bytes.get(from..).unwrap_or_default())
    }
}
