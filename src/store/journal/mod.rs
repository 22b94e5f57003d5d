//! The journal: all records of the store, in order.
//!
//! It is authoritative: the index can be rebuilt from it, but it cannot be rebuilt. Frames are
//! appended in groups, each with one write. A closed segment is packed (modules `pack` and
//! `packing`): compressed, and without records that are no longer needed. Each frame contains the
//! hash of its predecessor, so that no frame can be changed, removed or inserted undetected.
//!
//! Invariants:
//! - frames are numbered 1, 2, 3 ... over all segments, and each contains the hash of its
//!   predecessor; the first contains the hash of no bytes;
//! - a frame lies within one segment;
//! - only zeros follow the last frame, or the file ends;
//! - records appended when [`Journal::append`] returns survive `kill -9`: they are in the kernel.
//!   They survive a power cut after [`Journal::sync`];
//! - after a failed write or sync the journal is latched and accepts no further append. The kernel
//!   may have dropped dirty pages and reports that only once, so a later success proves nothing.
//!   Exceptions that leave nothing behind: no space for the next segment, and for a write that
//!   could be truncated again;
//! - the last part of the preallocated space is reserved for records that mount, unmount and free
//!   ([`Record::has_last_room`]).
//!
//! **Torn or damaged.** Frames are written without waiting for the disk, so a power cut can lose
//! the last ones. Because the kernel writes pages in any order, lost frames may precede saved ones.
//! Such a torn end is not damage: these frames were never durable. The loss of a durable frame must
//! be reported. Any of these proves damage:
//! - the `durable` number of a later frame covers the missing one;
//! - the next frame by number exists but does not continue the chain;
//! - frames follow the broken one, and no sector between them reads as zeros, as lost space does.
//!
//! Everything else is a torn end. Opening for writing saves the bytes after it to
//! `torn-<segment>-<offset>`, overwrites them with zeros so that they cannot reappear, and reports
//! it. A broken frame without a successor counts as torn. Bit rot at the very end is
//! indistinguishable from a frame that was never written, except by comparison with the index
//! ([`crate::Store::open`]).
//!
//! Locking: `writer` is held while frames are encoded and written; `syncing` during a sync,
//! acquired before `writer`; `making` during the creation of a segment, acquired after either.
//! `packing` is held while a pack replaces a segment, acquired before all of them. `readers` is
//! held for a lookup only, and no lock is acquired under it. No lock is held while the caller runs,
//! except `packing` by a caller of [`Journal::hold_packs`].
//!
//! ```text
//! journal/00000001, 00000002, ...   segments of 8 MiB, preallocated zeros where the filesystem supports it
//! journal/new-NNNNNNNN              a segment under construction
//! journal/packs/00000001            a packed segment, in place of 00000001
//! journal/torn-NNNNNNNN-OFFSET      the bytes after a torn end, kept for people
//!
//! segment   "ckptjrnl", u32 version = 1, u32 number, 16 B store id, 32 B hash of these 32 bytes; then frames to the end
//! frame     u32 len       bytes of payload, up to 4 MiB
//!           u16 kind      1 ... 22, see `codec`
//!           u16 flags     0
//!           u64 seq
//!           u64 durable   all frames up to this number were on disk when this one was written
//!           32 B prev     hash of the previous frame; of the first frame: the hash of no bytes
//!           len B         payload, see `codec`
//!           32 B hash     of all of the above
//! ```
//! Numbers are little-endian. Hashes are BLAKE3 keyed with `derive_key("ckptfs journal v1", store
//! id)`: neither bytes from names or extended attributes nor remains of an older store can pass for
//! a frame.

pub mod codec;
mod frame;
mod order;
mod pack;
mod packing;
mod reading;
mod recovery;
mod scan;
mod segment;
mod tail;

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::frame::{JournalKey, Link};
pub use self::packing::PackDecision;
use self::reading::Readers;
pub use self::scan::Scan;
use self::segment::{SEGMENT_BYTES, SEGMENT_HEADER};
use self::tail::JournalTail;
use super::error::{CodecError, StoreError, StoreResult};
pub use super::ids::Address;
use super::layout::Layout;
use super::record::Record;
use ckptfs_sys::lock::{Mutex, Rank};
use ckptfs_sys::{self as sys, Errno};

/// Preallocated bytes reserved for records that mount and free: some hundred of them.
const HEADROOM: u32 = 64 << 10;
/// The same for the journal of a branch, which must be small because branches may be many.
const BRANCH_HEADROOM: u32 = 16 << 10;
/// Initial size in bytes of a branch's first segment, which grows.
const BRANCH_FIRST: u32 = 2 * BRANCH_HEADROOM;
/// An encoding buffer above this size is freed after the append.
const BUFFER_KEPT_MAX: usize = 1 << 20;
impl Address {
    /// The address of the first frame of a journal.
    pub const START: Address = Address {
        segment: 1,
        offset: SEGMENT_HEADER,
    };

    /// Returns the error for a missing or incomplete frame at this address.
    pub(super) fn damaged(self) -> StoreError {
        let Address { segment, offset } = self;
        StoreError::JournalDamaged { segment, offset }
    }

    /// Returns the end of the frame of `record` if it begins here. Fails if the record cannot be
    /// encoded.
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

/// The result of opening the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The end was torn by a power cut; frames that were not synced may be lost.
    pub torn: bool,
    /// The address of the next frame.
    pub end: Address,
}

/// The open journal, shared between threads.
pub struct Journal {
    dir: OwnedFd,
    identity: JournalKey,
    segment_bytes: u32,
    headroom: u32,
    first: u32,
    witness: Address,
    tail_written_ns: Option<i64>,
    latched: AtomicBool,
    syncing: Mutex<()>,
    writer: Mutex<JournalWriter>,
    making: Mutex<()>,
    packing: Mutex<()>,
    readers: Mutex<Readers>,
}

struct JournalWriter {
    /// The segment being written; `None` if the store is read-only.
    file: Option<Arc<File>>,
    end: Address,
    /// Start of the last frame, if known.
    last: Option<Address>,
    /// End offset of the allocated space, as far as known.
    room: u32,
    link: Link,
    /// All frames up to this number are on disk.
    durable: u64,
    /// Segments before `file` with frames that may not be on disk.
    unsynced: Vec<Arc<File>>,
    buffer: Vec<u8>,
    tail: JournalTail,
}

/// The state that a sync makes durable.
struct Appended {
    /// Segments before `file`.
    closed: Vec<Arc<File>>,
    file: Option<Arc<File>>,
    /// The last frame.
    seq: u64,
    end: Address,
    /// Tail files that are obsolete after the sync.
    tails: Vec<String>,
}

impl Journal {
    /// Opens the journal of a store and finds its end. Unless the store is read-only, repairs a
    /// torn end and makes all frames durable.
    ///
    /// Errors: `JournalDamaged` for a broken frame that a power cut cannot explain; `Io`. Only
    /// frames not known to have been on disk when later ones were written are read; damage before
    /// them is detected when it is read.
    pub fn open(layout: &Layout) -> StoreResult<(Journal, Opening)> {
        Journal::open_with(layout, SEGMENT_BYTES)
    }

    /// Reports whether the journal has no segment.
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
        let identity = JournalKey::new(layout.id());
        let noted = layout.noted_end().and_then(|(_, last)| last);
        let first = recovery::FirstSegment {
            bytes: if layout.is_branch() {
                segment_bytes.min(BRANCH_FIRST)
            } else {
                segment_bytes
            },
            synced: !layout.is_unsynced(),
        };
        let found = recovery::open(&dir, &identity, first, noted, !layout.read_only())?;
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

    /// Opens the journal of a store for a check, following its chain from the beginning. If it is
    /// damaged, the journal ends before the damage. Writes nothing.
    ///
    /// Errors: `Io`.
    pub fn open_to_check(layout: &Layout) -> StoreResult<(Journal, Opening, Option<StoreError>)> {
        let dir = layout
            .journal_dir()
            .try_clone_to_owned()
            .map_err(StoreError::io("open", "journal"))?;
        let identity = JournalKey::new(layout.id());
        let (found, damage) = recovery::open_to_check(&dir, &identity)?;
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
        identity: JournalKey,
        segment_bytes: u32,
        found: recovery::JournalEnd,
    ) -> StoreResult<Journal> {
        let durable = if found.file.is_some() {
            found.link.seq
        } else {
            0
        };
        let (end, link) = (found.end, found.link);
        let tail = JournalTail::new(
            dir.try_clone().map_err(StoreError::io("open", "journal"))?,
            found.tails,
        );
        let room = found.file.as_ref().map_or(0, |file| segment::size(file));
        let writer = JournalWriter {
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

    /// Appends records with one write and returns their addresses. On return they survive `kill
    /// -9`, and after [`Journal::sync`] a power cut. On failure no record is appended.
    ///
    /// Errors: `Encode` and `TooBig` if the records exceed the limits; `Io` with ENOSPC without
    /// space, after which an append may be retried. Any other failed write latches the journal, and
    /// all later calls fail with `Latched`.
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

    /// Makes all records appended before the call durable. Afterwards, if half of the segment is
    /// used, preallocates the next one.
    ///
    /// Errors: a failed sync latches the journal, because the state on disk is unknown from then
    /// on. Failure to preallocate the next segment is not an error.
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

    /// Returns the state to sync; `None` if everything is on disk.
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

    /// Records a completed sync. A segment closed during the sync stays in `unsynced`, because its
    /// last frames are not on disk.
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

    /// Returns the address of the next frame. Everything before it was appended.
    pub fn position(&self) -> Address {
        self.writer.lock().end
    }

    /// Returns the number of the last appended frame.
    pub fn last_number(&self) -> u64 {
        self.writer.lock().link.seq
    }

    /// Reports whether all frames up to this number are on disk.
    pub fn is_on_disk(&self, number: u64) -> bool {
        self.writer.lock().durable >= number
    }

    /// Returns the start of the last frame, if known.
    pub fn last(&self) -> Option<Address> {
        self.writer.lock().last
    }

    /// Returns the address of the first frame.
    pub fn start(&self) -> Address {
        Address {
            segment: self.first,
            offset: SEGMENT_HEADER,
        }
    }

    /// Returns the journal position up to which the tree was on disk at open: the end, except after
    /// a power cut. No operation recorded after it took effect (on btrfs, except for files synced
    /// by applications). See `tail`.
    pub fn witness(&self) -> Address {
        self.witness
    }

    /// Returns the time of the previous daemon's last append, nanoseconds since 1970, if a tail
    /// existed at open. Unlike the times of segments, which a power cut may revert, it is not
    /// before any recorded change.
    pub fn tail_written_ns(&self) -> Option<i64> {
        self.tail_written_ns
    }

    /// Reports whether a write or sync failed, so that the journal rejects appends.
    pub fn is_latched(&self) -> bool {
        self.latched.load(Ordering::Acquire)
    }

    /// Rejects all further appends: data that the journal refers to, or its own end, may not be on
    /// disk, and no later sync would report that.
    pub fn latch(&self) {
        self.latched.store(true, Ordering::Release);
    }

    /// Writes the buffer at the end: to the tail, which is metadata and so reaches the disk before
    /// any later change, and to the segment.
    fn write(&self, writer: &mut JournalWriter) -> StoreResult<()> {
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

    /// Continues in the next segment. On failure to create it nothing has changed.
    fn roll(&self, writer: &mut JournalWriter) -> StoreResult<()> {
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

    /// Ensures that `total` further bytes leave space for records that mount and free on a full
    /// disk.
    ///
    /// Errors: `Io` with ENOSPC; nothing has changed then.
    fn keep_headroom(&self, writer: &mut JournalWriter, total: u32) -> StoreResult<()> {
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
            // The segment is permanent: it will exist when needed.
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

    /// Latches the journal unless the failed write provably left nothing. On a full disk it may
    /// have written nothing or can be truncated; truncation also fails if a btrfs quota is
    /// exhausted.
    fn write_failed(&self, writer: &JournalWriter, errno: Errno) -> StoreError {
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
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
