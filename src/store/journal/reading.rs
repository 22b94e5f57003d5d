//! Reading single records, and which segments are kept open for that.

use std::collections::BTreeMap;

use super::frame::{self, Seen};
use super::segment::{self, Source};
use super::{Address, Journal, Scan, codec};
use crate::store::error::{StoreError, StoreResult};
use crate::store::record::Record;

/// Segment files that are kept open for reading.
const READERS_MAX: usize = 64;
/// Packed segments that are kept in memory, of some megabytes each.
const PACKS_MAX: usize = 2;
/// [`Journal::read`] reads this much at first: nearly every frame is smaller.
const READ_FIRST: usize = 1024;

/// Segments that are kept open for reading.
#[derive(Default)]
pub(super) struct Readers {
    pub open: BTreeMap<u32, Source>,
    /// How many were packed: what was opened before is not kept.
    pub turn: u64,
}

impl Journal {
    /// The record of the frame that begins here; its hash is checked.
    ///
    /// Errors: `JournalDamaged` if there is no whole frame, `BadRecord` if it cannot be decoded,
    /// `Io`.
    pub fn read(&self, at: Address) -> StoreResult<Record> {
        self.read_if_needed(at)?.ok_or(at.damaged())
    }

    /// As [`Journal::read`]; `None`: it was left out when its segment was packed.
    ///
    /// Errors: as [`Journal::read`].
    pub fn read_if_needed(&self, at: Address) -> StoreResult<Option<Record>> {
        let file = match self.segment_for_reading(at.segment)? {
            Source::File(file) => file,
            Source::Pack(pack) => return self.decode(at, pack.look(at.offset)),
        };
        let failed =
            || StoreError::io("read the journal's segment", segment::file_name(at.segment));
        let mut first = [0; READ_FIRST];
        let filled =
            segment::read_up_to(&file, &mut first, u64::from(at.offset)).map_err(failed())?;
        let have = first.get(..filled).unwrap_or_default();
        let header = frame::Header::parse(have).filter(frame::Header::plausible);
        let Some(total) = header.and_then(|header| header.total()) else {
            return self.decode(at, Seen::Rubbish);
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

    fn decode(&self, at: Address, seen: Seen<'_>) -> StoreResult<Option<Record>> {
        match seen {
            Seen::Frame(header, payload, _) => codec::decode(header.kind, payload)
                .map(Some)
                .map_err(|source| StoreError::BadRecord { at, source }),
            Seen::Gap(_) => Ok(None),
            Seen::Nothing | Seen::Rubbish => Err(at.damaged()),
        }
    }

    /// The records from one place up to another, or up to the end as it is now. Each frame's hash
    /// and the chain between them are checked. After an error it ends.
    pub fn scan(&self, from: Address, to: Option<Address>) -> Scan<'_> {
        Scan::new(
            self,
            from.max(self.start()),
            to.unwrap_or_else(|| self.position()),
        )
    }

    pub(super) fn segment_for_reading(&self, number: u32) -> StoreResult<Source> {
        let turn = {
            let readers = self.readers.lock();
            if let Some(source) = readers.open.get(&number) {
                return Ok(source.clone());
            }
            readers.turn
        };
        let source = Source::open(&self.dir, &self.identity, number)?;
        let mut readers = self.readers.lock();
        if readers.turn == turn {
            readers.keep(number, source.clone());
        }
        Ok(source)
    }
}

impl Readers {
    /// Keeps one open, and closes others if they are too many.
    fn keep(&mut self, number: u32, source: Source) {
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
