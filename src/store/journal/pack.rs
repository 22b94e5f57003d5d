//! A packed segment: a closed segment, compressed, without frames that are no longer needed.
//!
//! Frames keep their addresses, so references stay valid, and the chain stays verifiable. The
//! hashes of unchanged frames are recomputed on reading; those of changed and missing frames are
//! stored. The last hash must equal the one in the header.
//!
//! ```text
//! pack    "ckptpack", u32 version = 1, u32 number, 16 B store id, u32 end of its last frame,
//!         link (u64 seq, 32 B hash) that its first frame continues, link of its last frame, u32 bytes of the body,
//!         the body, compressed (Zstandard, RFC 8878), 32 B hash of all of the above
//! body    of each frame in order: uint 2 * kind + changed, uint seq - 1 - durable, uint bytes of payload, payload;
//!         of a changed one then: uint original bytes of the frame, 32 B its original hash
//!         of missing frames: uint 0, uint bytes, uint count, 32 B hash of the last
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use blake3::Hash;
use rustix::fs::OFlags;

use super::codec;
use super::frame::{FrameAt, Gap, Header, JournalKey, Link, OVERHEAD};
use super::segment::{SEGMENT_BYTES, SEGMENT_HEADER};
use crate::at;
use crate::error::{StoreError, StoreResult};
use crate::record::Record;
use ckptfs_sys as sys;

/// First bytes of a pack.
const MAGIC: &[u8; 8] = b"ckptpack";
const VERSION: u32 = 1;
/// Bytes before the body.
const PREFIX: usize = 8 + 4 + 4 + 16 + 4 + LINK + LINK + 4;
const LINK: usize = 8 + 32;
const HASH: usize = 32;
/// Size limit of a body, in bytes: a frame is smaller in it than in a segment.
const BODY_MAX: usize = SEGMENT_BYTES as usize;
/// Zstandard compression level.
const LEVEL: i32 = 9;

/// The directory of the packs, in the journal directory.
const DIR: &str = "packs";

/// Returns the file name of a pack.
pub(super) fn file_name(number: u32) -> String {
    format!("{number:08}")
}

/// Opens the directory of the packs; `None` if it does not exist.
pub(super) fn dir(journal: impl AsFd) -> StoreResult<Option<OwnedFd>> {
    match at::open_dir(journal, DIR) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("open", "journal/packs")(error)),
    }
}

/// A pack in memory.
pub(super) struct Pack {
    first: Link,
    last: Link,
    end: u32,
    items: Vec<Item>,
    /// The payloads, concatenated.
    bytes: Vec<u8>,
}

/// A frame, or a run of missing frames.
struct Item {
    at: u32,
    end: u32,
    /// 0: missing frames.
    kind: u16,
    changed: bool,
    durable: u64,
    /// The link at its end.
    link: Link,
    payload: std::ops::Range<usize>,
}

impl Pack {
    /// Opens and reads a pack; `None` if it does not exist. Fails with `JournalDamaged` at offset 0
    /// if it is incomplete, or does not belong to this segment of this store.
    pub fn open(
        journal: impl AsFd,
        identity: &JournalKey,
        number: u32,
    ) -> StoreResult<Option<Pack>> {
        let Some(dir) = dir(journal)? else {
            return Ok(None);
        };
        let name = file_name(number);
        let file = match at::open_file(dir, &name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("open the journal's segment", name)(error)),
        };
        let bytes = read(&file).map_err(StoreError::io("read the journal's segment", name))?;
        Pack::parse(&bytes, identity, number)
            .map(Some)
            .ok_or(super::segment::damaged(number))
    }

    fn parse(bytes: &[u8], identity: &JournalKey, number: u32) -> Option<Pack> {
        let (said, hash) = bytes.split_last_chunk::<HASH>()?;
        if blake3::keyed_hash(&identity.key, said) != Hash::from_bytes(*hash) {
            return None;
        }
        let (prefix, body) = said.split_at_checked(PREFIX)?;
        let rest = prefix.strip_prefix(&head(identity, number)[..])?;
        let (end, rest) = rest.split_first_chunk::<4>()?;
        let (first, rest) = take_link(rest)?;
        let (last, rest) = take_link(rest)?;
        let body_len = u32::from_le_bytes(rest.try_into().ok()?) as usize;
        let end = u32::from_le_bytes(*end);
        if body_len > BODY_MAX || end > SEGMENT_BYTES {
            return None;
        }
        let body = zstd::bulk::decompress(body, body_len)
            .ok()
            .filter(|body| body.len() == body_len)?;
        let mut pack = Pack {
            first,
            last,
            end,
            items: Vec::new(),
            bytes: Vec::new(),
        };
        pack.unfold(&body, &identity.key)?;
        pack.items.shrink_to_fit();
        pack.bytes.shrink_to_fit();
        Some(pack)
    }

    /// Decodes the frames of a body; `None` if they contradict the header.
    fn unfold(&mut self, mut body: &[u8], key: &[u8; 32]) -> Option<()> {
        let (mut at, mut link) = (SEGMENT_HEADER, self.first);
        let mut raw = Vec::new();
        while !body.is_empty() {
            let what = take(&mut body)?;
            let item = if what == 0 {
                let (bytes, count) = (take(&mut body)?, take(&mut body)?);
                // The count is bounded by the space, because the order check of records relies on
                // it.
                if count == 0 || count > bytes / OVERHEAD as u64 {
                    return None;
                }
                let link = Link {
                    seq: link.seq.checked_add(count)?,
                    hash: take_hash(&mut body)?,
                };
                let end = at.checked_add(u32::try_from(bytes).ok()?)?;
                Item {
                    at,
                    end,
                    kind: 0,
                    changed: false,
                    durable: 0,
                    link,
                    payload: 0..0,
                }
            } else {
                let durable = link.seq.checked_sub(take(&mut body)?)?;
                let len = usize::try_from(take(&mut body)?).ok()?;
                let (payload, rest) = body.split_at_checked(len)?;
                body = rest;
                let (kind, changed) = (u16::try_from(what / 2).ok()?, what % 2 == 1);
                let seq = link.seq.checked_add(1)?;
                let (total, hash) = if changed {
                    (u32::try_from(take(&mut body)?).ok()?, take_hash(&mut body)?)
                } else {
                    let header = Header {
                        len: u32::try_from(payload.len()).ok()?,
                        kind,
                        flags: 0,
                        seq,
                        durable,
                        prev: link.hash,
                    };
                    raw.clear();
                    (
                        u32::try_from(header.total()?).ok()?,
                        header.hash(payload, key, &mut raw),
                    )
                };
                let from = self.bytes.len();
                self.bytes.extend_from_slice(payload);
                Item {
                    at,
                    end: at.checked_add(total)?,
                    kind,
                    changed,
                    durable,
                    link: Link { seq, hash },
                    payload: from..self.bytes.len(),
                }
            };
            if item.end < at.checked_add(OVERHEAD as u32)? || item.end > self.end {
                return None;
            }
            (at, link) = (item.end, item.link);
            self.items.push(item);
        }
        (at == self.end && link == self.last).then_some(())
    }

    /// Returns the link that its first frame continues.
    pub fn first(&self) -> Link {
        self.first
    }

    /// Examines an offset; an offset inside missing frames also returns the gap. The header of a
    /// changed frame has its original length.
    pub fn look(&self, offset: u32) -> FrameAt<'_> {
        if offset == self.end {
            return FrameAt::Nothing;
        }
        let Some(number) = self
            .items
            .partition_point(|item| item.at <= offset)
            .checked_sub(1)
        else {
            return FrameAt::Rubbish;
        };
        let before = number
            .checked_sub(1)
            .and_then(|last| self.items.get(last))
            .map_or(self.first, |item| item.link);
        let Some(item) = self
            .items
            .get(number)
            .filter(|item| item.at == offset || item.kind == 0 && offset < item.end)
        else {
            return FrameAt::Rubbish;
        };
        if item.kind == 0 {
            return FrameAt::Gap(Gap {
                before,
                after: item.link,
                end: item.end,
            });
        }
        let Some(payload) = self.bytes.get(item.payload.clone()) else {
            return FrameAt::Rubbish;
        };
        let header = Header {
            len: (item.end - item.at).saturating_sub(OVERHEAD as u32),
            kind: item.kind,
            flags: u16::from(item.changed),
            seq: item.link.seq,
            durable: item.durable,
            prev: before.hash,
        };
        FrameAt::Frame(header, payload, item.link.hash)
    }
}

/// A pack under construction.
pub(super) struct Packer {
    first: Link,
    last: Link,
    end: u32,
    body: Vec<u8>,
    /// Bytes and number of frames left out since the last included one.
    gap: (u32, u64),
    /// The pack omits data of its source.
    pub is_less: bool,
}

impl Packer {
    /// Begins the pack of a segment whose first frame continues `first`.
    pub fn new(first: Link) -> Packer {
        Packer {
            first,
            last: first,
            end: SEGMENT_HEADER,
            body: Vec::new(),
            gap: (0, 0),
            is_less: false,
        }
    }

    /// Returns the link of the last frame.
    pub fn last(&self) -> Link {
        self.last
    }

    /// Adds a frame unchanged.
    pub fn keep(&mut self, header: &Header, payload: &[u8], hash: Hash) {
        self.end_gap();
        let changed = header.flags != 0;
        self.frame(header, payload, changed);
        if changed {
            codec::encode_uint(u64::from(header.len) + OVERHEAD as u64, &mut self.body);
            self.body.extend_from_slice(hash.as_bytes());
        }
        self.pass(header, hash);
    }

    /// Adds a frame with a smaller record. Fails if that cannot be encoded.
    pub fn change(&mut self, header: &Header, less: &Record, hash: Hash) -> StoreResult<()> {
        let mut payload = Vec::new();
        codec::encode(less, &mut payload)?;
        self.end_gap();
        self.frame(header, &payload, true);
        codec::encode_uint(u64::from(header.len) + OVERHEAD as u64, &mut self.body);
        self.body.extend_from_slice(hash.as_bytes());
        self.pass(header, hash);
        self.is_less = true;
        Ok(())
    }

    /// Leaves a frame out.
    pub fn leave_out(&mut self, header: &Header, hash: Hash) {
        let bytes = header.len.saturating_add(OVERHEAD as u32);
        self.gap = (self.gap.0.saturating_add(bytes), self.gap.1 + 1);
        self.pass(header, hash);
        self.is_less = true;
    }

    /// Adds a run of missing frames.
    pub fn pass_gap(&mut self, offset: u32, gap: &Gap) {
        let count = gap.after.seq.saturating_sub(gap.before.seq);
        self.gap = (
            self.gap.0.saturating_add(gap.end.saturating_sub(offset)),
            self.gap.1.saturating_add(count),
        );
        (self.end, self.last) = (gap.end, gap.after);
    }

    fn frame(&mut self, header: &Header, payload: &[u8], changed: bool) {
        codec::encode_uint(
            u64::from(header.kind) * 2 + u64::from(changed),
            &mut self.body,
        );
        codec::encode_uint(
            header.seq.saturating_sub(1).saturating_sub(header.durable),
            &mut self.body,
        );
        codec::encode_uint(payload.len() as u64, &mut self.body);
        self.body.extend_from_slice(payload);
    }

    fn pass(&mut self, header: &Header, hash: Hash) {
        self.end = self
            .end
            .saturating_add(header.len)
            .saturating_add(OVERHEAD as u32);
        self.last = Link {
            seq: header.seq,
            hash,
        };
    }

    fn end_gap(&mut self) {
        let (bytes, count) = std::mem::take(&mut self.gap);
        if count > 0 {
            self.body.push(0);
            codec::encode_uint(u64::from(bytes), &mut self.body);
            codec::encode_uint(count, &mut self.body);
            self.body.extend_from_slice(self.last.hash.as_bytes());
        }
    }

    /// Returns the encoded pack.
    ///
    /// Errors: `TooBig`, `Io`.
    pub fn finish(mut self, identity: &JournalKey, number: u32) -> StoreResult<Vec<u8>> {
        self.end_gap();
        let body_len = u32::try_from(self.body.len())
            .ok()
            .filter(|len| *len as usize <= BODY_MAX);
        let body_len = body_len.ok_or(StoreError::TooBig {
            bytes: self.body.len(),
        })?;
        let mut bytes = head(identity, number);
        bytes.extend_from_slice(&self.end.to_le_bytes());
        for link in [self.first, self.last] {
            bytes.extend_from_slice(&link.seq.to_le_bytes());
            bytes.extend_from_slice(link.hash.as_bytes());
        }
        bytes.extend_from_slice(&body_len.to_le_bytes());
        let packed = zstd::bulk::compress(&self.body, LEVEL)
            .map_err(StoreError::io("compress", file_name(number)))?;
        bytes.extend_from_slice(&packed);
        let hash = blake3::keyed_hash(&identity.key, &bytes);
        bytes.extend_from_slice(hash.as_bytes());
        Ok(bytes)
    }
}

/// Reports whether these bytes are a complete pack of this segment.
pub(super) fn is_whole(bytes: &[u8], identity: &JournalKey, number: u32) -> bool {
    Pack::parse(bytes, identity, number).is_some()
}

/// Replaces a segment, packed or not, by a pack. Durable on return; on failure nothing has changed.
pub(super) fn put(
    journal: impl AsFd,
    identity: &JournalKey,
    number: u32,
    bytes: &[u8],
) -> StoreResult<()> {
    let (journal, name) = (journal.as_fd(), file_name(number));
    if at::make_dir(journal, DIR).map_err(StoreError::io("make", "journal/packs"))? {
        // Makes a new directory durable with its parent.
        at::sync_in_order(journal).map_err(StoreError::io("sync", "journal"))?;
    }
    let dir = &dir(journal)?.ok_or(StoreError::NotAStore)?;
    let unfinished = format!("{name}.new");
    let made = (|| -> io::Result<bool> {
        let file = at::open_file(
            dir,
            &unfinished,
            OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        )?;
        sys::write_all_at(&file, bytes, 0)?;
        sys::fsync(&file)?;
        // The old data is removed only if the pack can be read back.
        if !is_whole(&read(&file)?, identity, number) {
            return Ok(false);
        }
        at::rename(dir, &unfinished, &name)?;
        at::sync_dir(dir)?;
        Ok(true)
    })();
    if !matches!(made, Ok(true)) {
        let _ = at::remove_tree(dir, unfinished.as_bytes());
    }
    match made {
        Ok(true) => remove_raw(journal, number),
        Ok(false) => Err(super::segment::damaged(number)),
        Err(error) => Err(StoreError::io("write the journal's segment", name)(error)),
    }
}

/// Removes a segment that has a pack.
pub(super) fn remove_raw(journal: impl AsFd, number: u32) -> StoreResult<()> {
    let name = super::segment::file_name(number);
    at::remove_tree(journal, name.as_bytes())
        .map_err(StoreError::io("remove the journal's segment", name))
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    let size = usize::try_from(size)
        .ok()
        .filter(|size| *size <= 2 * BODY_MAX)
        .ok_or(io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; size];
    let filled = sys::read_full_at(file, &mut bytes, 0)?;
    bytes.truncate(filled);
    Ok(bytes)
}

fn head(identity: &JournalKey, number: u32) -> Vec<u8> {
    [
        &MAGIC[..],
        &VERSION.to_le_bytes(),
        &number.to_le_bytes(),
        &identity.id.0,
    ]
    .concat()
}

fn take_link(bytes: &[u8]) -> Option<(Link, &[u8])> {
    let (seq, rest) = bytes.split_first_chunk::<8>()?;
    let (hash, rest) = rest.split_first_chunk::<HASH>()?;
    Some((
        Link {
            seq: u64::from_le_bytes(*seq),
            hash: Hash::from_bytes(*hash),
        },
        rest,
    ))
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    codec::decode_uint(bytes).ok()
}

fn take_hash(bytes: &mut &[u8]) -> Option<Hash> {
    let (hash, rest) = bytes.split_first_chunk::<HASH>()?;
    *bytes = rest;
    Some(Hash::from_bytes(*hash))
}
