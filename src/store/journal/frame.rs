//! A frame: header, payload, hash. The parent module has the byte layout.

use blake3::Hash;

use super::codec;
use crate::error::CodecError;
use crate::layout::StoreId;
use crate::record::Record;

/// Bytes before the payload.
pub(super) const HEADER: usize = 56;
/// Bytes after the payload.
pub(super) const HASH: usize = 32;
/// Bytes of a frame in addition to the payload.
pub(super) const OVERHEAD: usize = HEADER + HASH;
/// Size limit of a frame, in bytes.
pub(super) const FRAME_MAX: usize = OVERHEAD + codec::PAYLOAD_MAX;

/// The end of a chain of frames, which the next frame continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Number of the last frame; 0 before the first.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

/// The store of a journal.
pub(super) struct JournalKey {
    pub id: StoreId,
    pub key: [u8; 32],
}

impl JournalKey {
    pub fn new(id: StoreId) -> JournalKey {
        JournalKey {
            id,
            key: blake3::derive_key("ckptfs journal v1", &id.0),
        }
    }

    /// Returns the link that the first frame continues.
    pub fn genesis(&self) -> Link {
        Link {
            seq: 0,
            hash: blake3::keyed_hash(&self.key, b""),
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of payload.
    pub len: u32,
    /// Kind of record.
    pub kind: u16,
    /// Zero.
    pub flags: u16,
    /// Number of the frame.
    pub seq: u64,
    /// All frames up to this number were on disk when this one was written.
    pub durable: u64,
    /// Hash of the previous frame.
    pub prev: Hash,
}

impl Header {
    /// Returns the link that the frame continues.
    pub fn before(&self) -> Link {
        Link {
            seq: self.seq.saturating_sub(1),
            hash: self.prev,
        }
    }

    /// Returns the hash of the frame with this payload; `raw` is a buffer for its bytes.
    pub fn hash(&self, payload: &[u8], key: &[u8; 32], raw: &mut Vec<u8>) -> Hash {
        raw.extend_from_slice(&self.bytes());
        raw.extend_from_slice(payload);
        blake3::keyed_hash(key, raw)
    }

    fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let fields: [&[u8]; 6] = [
            &self.len.to_le_bytes(),
            &self.kind.to_le_bytes(),
            &self.flags.to_le_bytes(),
            &self.seq.to_le_bytes(),
            &self.durable.to_le_bytes(),
            self.prev.as_bytes(),
        ];
        let mut rest = bytes.as_mut_slice();
        for field in fields {
            if let Some((space, after)) =
                std::mem::take(&mut rest).split_at_mut_checked(field.len())
            {
                space.copy_from_slice(field);
                rest = after;
            }
        }
        bytes
    }

    /// Parses a header if there are enough bytes; it may still be invalid.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let (flags, rest) = rest.split_first_chunk::<2>()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let (durable, rest) = rest.split_first_chunk::<8>()?;
        let (prev, _) = rest.split_first_chunk::<32>()?;
        Some(Header {
            len: u32::from_le_bytes(*len),
            kind: u16::from_le_bytes(*kind),
            flags: u16::from_le_bytes(*flags),
            seq: u64::from_le_bytes(*seq),
            durable: u64::from_le_bytes(*durable),
            prev: Hash::from_bytes(*prev),
        })
    }

    /// Reports whether the values are possible; rejects most invalid data without a hash.
    pub fn plausible(&self) -> bool {
        self.flags == 0
            && (1..=codec::KIND_MAX).contains(&self.kind)
            && self.len as usize <= codec::PAYLOAD_MAX
            && self.durable < self.seq
    }

    /// Returns the size of the whole frame; `None` above the limit.
    pub fn total(&self) -> Option<usize> {
        (self.len as usize)
            .checked_add(OVERHEAD)
            .filter(|total| *total <= FRAME_MAX)
    }
}

/// Frames missing in a packed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// The link that the first of them continued.
    pub before: Link,
    /// The link that the next frame continues.
    pub after: Link,
    /// The offset of the next frame.
    pub end: u32,
}

/// The data at an offset where a frame may begin.
#[derive(Debug)]
pub(super) enum FrameAt<'a> {
    /// A complete frame: header, payload, its hash.
    Frame(Header, &'a [u8], Hash),
    /// Frames that were left out of a pack.
    Gap(Gap),
    /// Zeros, or the end of the file.
    Nothing,
    /// Anything else.
    Rubbish,
}

/// Examines the bytes at an offset. They must reach to the end of the frame or of the file.
pub(super) fn look<'a>(bytes: &'a [u8], key: &[u8; 32]) -> FrameAt<'a> {
    let head = bytes.get(..HEADER).unwrap_or(bytes);
    if head.iter().all(|b| *b == 0) {
        return FrameAt::Nothing;
    }
    let Some(header) = Header::parse(bytes).filter(Header::plausible) else {
        return FrameAt::Rubbish;
    };
    let whole = header
        .total()
        .and_then(|total| bytes.get(..total))
        .and_then(|frame| frame.split_last_chunk::<HASH>());
    let Some((body, hash)) = whole else {
        return FrameAt::Rubbish;
    };
    let hash = Hash::from_bytes(*hash);
    match body.get(HEADER..) {
        Some(payload) if blake3::keyed_hash(key, body) == hash => {
            FrameAt::Frame(header, payload, hash)
        }
        _ => FrameAt::Rubbish,
    }
}

/// Appends the frame of a record that continues `link`, and returns the new end of the chain. On
/// failure `out` is unchanged.
pub(super) fn push(
    out: &mut Vec<u8>,
    key: &[u8; 32],
    link: Link,
    durable: u64,
    record: &Record,
) -> Result<Link, CodecError> {
    let begin = out.len();
    out.resize(begin + HEADER, 0);
    let kind = codec::encode(record, out).inspect_err(|_| out.truncate(begin))?;
    let len = u32::try_from(out.len() - begin - HEADER).map_err(|_| CodecError::Limit)?;
    let header = Header {
        len,
        kind,
        flags: 0,
        seq: link.seq.saturating_add(1),
        durable,
        prev: link.hash,
    };
    if let Some(space) = out.get_mut(begin..begin + HEADER) {
        space.copy_from_slice(&header.bytes());
    }
    let hash = blake3::keyed_hash(key, out.get(begin..).unwrap_or_default());
    out.extend_from_slice(hash.as_bytes());
    Ok(Link {
        seq: header.seq,
        hash,
    })
}
