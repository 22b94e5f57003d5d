//! Packing of closed segments. Module `pack` has the byte layout.
//!
//! Only frames on disk are packed, and never the current segment, so that recovery, which examines
//! the end, finds segments unchanged. A reader of a segment that is being packed continues with the
//! old file.

use super::frame::{FrameAt, Link};
use super::pack::{self, Packer};
use super::segment::{SEGMENT_HEADER, SegmentReader};
use super::{Address, Journal, codec};
use crate::error::{StoreError, StoreResult};
use crate::record::Record;
use ckptfs_sys as sys;
use ckptfs_sys::lock::MutexGuard;

/// The decision about a record when its segment is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackDecision {
    /// The record stays.
    Keep,
    /// It is replaced by this smaller record.
    Less(Record),
    /// It is left out.
    LeaveOut,
}

/// The pack of a segment, not yet written.
pub struct BuiltPack {
    number: u32,
    bytes: Vec<u8>,
}

impl Journal {
    /// Returns the numbers of the closed segments, in order, and whether each is packed.
    ///
    /// Errors: `Io`.
    pub fn closed(&self) -> StoreResult<Vec<(u32, bool)>> {
        let (all, packed) = super::segment::list(&self.dir)?;
        let end = self.position().segment;
        Ok(all
            .into_iter()
            .filter(|number| *number < end)
            .map(|number| (number, packed.binary_search(&number).is_ok()))
            .collect())
    }

    /// Closes the current segment if it is longer than `bytes`, so that it can be packed. Appends
    /// an empty record.
    ///
    /// Errors: those of [`Journal::append`].
    pub fn close_segment(&self, bytes: u32) -> StoreResult<()> {
        let end = self.position();
        if end.offset > bytes.max(SEGMENT_HEADER) {
            // Before appends are blocked, because on btrfs this syncs the filesystem.
            self.segment_for_writing(end.segment.saturating_add(1))?;
            sys::awake(|| self.append_to(&[Record::Moved { places: Vec::new() }], true))?;
        }
        Ok(())
    }

    /// Builds the pack of a closed segment with the decisions of `judge`; writes nothing. `None`:
    /// it is already packed, and all records stay.
    ///
    /// Errors: `JournalDamaged`, `BadRecord`, `Io`, and those of `judge`.
    pub fn pack(
        &self,
        number: u32,
        judge: &mut dyn FnMut(Address, Record) -> StoreResult<PackDecision>,
    ) -> StoreResult<Option<BuiltPack>> {
        let key = &self.identity.key;
        let source = self.segment_for_reading(number)?;
        let was_packed = source.is_packed();
        let mut window = SegmentReader::new(source, number, u32::MAX);
        let mut at = Address {
            segment: number,
            offset: SEGMENT_HEADER,
        };
        let (first, _) = window.first(key)?.ok_or(at.damaged())?;
        let mut packer = Packer::new(first);
        loop {
            match window.look(at.offset, key)? {
                FrameAt::Frame(header, payload, hash) => {
                    if packer.last() != header.before() {
                        return Err(at.damaged());
                    }
                    let record = codec::decode(header.kind, payload)
                        .map_err(|source| StoreError::BadRecord { at, source })?;
                    match judge(at, record)? {
                        PackDecision::Keep => packer.keep(&header, payload, hash),
                        PackDecision::Less(record) => packer.change(&header, &record, hash)?,
                        PackDecision::LeaveOut => packer.leave_out(&header, hash),
                    }
                    at = window.end_of(at.offset, &header);
                }
                FrameAt::Gap(gap) => {
                    packer.pass_gap(at.offset, &gap);
                    at.offset = gap.end;
                }
                FrameAt::Nothing => break,
                FrameAt::Rubbish => return Err(at.damaged()),
            }
        }
        // The segment was read completely if the next one continues its last link.
        if self.first_link(number.saturating_add(1))? != Some(packer.last()) {
            return Err(at.damaged());
        }
        if was_packed && !packer.is_less {
            return Ok(None);
        }
        Ok(Some(BuiltPack {
            number,
            bytes: packer.finish(&self.identity, number)?,
        }))
    }

    /// Prevents packs from replacing segments until the guard is dropped. Several scans then see
    /// the same records, and a scan never sees a record without others that were left out with it.
    /// Appends continue.
    pub fn hold_packs(&self) -> MutexGuard<'_, ()> {
        self.packing.lock()
    }

    /// Replaces a segment by its pack, once all records appended before the call are on disk.
    /// Durable on return; on failure nothing has changed.
    ///
    /// Errors: `Io`, `Latched`.
    pub fn put_packed(&self, packed: &BuiltPack) -> StoreResult<()> {
        // A thread that waits for this lock must not wait for one in the idle class.
        sys::awake(|| {
            let _packing = self.hold_packs();
            self.sync()?;
            let put = pack::put(&self.dir, &self.identity, packed.number, &packed.bytes);
            let mut readers = self.readers.lock();
            readers.turn += 1;
            readers.open.remove(&packed.number);
            put
        })
    }

    /// Returns the link that the first frame of a segment continues, if it has a frame.
    fn first_link(&self, number: u32) -> StoreResult<Option<Link>> {
        Ok(
            SegmentReader::new(self.segment_for_reading(number)?, number, u32::MAX)
                .first(&self.identity.key)?
                .map(|(before, _)| before),
        )
    }
}
