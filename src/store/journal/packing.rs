//! Packing closed segments. See `pack` for the bytes.
//!
//! Only what is on disk is packed, and never the segment that is written: so recovery, which looks
//! at the end, finds segments as they were. Whoever reads a segment while it is packed goes on in
//! the old file.

use super::frame::{Link, Seen};
use super::pack::{self, Packer};
use super::segment::{SEGMENT_HEADER, Window};
use super::{Address, Journal, codec};
use crate::store::error::{StoreError, StoreResult};
use crate::store::record::Record;
use crate::sys;
use crate::sys::lock::MutexGuard;

/// What becomes of a record when its segment is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Keep,
    /// This much of it stays.
    Less(Record),
    /// It goes.
    LeaveOut,
}

/// A segment as it will be.
pub struct Packed {
    number: u32,
    bytes: Vec<u8>,
}

impl Journal {
    /// Numbers of the segments that are closed, in order, and whether each is packed.
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

    /// Closes the segment that is written, if it holds more than `bytes`, so that it can be packed.
    /// What it appends says nothing.
    ///
    /// Errors: those of [`Journal::append`].
    pub fn close_segment(&self, bytes: u32) -> StoreResult<()> {
        let end = self.position();
        if end.offset > bytes.max(SEGMENT_HEADER) {
            // Before anybody is kept from appending: on btrfs it syncs the filesystem.
            self.segment_for_writing(end.segment.saturating_add(1))?;
            sys::awake(|| self.append_to(&[Record::Moved { places: Vec::new() }], true))?;
        }
        Ok(())
    }

    /// Makes the pack of a closed segment of what `judge` says of its records; nothing is written.
    /// `None`: it is packed, and all of it stays.
    ///
    /// Errors: `JournalDamaged`, `BadRecord`, `Io`, and what the judge returns.
    pub fn pack(
        &self,
        number: u32,
        judge: &mut dyn FnMut(Address, Record) -> StoreResult<Verdict>,
    ) -> StoreResult<Option<Packed>> {
        let key = &self.identity.key;
        let source = self.segment_for_reading(number)?;
        let was_packed = source.is_packed();
        let mut window = Window::new(source, number, u32::MAX);
        let mut at = Address {
            segment: number,
            offset: SEGMENT_HEADER,
        };
        let (first, _) = window.first(key)?.ok_or(at.damaged())?;
        let mut packer = Packer::new(first);
        loop {
            match window.look(at.offset, key)? {
                Seen::Frame(header, payload, hash) => {
                    if packer.last() != header.before() {
                        return Err(at.damaged());
                    }
                    let record = codec::decode(header.kind, payload)
                        .map_err(|source| StoreError::BadRecord { at, source })?;
                    match judge(at, record)? {
                        Verdict::Keep => packer.keep(&header, payload, hash),
                        Verdict::Less(record) => packer.change(&header, &record, hash)?,
                        Verdict::LeaveOut => packer.leave_out(&header, hash),
                    }
                    at = window.end_of(at.offset, &header);
                }
                Seen::Gap(gap) => {
                    packer.pass_gap(at.offset, &gap);
                    at.offset = gap.end;
                }
                Seen::Nothing => break,
                Seen::Rubbish => return Err(at.damaged()),
            }
        }
        // All of it was seen, if the next one goes on where it ends.
        if self.first_link(number.saturating_add(1))? != Some(packer.last()) {
            return Err(at.damaged());
        }
        if was_packed && !packer.is_less {
            return Ok(None);
        }
        Ok(Some(Packed {
            number,
            bytes: packer.finish(&self.identity, number)?,
        }))
    }

    /// Keeps every segment as it is until the guard is dropped: no pack replaces one, so several
    /// scans see the same records, and one scan sees no record without those that were left out
    /// with it. Appends go on.
    pub fn hold_packs(&self) -> MutexGuard<'_, ()> {
        self.packing.lock()
    }

    /// Puts a pack in the place of its segment, when all that was appended before the call is on
    /// the disk. Durable on return; nothing has changed if it fails.
    ///
    /// Errors: `Io`, `Latched`.
    pub fn put_packed(&self, packed: &Packed) -> StoreResult<()> {
        // A thread that waits for this lock does not wait for an idle one.
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

    /// What the first frame of a segment continues, if it has one.
    fn first_link(&self, number: u32) -> StoreResult<Option<Link>> {
        Ok(
            Window::new(self.segment_for_reading(number)?, number, u32::MAX)
                .first(&self.identity.key)?
                .map(|(before, _)| before),
        )
    }
}
