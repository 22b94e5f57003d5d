//! Reading of single records, and the cache of open segments.

use std::collections::BTreeMap;

use super::frame::{self, FrameAt};
use super::segment::{self, SegmentSource};
use super::{Address, Journal, Scan, codec};
use crate::error::{StoreError, StoreResult};
use crate::record::Record;

/// Maximum number of segment files kept open for reading.
const READERS_MAX: usize = 64;
/// Maximum number of packed segments in memory, some megabytes each.
const PACKS_MAX: usize = 2;
/// Size of the first read of [`Journal::read`]; nearly all frames are smaller.
const READ_FIRST: usize = 1024;

/// Segments kept open for reading.
#[derive(Default)]
pub(super) struct Readers {
    pub open: BTreeMap<u32, SegmentSource>,
    /// Number of packs made: sources opened before the last one are not cached.
    pub turn: u64,
}

impl Journal {
    /// Returns the record of the frame that begins here, after checking its hash.
    ///
    /// Errors: `JournalDamaged` without a complete frame, `BadRecord` if it cannot be decoded,
    /// `Io`.
    pub fn read(&self, at: Address) -> StoreResult<Record> {
        self.read_if_needed(at)?.ok_or(at.damaged())
    }

    /// As [`Journal::read`]; `None`: the record was left out when its segment was packed.
    ///
    /// Errors: as [`Journal::read`].
    pub fn read_if_needed(&self, at: Address) -> StoreResult<Option<Record>> {
        let file = match self.segment_for_reading(at.segment)? {
            SegmentSource::File(file) => file,
            SegmentSource::Pack(pack) => return self.decode(at, pack.look(at.offset)),
        };
        let failed =
            || StoreError::io("read the journal's segment", segment::file_name(at.segment));
        let mut first = [0; READ_FIRST];
        let filled =
            segment::read_up_to(&file, &mut first, u64::from(at.offset)).map_err(failed())?;
        let have = first.get(..filled).unwrap_or_default();
        let header = frame::Header::parse(have).filter(frame::Header::plausible);
        let Some(total) = header.and_then(|header| header.total()) else {
            return self.decode(at, FrameAt::Rubbish);
        };
        let mut whole;
        let bytes = if total <= have.len() {
            have
        } else {
            whole = vec![0; total];
            let filled =
                segment::read_up_to(&file, &mut whole, u64::from(at.offset)).map_err(failed())?;
            whole.get(..filled).unwrap_or_default()
        };
        self.decode(at, frame::look(bytes, &self.identity.key))
    }

    fn decode(&self, at: Address, seen: FrameAt<'_>) -> StoreResult<Option<Record>> {
        match seen {
            FrameAt::Frame(header, payload, _) => codec::decode(header.kind, payload)
                .map(Some)
                .map_err(|source| StoreError::BadRecord { at, source }),
            FrameAt::Gap(_) => Ok(None),
            FrameAt::Nothing | FrameAt::Rubbish => Err(at.damaged()),
        }
    }

    /// Returns the records between two addresses, by default up to the current end. Verifies the
    /// hash of each frame and the chain. Ends after an error.
    pub fn scan(&self, from: Address, to: Option<Address>) -> Scan<'_> {
        Scan::new(
            self,
            from.max(self.start()),
            to.unwrap_or_else(|| self.position()),
        )
    }

    pub(super) fn segment_for_reading(&self, number: u32) -> StoreResult<SegmentSource> {
        let turn = {
            let readers = self.readers.lock();
            if let Some(source) = readers.open.get(&number) {
                return Ok(source.clone());
            }
            readers.turn
        };
        let source = SegmentSource::open(&self.dir, &self.identity, number)?;
        let mut readers = self.readers.lock();
        if readers.turn == turn {
            readers.keep(number, source.clone());
        }
        Ok(source)
    }
}

impl Readers {
    /// Caches a source, evicting another if there are too many.
    fn keep(&mut self, number: u32, source: SegmentSource) {
        let others = |packed| {
            self.open
                .iter()
                .filter(move |(_, other)| other.is_packed() == packed)
                .map(|(number, _)| *number)
        };
        let max = if source.is_packed() {
            PACKS_MAX
        } else {
            READERS_MAX
        };
        if others(source.is_packed()).count() >= max
            && let Some(first) = others(source.is_packed()).next()
        {
            self.open.remove(&first);
        }
        self.open.insert(number, source);
    }
}
