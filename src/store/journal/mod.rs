//! The journal: every change to the past, in the order in which it happened.
//!
//! It is the truth of the store. The index can be made from it; it can be made from nothing. Frames
//! are appended, in groups of one write each. A closed segment is packed (modules `pack` and
//! `packing`): compressed, and without what nobody needs any more. Each frame names the hash of the
//! one before, so that nothing can be changed, left out or put in unseen.
//!
//! Invariants:
//! - frames are numbered 1, 2, 3 ... over all segments, and each carries the hash of the one before
//!   it; the first carries the hash of nothing;
//! - a frame lies in one segment, whole;
//! - behind the last frame there are only zeros, or the file ends;
//! - what [`Journal::append`] returned survives a `kill -9`: it is in the kernel. It survives a
//!   power cut after [`Journal::sync`];
//! - after a failed write or sync nothing is appended any more ("latched"): the kernel may have
//!   dropped pages and told so only once, so that trying again proves nothing. The exceptions left
//!   nothing behind: no space for the next segment, and no space for a write that could be cut off
//!   again;
//! - the last of the space that was allocated ahead is kept for records that mount, unmount and
//!   free ([`Record::has_last_room`]).
//!
//! **Torn or damaged.** Frames are written without waiting for the disk, so a power cut can lose
//! the last of them, and because the kernel writes pages in any order, some lost ones may lie
//! before some that were saved. That is no damage: nothing was promised. But a frame that was
//! promised and is gone must be told. Two facts tell them apart. Each frame says up to which number
//! all were on disk when it was written (`durable`): where a later frame says that about a lost
//! one, it is damage. And what a power cut loses in preallocated or fresh space reads as zeros up
//! to the end of a sector: where a frame is broken and frames follow, but no sector's end between
//! is zero, it is damage. All else is a torn end: opening for writing saves what follows to
//! `torn-<segment>-<offset>` and writes zeros over it, so that it cannot come back, and reports it.
//! (A broken frame with no frame after it counts as torn: DESIGN.md. A frame lost to bit rot at the
//! very end cannot be told from one that was never written, except by the index, which
//! [`crate::store::Store::open`] compares.)
//!
//! Locking: `writer` is held while frames are encoded and written; `syncing` over a sync, taken
//! before `writer`; `making` while a segment is made, taken after either. `packing` is held while a
//! pack replaces a segment, taken before all of them. `readers` is held for a look-up only and
//! nothing is taken under it. No lock is held while the caller runs, except `packing` by a caller
//! of [`Journal::hold_packs`].
//!
//! ```text
//! journal/00000001, 00000002, ...   segments, 8 MiB of preallocated zeros each, where the filesystem can do that
//! journal/new-NNNNNNNN              a segment that is being made
//! journal/packs/00000001            a packed segment, in place of 00000001
//! journal/torn-NNNNNNNN-OFFSET      what followed a torn end, kept for people
//!
//! segment   "ckptjrnl", u32 version = 1, u32 number, 16 B store id, 32 B hash of these 32 bytes; then frames to the end
//! frame     u32 len       bytes of payload, at most 4 MiB
//!           u16 kind      1 ... 22, see `codec`
//!           u16 flags     0
//!           u64 seq
//!           u64 durable   all frames up to this number were on disk when this one was written
//!           32 B prev     hash of the frame before; of the first frame: the hash of no bytes
//!           len B         payload, see `codec`
//!           32 B hash     of all of the above
//! ```
//! Numbers are little-endian. Hashes are BLAKE3 keyed with
//! `derive_key("ckptfs journal v1", store id)`: what a user writes into a name or an extended
//! attribute, or what an older store left on the disk, can never pass for a frame.

pub mod codec;
mod frame;
mod opening;
mod order;
mod pack;
mod packing;
mod reading;
mod scan;
mod segment;
mod tail;

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::frame::{Identity, Link};
pub use self::packing::Verdict;
use self::reading::Readers;
pub use self::scan::Scan;
use self::segment::{SEGMENT_BYTES, SEGMENT_HEADER};
use self::tail::Tail;
use super::error::{CodecError, StoreError, StoreResult};
pub use super::ids::Address;
use super::layout::Layout;
use super::record::Record;
use crate::sys::lock::{Mutex, Rank};
use crate::sys::{self, Errno};

/// Bytes of allocated space that only records get that mount and free: some hundred of them.
const HEADROOM: u32 = 64 << 10;
/// The same, of the journal of a branch: there may be many, and each is to be small.
const BRANCH_HEADROOM: u32 = 16 << 10;
/// Bytes of the first segment of a branch, which grows.
const BRANCH_FIRST: u32 = 2 * BRANCH_HEADROOM;
/// The encoding buffer is given back when an append made it larger than this.
const BUFFER_KEPT_MAX: usize = 1 << 20;
impl Address {
    /// Where the first frame of a journal is.
    pub const START: Address = Address {
        segment: 1,
        offset: SEGMENT_HEADER,
    };

    /// There is no whole frame here where one should be.
    pub(super) fn damaged(self) -> StoreError {
        let Address { segment, offset } = self;
        StoreError::JournalDamaged { segment, offset }
    }

    /// Where the frame of `record` ends if it begins here. Fails if the record cannot be encoded.
    pub fn after(self, record: &Record) -> Result<Address, CodecError> {
        let mut bytes = Vec::with_capacity(256);
        codec::encode(record, &mut bytes)?;
        let total = u32::try_from(bytes.len().saturating_add(frame::OVERHEAD))
            .map_err(|_| CodecError::Limit)?;
        Ok(Address {
            segment: self.segment,
            offset: self.offset.checked_add(total).ok_or(CodecError::Limit)?,
        })
    }
}

/// What opening the journal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The end was torn, as a power cut tears it; frames that had not been synced may be lost.
    pub torn: bool,
    /// Where the next frame goes.
    pub end: Address,
}

/// The open journal. Shared by reference between threads.
pub struct Journal {
    dir: OwnedFd,
    identity: Identity,
    segment_bytes: u32,
    headroom: u32,
    first: u32,
    witness: Address,
    tail_written_ns: Option<i64>,
    latched: AtomicBool,
    syncing: Mutex<()>,
    writer: Mutex<Writer>,
    making: Mutex<()>,
    packing: Mutex<()>,
    readers: Mutex<Readers>,
}

struct Writer {
    /// The segment that is written; `None` if the store is read-only.
    file: Option<Arc<File>>,
    end: Address,
    /// Where the last frame begins, if that is known.
    last: Option<Address>,
    /// Up to which offset there is space for frames, as far as is known.
    room: u32,
    link: Link,
    /// All frames up to this number are on disk.
    durable: u64,
    /// Segments before `file` with frames that may not be on disk.
    unsynced: Vec<Arc<File>>,
    buffer: Vec<u8>,
    tail: Tail,
}

/// What a sync brings to the disk.
struct Appended {
    /// Segments that end before `file`.
    closed: Vec<Arc<File>>,
    file: Option<Arc<File>>,
    /// The last frame.
    seq: u64,
    end: Address,
    /// Tail files that are not needed then.
    tails: Vec<String>,
}

impl Journal {
    /// Opens the journal of a store: finds its end and, unless the store is read-only, repairs a
    /// torn one and makes all that was found durable.
    ///
    /// Errors: `JournalDamaged` where a frame is broken that cannot have been lost in a power cut;
    /// `Io`. Only as much of the journal is read as is not known to have been on disk when later
    /// frames were written; damage before that is found when it is read.
    pub fn open(layout: &Layout) -> StoreResult<(Journal, Opening)> {
        Journal::open_with(layout, SEGMENT_BYTES)
    }

    /// There is no segment at all.
    pub(super) fn is_missing(layout: &Layout) -> StoreResult<bool> {
        Ok(segment::list(layout.journal_dir())?.0.is_empty())
    }

    pub(super) fn open_with(
        layout: &Layout,
        segment_bytes: u32,
    ) -> StoreResult<(Journal, Opening)> {
        let dir = layout
            .journal_dir()
            .try_clone_to_owned()
            .map_err(StoreError::io("open", "journal"))?;
        let identity = Identity::new(layout.id());
        let noted = layout.noted_end().and_then(|(_, last)| last);
        let first = opening::First {
            bytes: if layout.is_branch() {
                segment_bytes.min(BRANCH_FIRST)
            } else {
                segment_bytes
            },
            synced: !layout.is_unsynced(),
        };
        let found = opening::open(&dir, &identity, first, noted, !layout.read_only())?;
        let opening = Opening {
            torn: found.torn,
            end: found.end,
        };
        let mut journal = Journal::of(dir, identity, segment_bytes, found)?;
        if layout.is_branch() {
            journal.headroom = BRANCH_HEADROOM;
        }
        Ok((journal, opening))
    }

    /// Opens the journal of a store to check it: its chain is followed from the beginning, and if
    /// something in it is damaged the journal holds what is whole before that. Nothing is written.
    ///
    /// Errors: `Io`.
    pub fn open_to_check(layout: &Layout) -> StoreResult<(Journal, Opening, Option<StoreError>)> {
        let dir = layout
            .journal_dir()
            .try_clone_to_owned()
            .map_err(StoreError::io("open", "journal"))?;
        let identity = Identity::new(layout.id());
        let (found, damage) = opening::open_to_check(&dir, &identity)?;
        let opening = Opening {
            torn: found.torn,
            end: found.end,
        };
        Ok((
            Journal::of(dir, identity, SEGMENT_BYTES, found)?,
            opening,
            damage,
        ))
    }

    fn of(
        dir: OwnedFd,
        identity: Identity,
        segment_bytes: u32,
        found: opening::Found,
    ) -> StoreResult<Journal> {
        let durable = if found.file.is_some() {
            found.link.seq
        } else {
            0
        };
        let (end, link) = (found.end, found.link);
        let tail = Tail::new(
            dir.try_clone().map_err(StoreError::io("open", "journal"))?,
            found.tails,
        );
        let room = found.file.as_ref().map_or(0, |file| segment::size(file));
        let writer = Writer {
            file: found.file,
            end,
            last: found.last,
            room,
            link,
            durable,
            unsynced: Vec::new(),
            buffer: Vec::new(),
            tail,
        };
        Ok(Journal {
            dir,
            identity,
            segment_bytes,
            headroom: HEADROOM,
            first: found.first,
            witness: found.witness.unwrap_or(end).min(end),
            tail_written_ns: found.tail_written_ns,
            latched: AtomicBool::new(false),
            syncing: Mutex::ranked(Rank::Syncing, ()),
            writer: Mutex::ranked(Rank::Writer, writer),
            making: Mutex::ranked(Rank::Making, ()),
            packing: Mutex::ranked(Rank::Packing, ()),
            readers: Mutex::default(),
        })
    }

    /// Appends records, all with one write, and returns where each begins. They survive a `kill -9`
    /// on return, and a power cut after [`Journal::sync`]. Nothing is appended if it fails.
    ///
    /// Errors: `Encode` and `TooBig` if the records are beyond the limits; `Io` with ENOSPC if
    /// there is no space, after which appending may be tried again; any other failed write latches
    /// the journal, and every later call fails with `Latched`.
    pub fn append(&self, records: &[Record]) -> StoreResult<Vec<Address>> {
        sys::awake(|| self.append_to(records, false))
    }

    /// As [`Journal::append`]; with `next`, to the next segment.
    fn append_to(&self, records: &[Record], next: bool) -> StoreResult<Vec<Address>> {
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        self.check_latch()?;
        writer.buffer.clear();
        let mut link = writer.link;
        let mut sizes = Vec::with_capacity(records.len());
        for record in records {
            let begin = writer.buffer.len();
            link = frame::push(
                &mut writer.buffer,
                &self.identity.key,
                link,
                writer.durable,
                record,
            )?;
            sizes.push(writer.buffer.len() - begin);
        }
        let bytes = writer.buffer.len();
        let total = u32::try_from(bytes)
            .ok()
            .filter(|total| *total <= self.segment_bytes.saturating_sub(SEGMENT_HEADER));
        let total = total.ok_or(StoreError::TooBig { bytes })?;
        if next
            || writer
                .end
                .offset
                .checked_add(total)
                .is_none_or(|end| end > self.segment_bytes)
        {
            self.roll(writer)?;
        }
        if !records.iter().any(Record::has_last_room) {
            self.keep_headroom(writer, total)?;
        }
        self.write(writer)?;
        let mut at = writer.end;
        let place = |size: usize| {
            let begin = at;
            at.offset += size as u32;
            begin
        };
        let places: Vec<Address> = sizes.into_iter().map(place).collect();
        writer.last = places.last().copied().or(writer.last);
        writer.end.offset += total;
        writer.link = link;
        if writer.buffer.capacity() > BUFFER_KEPT_MAX {
            writer.buffer = Vec::new();
        }
        Ok(places)
    }

    /// Makes all that was appended before the call durable, and then, when half of the segment is
    /// used, makes the next one ahead of need.
    ///
    /// Errors: a failed sync latches the journal: it is not known what is on disk, and never will
    /// be. A next segment that cannot be made is no error.
    pub fn sync(&self) -> StoreResult<()> {
        let syncing = self.syncing.lock();
        let Some(appended) = self.appended()? else {
            return Ok(());
        };
        for file in appended.closed.iter().chain(&appended.file) {
            if let Err(errno) = sys::fdatasync(&**file) {
                self.latch();
                return Err(StoreError::io("sync", "the journal")(errno));
            }
        }
        let end = appended.end;
        self.synced(appended);
        drop(syncing);
        if end.offset > self.segment_bytes / 2 {
            let next = end.segment.saturating_add(1);
            if let Err(error) = self.segment_for_writing(next) {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    next,
                    "the next segment cannot be made ahead"
                );
            }
        }
        Ok(())
    }

    /// What is to be synced now; `None` if all is on the disk.
    fn appended(&self) -> StoreResult<Option<Appended>> {
        let mut writer = self.writer.lock();
        self.check_latch()?;
        if writer.durable == writer.link.seq {
            return Ok(None);
        }
        let end = writer.end;
        let tails = writer.tail.turn(end);
        Ok(Some(Appended {
            closed: writer.unsynced.clone(),
            file: writer.file.clone(),
            seq: writer.link.seq,
            end,
            tails,
        }))
    }

    /// That is on the disk. A segment that was closed since has frames that are not, so it stays to
    /// be synced.
    fn synced(&self, appended: Appended) {
        {
            let mut writer = self.writer.lock();
            writer.durable = writer.durable.max(appended.seq);
            writer.unsynced.retain(|file| {
                !appended
                    .closed
                    .iter()
                    .any(|synced| Arc::ptr_eq(synced, file))
            });
        }
        let stay = tail::remove_old(&self.dir, appended.tails);
        if !stay.is_empty() {
            self.writer.lock().tail.keep(stay);
        }
    }

    /// Where the next frame goes. Everything before it was appended.
    pub fn position(&self) -> Address {
        self.writer.lock().end
    }

    /// Number of the last frame that was appended.
    pub fn last_number(&self) -> u64 {
        self.writer.lock().link.seq
    }

    /// Whether the frame of this number, and all before it, are on the disk.
    pub fn is_on_disk(&self, number: u64) -> bool {
        self.writer.lock().durable >= number
    }

    /// Where the last frame begins, if that is known.
    pub fn last(&self) -> Option<Address> {
        self.writer.lock().last
    }

    /// Where the first frame is.
    pub fn start(&self) -> Address {
        Address {
            segment: self.first,
            offset: SEGMENT_HEADER,
        }
    }

    /// Up to where the tree that was on disk when the journal was opened goes. It is the end, but
    /// after a power cut: of what later frames speak of, nothing was done then (on btrfs: but what
    /// applications had synced). See `tail`.
    pub fn witness(&self) -> Address {
        self.witness
    }

    /// When the last daemon last appended something, nanoseconds since 1970, if there was a tail
    /// when the journal was opened. Other than the times of segments, which a power cut may have
    /// left behind, it is not before any change that was recorded.
    pub fn tail_written_ns(&self) -> Option<i64> {
        self.tail_written_ns
    }

    /// A write or sync failed: nothing is appended any more.
    pub fn is_latched(&self) -> bool {
        self.latched.load(Ordering::Acquire)
    }

    /// Takes nothing more: something that the journal speaks of, or its own end, may not be on
    /// disk, and no later sync would tell.
    pub fn latch(&self) {
        self.latched.store(true, Ordering::Release);
    }

    /// Writes the buffer to the end: as metadata, so that no later change can be on disk without
    /// it, and into the segment.
    fn write(&self, writer: &mut Writer) -> StoreResult<()> {
        let file = writer.file.as_ref().ok_or(StoreError::ReadOnly)?;
        let ordered = writer.tail.put(writer.end, &writer.buffer);
        if let Err(errno) = sys::write_all_at(&**file, &writer.buffer, u64::from(writer.end.offset))
        {
            writer.tail.take_back(writer.end, &writer.buffer);
            return Err(self.write_failed(writer, errno));
        }
        if ordered {
            return Ok(());
        }
        for file in writer.unsynced.iter().chain(&writer.file) {
            if let Err(errno) = sys::fdatasync(&**file) {
                self.latch();
                return Err(StoreError::io("sync", "the journal")(errno));
            }
        }
        let stay = tail::remove(&self.dir, writer.tail.clear());
        writer.tail.keep(stay);
        Ok(())
    }

    fn check_latch(&self) -> StoreResult<()> {
        if self.is_latched() {
            Err(StoreError::Latched)
        } else {
            Ok(())
        }
    }

    /// Goes on in the next segment. Nothing has changed if that cannot be made.
    fn roll(&self, writer: &mut Writer) -> StoreResult<()> {
        let old = writer.file.clone().ok_or(StoreError::ReadOnly)?;
        let next = writer
            .end
            .segment
            .checked_add(1)
            .ok_or(StoreError::TooBig { bytes: 0 })?;
        let file = self.segment_for_writing(next)?;
        if writer.durable < writer.link.seq {
            writer.unsynced.push(old);
        }
        writer.room = segment::size(&file);
        writer.file = Some(Arc::new(file));
        writer.end = Address {
            segment: next,
            offset: SEGMENT_HEADER,
        };
        Ok(())
    }

    /// Sees to it that behind `total` bytes more there is space left for records that mount and
    /// free, when there is none on the disk.
    ///
    /// Errors: `Io` with ENOSPC if there is not; nothing has changed then.
    fn keep_headroom(&self, writer: &mut Writer, total: u32) -> StoreResult<()> {
        let headroom = self.headroom.min(self.segment_bytes / 64);
        let wanted = writer
            .end
            .offset
            .saturating_add(total)
            .saturating_add(headroom);
        if wanted <= writer.room {
            return Ok(());
        }
        if wanted > self.segment_bytes {
            // Made for good: it is there when it is needed.
            self.segment_for_writing(writer.end.segment.saturating_add(1))?;
            writer.room = u32::MAX;
            return Ok(());
        }
        let file = writer.file.as_ref().ok_or(StoreError::ReadOnly)?;
        writer.room = segment::extend(file, wanted, self.segment_bytes)
            .map_err(StoreError::io("make room in", "the journal"))?;
        Ok(())
    }

    fn segment_for_writing(&self, number: u32) -> StoreResult<File> {
        let _making = self.making.lock();
        match segment::open(&self.dir, &self.identity, number, true) {
            Err(error) if error.errno() == Errno::ENOENT => {
                segment::make(&self.dir, &self.identity, number, self.segment_bytes, true)
            }
            result => result,
        }
    }

    /// What a failed write leaves is not known, so nothing may follow it. With the disk full it may
    /// have left nothing, or it is cut off (which fails too where a quota of btrfs is used up).
    fn write_failed(&self, writer: &Writer, errno: Errno) -> StoreError {
        let end = u64::from(writer.end.offset);
        let cut = errno.is_no_room()
            && writer.file.as_ref().is_some_and(|file| {
                segment::is_blank(file, end) || sys::truncate(&**file, end).is_ok()
            });
        if !cut {
            self.latch();
        }
        StoreError::io("write to", "the journal")(errno)
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("end", &self.position())
            .field("latched", &self.is_latched())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(in crate::store) mod fuzz;
#[cfg(test)]
mod tests;
