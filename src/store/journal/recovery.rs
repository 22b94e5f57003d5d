//! Finds the end of the journal and distinguishes a torn end from damage, by the criteria in the
//! parent module.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::frame::{self, FrameAt, Header, JournalKey, Link};
use super::segment::{self, SEGMENT_HEADER, SegmentReader, SegmentSource};
use super::{pack, tail};
use crate::at;
use crate::error::{StoreError, StoreResult};
use crate::ids::Address;
use ckptfs_sys as sys;

/// A power cut loses whole sectors of at least this size.
const SECTOR: usize = 512;
/// Frames after a broken one count only if their number exceeds the last by less than this; others
/// are not of this journal.
const SEQ_AHEAD_MAX: u64 = 1 << 32;
/// Maximum number of bytes of a segment file to search for frames.
const SURVEY_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of bytes of a segment to hash in that search: every byte once, and far more for
/// false frame headers.
const SURVEY_HASHED_MAX: usize = 1 << 30;

/// The end of a journal.
pub(super) struct JournalEnd {
    /// Number of the first segment.
    pub first: u32,
    /// The segment with the end, open for writing; `None` if the store is read-only.
    pub file: Option<Arc<File>>,
    /// The address of the next frame.
    pub end: Address,
    /// The link that it continues.
    pub link: Link,
    /// Start of the last frame, if known.
    pub last: Option<Address>,
    /// The end was torn.
    pub torn: bool,
    /// The position up to which the tree is on disk, from the tail.
    pub witness: Option<Address>,
    /// Last change of the tail.
    pub tail_written_ns: Option<i64>,
    /// Tail files, whose frames are on disk now.
    pub tails: Vec<String>,
}

impl JournalEnd {
    /// Returns the end of a journal without frames that begins with this segment.
    fn empty(first: u32, identity: &JournalKey) -> JournalEnd {
        JournalEnd {
            first,
            file: None,
            end: Address {
                segment: first,
                ..Address::START
            },
            link: identity.genesis(),
            last: None,
            torn: false,
            witness: None,
            tail_written_ns: None,
            tails: Vec::new(),
        }
    }
}

/// Options for creating the first segment.
pub(super) struct FirstSegment {
    /// Its size, in bytes.
    pub bytes: u32,
    /// Make it durable immediately.
    pub synced: bool,
}

/// Finds the end; with `write`, creates the first segment of a new journal, repairs a torn end, and
/// makes everything durable.
///
/// `noted` is the start of the last frame at the last orderly shutdown. All frames before it were
/// on disk, so the search begins there; damage before it is detected when it is read.
pub(super) fn open(
    dir: &OwnedFd,
    identity: &JournalKey,
    make: FirstSegment,
    noted: Option<Address>,
    write: bool,
) -> StoreResult<JournalEnd> {
    let search = EndSearch::new(dir, identity)?;
    let Some(&first) = search.segments.first() else {
        let mut found = JournalEnd::empty(1, identity);
        if write {
            found.file = Some(Arc::new(segment::make(
                dir,
                identity,
                1,
                make.bytes,
                make.synced,
            )?));
        }
        return Ok(found);
    };
    // Compares neighbours instead of counting up: the highest possible number has no successor.
    for (one, next) in search.segments.iter().zip(search.segments.iter().skip(1)) {
        if one.checked_add(1) != Some(*next) {
            return Err(StoreError::JournalDamaged {
                segment: one.saturating_add(1),
                offset: 0,
            });
        }
    }
    let start = search.starting_segment()?;
    let walk = || search.walk_from(noted, start);
    let (mut end, mut link, mut last) = walk()?;
    let tail = tail::read(dir)?;
    if write && tail.fill(dir, end)? {
        (end, link, last) = walk()?;
    }
    let rest = search.survey(end, link)?;
    let mut found = JournalEnd {
        end,
        link,
        last,
        torn: rest.torn(),
        witness: tail.witness,
        tail_written_ns: tail.written_ns,
        ..JournalEnd::empty(first, identity)
    };
    if !write {
        return Ok(found);
    }
    search.repair(end, &rest)?;
    // Segments that a crash left in addition to their packs.
    search
        .packed
        .iter()
        .try_for_each(|number| pack::remove_raw(dir, *number))?;
    let file = Arc::new(segment::open(dir, identity, end.segment, true)?);
    search.settle(start, end, &file)?;
    (found.file, found.tails) = (Some(file), tail.names);
    Ok(found)
}

/// As [`open`] of a read-only store, for a check: follows the whole chain, and returns the damage
/// together with the intact part before it.
pub(super) fn open_to_check(
    dir: &OwnedFd,
    identity: &JournalKey,
) -> StoreResult<(JournalEnd, Option<StoreError>)> {
    let search = EndSearch::new(dir, identity)?;
    let first = search.segments.first().copied().unwrap_or(1);
    let mut found = JournalEnd::empty(first, identity);
    let gap = (first..)
        .zip(&search.segments)
        .find(|(expected, number)| expected != *number);
    let walked = match gap {
        _ if search.segments.is_empty() => return Ok((found, None)),
        Some((missing, _)) => Err(segment::damaged(missing)),
        None if first != 1 => Err(segment::damaged(1)),
        None => search.walk(Address {
            segment: first,
            offset: SEGMENT_HEADER,
        }),
    };
    let damage = match walked {
        Ok((end, link, last)) => {
            (found.end, found.link, found.last) = (end, link, last);
            match search.survey(end, link) {
                Ok(rest) => {
                    found.torn = rest.torn();
                    None
                }
                Err(damage) => Some(damage),
            }
        }
        Err(damage) => Some(damage),
    };
    Ok((found, damage))
}

/// The data after the end.
#[derive(Debug, Default)]
struct TrailingData {
    /// In the segment of the end: the bytes from the end to the last nonzero byte.
    bytes: Vec<u8>,
    /// Later segments with more than a header and zeros.
    segments: Vec<u32>,
}

impl TrailingData {
    fn torn(&self) -> bool {
        !self.bytes.is_empty() || !self.segments.is_empty()
    }
}

struct EndSearch<'a> {
    dir: &'a OwnedFd,
    identity: &'a JournalKey,
    /// All segments, in order, without a gap.
    segments: Vec<u32>,
    /// The packed ones, in order.
    packed: Vec<u32>,
}

impl<'a> EndSearch<'a> {
    fn new(dir: &'a OwnedFd, identity: &'a JournalKey) -> StoreResult<EndSearch<'a>> {
        let (segments, packed) = segment::list(dir)?;
        Ok(EndSearch {
            dir,
            identity,
            segments,
            packed,
        })
    }
}

impl EndSearch<'_> {
    fn window(&self, number: u32) -> StoreResult<SegmentReader> {
        Ok(SegmentReader::new(
            SegmentSource::open(self.dir, self.identity, number)?,
            number,
            u32::MAX,
        ))
    }

    /// See [`SegmentReader::first`]. A segment without a header counts as empty; the survey decides
    /// whether that is damage.
    fn first_frame(&self, number: u32) -> StoreResult<Option<(Link, u64)>> {
        match self.window(number) {
            Ok(mut window) => window.first(&self.identity.key),
            Err(StoreError::JournalDamaged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_packed(&self, number: u32) -> bool {
        self.packed.binary_search(&number).is_ok()
    }

    /// Returns the last segment before which all frames are known to have been on disk. Damage
    /// before it was not caused by a power cut, and is detected when it is read.
    fn starting_segment(&self) -> StoreResult<u32> {
        let mut durable = None;
        for &number in self.segments.iter().rev() {
            let Some((before, said)) = self.first_frame(number)? else {
                continue;
            };
            // Packed frames were on disk.
            if before.seq <= *durable.get_or_insert(said)
                || self.is_packed(number.saturating_sub(1))
            {
                return Ok(number);
            }
        }
        Ok(self.segments.first().copied().unwrap_or(1))
    }

    /// As [`EndSearch::walk`], from the noted last frame if it exists in segment `start` or a later
    /// one.
    fn walk_from(
        &self,
        noted: Option<Address>,
        start: u32,
    ) -> StoreResult<(Address, Link, Option<Address>)> {
        if let Some(noted) = noted.filter(|noted| {
            noted.segment >= start
                && !self.is_packed(noted.segment)
                && self.segments.contains(&noted.segment)
        }) {
            let found = self.walk(noted)?;
            if found.2.is_some() {
                return Ok(found);
            }
        }
        self.walk(Address {
            segment: start,
            offset: SEGMENT_HEADER,
        })
    }

    /// Follows the chain from a frame to its end. Returns the end, the link that the next frame
    /// continues, and the start of the last frame.
    fn walk(&self, from: Address) -> StoreResult<(Address, Link, Option<Address>)> {
        let (mut at, mut last) = (from, None);
        let mut window = self.window(from.segment)?;
        // The chain before a later frame is unknown. It is trusted, because all frames before it
        // were on disk.
        let mut link = (from == Address::START).then(|| self.identity.genesis());
        loop {
            match window.look(at.offset, &self.identity.key)? {
                FrameAt::Frame(header, _, hash)
                    if link.is_none_or(|link| link == header.before()) =>
                {
                    last = Some(at);
                    link = Some(Link {
                        seq: header.seq,
                        hash,
                    });
                    at = window.end_of(at.offset, &header);
                    continue;
                }
                FrameAt::Gap(gap) if link.is_none_or(|link| link == gap.before) => {
                    link = Some(gap.after);
                    at.offset = gap.end;
                    continue;
                }
                FrameAt::Frame(..) | FrameAt::Gap(_) | FrameAt::Nothing | FrameAt::Rubbish => {}
            }
            let next = at.segment.saturating_add(1);
            let follows = match self.segments.binary_search(&next) {
                Ok(_) => self
                    .first_frame(next)?
                    .is_some_and(|(before, _)| link == Some(before)),
                Err(_) => false,
            };
            if !follows {
                return Ok((at, link.unwrap_or(self.identity.genesis()), last));
            }
            at = Address {
                segment: next,
                offset: SEGMENT_HEADER,
            };
            window = self.window(next)?;
        }
    }

    /// Examines all data after the end. Fails with `JournalDamaged` if it proves that durable
    /// frames are missing.
    fn survey(&self, end: Address, link: Link) -> StoreResult<TrailingData> {
        // A segment always follows a pack, and packed frames were on disk.
        if self.packed.last().is_some_and(|last| *last >= end.segment) {
            return Err(end.damaged());
        }
        let mut rest = TrailingData {
            bytes: self.tail(end.segment, end.offset)?,
            segments: Vec::new(),
        };
        // Bytes that claim more frames than possible were crafted to waste time, and are not a torn
        // end.
        let frames_in = |bytes: &[u8]| self.frames_in(bytes, link.seq).ok_or(end.damaged());
        let mut later = frames_in(&rest.bytes)?;
        let gap = later.first().map(|(gap, _)| *gap);
        for &number in self.segments.iter().filter(|number| **number > end.segment) {
            let bytes = self.tail(number, 0)?;
            later.extend(frames_in(
                bytes.get(SEGMENT_HEADER as usize..).unwrap_or_default(),
            )?);
            let headed = segment::open(self.dir, self.identity, number, false).is_ok();
            if !headed || bytes.len() > SEGMENT_HEADER as usize {
                rest.segments.push(number);
            }
        }
        let promised = later.iter().any(|(_, header)| header.durable > link.seq);
        // The direct successor exists but does not continue the chain: no frame is missing, so one
        // was changed.
        let changed = later
            .iter()
            .any(|(_, header)| header.seq == link.seq.saturating_add(1));
        let broken = !later.is_empty()
            && !rest.bytes.is_empty()
            && !has_lost_sector(&rest.bytes, gap, end.offset);
        if promised || changed || broken {
            Err(end.damaged())
        } else {
            Ok(rest)
        }
    }

    /// Returns the bytes of a segment from an offset to the last nonzero byte.
    fn tail(&self, number: u32, offset: u32) -> StoreResult<Vec<u8>> {
        let name = segment::file_name(number);
        let read = || -> io::Result<Vec<u8>> {
            let file = at::open_file(self.dir, &name, OFlags::RDONLY)?;
            let size = file
                .metadata()?
                .len()
                .min(SURVEY_BYTES_MAX)
                .saturating_sub(u64::from(offset));
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
            let filled = segment::read_up_to(&file, &mut bytes, u64::from(offset))?;
            bytes.truncate(used(bytes.get(..filled).unwrap_or_default()));
            Ok(bytes)
        };
        read().map_err(StoreError::io("read the journal's segment", &name))
    }

    /// Returns all complete frames in these bytes with a number above `seq`, at any offset; `None`
    /// if the search would take too long.
    fn frames_in(&self, bytes: &[u8], seq: u64) -> Option<Vec<(usize, Header)>> {
        // The bytes end with the last nonzero one, but the hash of a frame may end with zeros.
        let bytes = &[bytes, &[0; frame::HASH]].concat();
        let mut frames = Vec::new();
        let mut at = 0;
        let mut hashed = SURVEY_HASHED_MAX;
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= frame::HEADER) {
            let header = Header::parse(rest).filter(Header::plausible);
            let near = header.filter(|header| header.seq > seq && header.seq - seq < SEQ_AHEAD_MAX);
            // The claimed length determines the cost of hashing.
            let claimed = near.and_then(|header| header.total());
            hashed = hashed.checked_sub(claimed.unwrap_or(0))?;
            at += match claimed.map(|_| frame::look(rest, &self.identity.key)) {
                Some(FrameAt::Frame(header, payload, _)) => {
                    frames.push((at, header));
                    payload.len() + frame::OVERHEAD
                }
                Some(FrameAt::Gap(_) | FrameAt::Nothing | FrameAt::Rubbish) | None => 1,
            };
        }
        Some(frames)
    }

    /// Saves and clears the data after the end, so that none of it can later pass for a frame.
    /// Durable on return.
    fn repair(&self, end: Address, rest: &TrailingData) -> StoreResult<()> {
        if !rest.torn() {
            return Ok(());
        }
        let clear = || -> io::Result<()> {
            for &number in rest.segments.iter().rev() {
                at::rename(
                    self.dir,
                    &segment::file_name(number),
                    &format!("torn-{number:08}-0"),
                )?;
            }
            if !rest.bytes.is_empty() {
                let saved = format!("torn-{:08}-{}", end.segment, end.offset);
                // The copy is only for people; a full disk must not prevent opening the store.
                if let Err(error) = at::write_whole(self.dir, &saved, &rest.bytes) {
                    tracing::warn!(%error, "the torn end of the journal cannot be saved");
                }
                let file = at::open_file(self.dir, &segment::file_name(end.segment), OFlags::RDWR)?;
                sys::write_all_at(&file, &vec![0; rest.bytes.len()], u64::from(end.offset))?;
                sys::fdatasync(&file)?;
            }
            // The tail files in this directory must not reach the disk before the tree: they prove
            // which recorded changes are in the tree on disk (tail.rs).
            at::sync_in_order(self.dir)
        };
        clear().map_err(StoreError::io("repair", "journal"))
    }

    /// Makes the frames found durable, so that later frames may claim so; frames before `start`
    /// already are.
    ///
    /// Syncs the segments but not their directory. The name of a segment is durable since its
    /// creation. On btrfs, a sync of the directory would write the tail files to disk ahead of the
    /// tree, and a tail proves which recorded changes are in the tree on disk.
    fn settle(&self, start: u32, end: Address, last: &File) -> StoreResult<()> {
        let settle =
            || -> io::Result<()> {
                for &number in self.segments.iter().filter(|number| {
                    (start..end.segment).contains(number) && !self.is_packed(**number)
                }) {
                    sys::fdatasync(at::open_file(
                        self.dir.as_fd(),
                        &segment::file_name(number),
                        OFlags::RDONLY,
                    )?)?;
                }
                Ok(sys::fdatasync(last)?)
            };
        settle().map_err(StoreError::io("sync", "journal"))
    }
}

/// Returns the number of bytes up to the last nonzero one. Most of a segment is preallocated zeros,
/// so whole sectors are compared.
fn used(bytes: &[u8]) -> usize {
    let sector = bytes
        .chunks(SECTOR)
        .rposition(|sector| ![0; SECTOR].starts_with(sector))
        .unwrap_or(0);
    let rest = bytes
        .get(..bytes.len().min((sector + 1) * SECTOR))
        .unwrap_or_default();
    rest.iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1)
}

/// Reports whether a power cut lost a part of the broken frame at the beginning of these bytes,
/// which are at `offset` of a file: a sector of the frame is all zeros. The frame extends to the
/// next complete frame at `gap`, otherwise as far as its own header claims.
fn has_lost_sector(bytes: &[u8], gap: Option<usize>, offset: u32) -> bool {
    let said = || {
        Header::parse(bytes)
            .filter(Header::plausible)
            .and_then(|header| header.total())
    };
    let until = gap.or_else(said).unwrap_or(bytes.len());
    let mut from = 0;
    while from < until {
        let to = (from + SECTOR - (offset as usize + from) % SECTOR).min(until);
        // Bytes beyond the end are zeros: they were cut off.
        if bytes
            .get(from..)
            .unwrap_or_default()
            .iter()
            .take(to - from)
            .all(|b| *b == 0)
        {
            return true;
        }
        from = to;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_that_is_not_zero_is_found_wherever_it_is() {
        for size in [0, 1, SECTOR - 1, SECTOR, SECTOR + 1, 3 * SECTOR] {
            assert_eq!(used(&vec![0; size]), 0);
            for at in 0..size {
                let mut bytes = vec![0; size];
                bytes[at] = 1;
                assert_eq!(used(&bytes), at + 1, "of {size}");
            }
        }
    }
}
