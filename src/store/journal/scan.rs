//! Sequential reading of the journal.

use super::frame::{FrameAt, Link};
use super::order::RecordOrder;
use super::segment::{SEGMENT_HEADER, SegmentReader};
use super::{Address, Journal, codec};
use crate::error::{StoreError, StoreResult};
use crate::record::Record;

/// Iterates over records in order, with their addresses; see [`Journal::scan`].
pub struct Scan<'a> {
    journal: &'a Journal,
    at: Address,
    to: Address,
    window: Option<SegmentReader>,
    link: Option<Link>,
    order: RecordOrder,
}

impl<'a> Scan<'a> {
    pub(super) fn new(journal: &'a Journal, from: Address, to: Address) -> Scan<'a> {
        let order = if from == journal.start() {
            RecordOrder::of_all()
        } else {
            RecordOrder::default()
        };
        Scan {
            journal,
            at: from,
            to,
            window: None,
            link: None,
            order,
        }
    }

    /// Returns the end of the last returned record; a scan from here returns the next one.
    pub fn position(&self) -> Address {
        self.at
    }

    fn step(&mut self) -> StoreResult<Option<(Address, Record)>> {
        while self.at < self.to {
            let at = self.at;
            let mut window = match self
                .window
                .take()
                .filter(|window| window.number() == at.segment)
            {
                Some(window) => window,
                None => {
                    let end = if at.segment == self.to.segment {
                        self.to.offset
                    } else {
                        u32::MAX
                    };
                    SegmentReader::new(
                        self.journal.segment_for_reading(at.segment)?,
                        at.segment,
                        end,
                    )
                }
            };
            match window.look(at.offset, &self.journal.identity.key)? {
                FrameAt::Frame(header, payload, hash) => {
                    if self.link.is_some_and(|link| link != header.before()) {
                        return Err(at.damaged());
                    }
                    let record = codec::decode(header.kind, payload)
                        .and_then(|record| self.order.take(&record).map(|()| record));
                    let record = record.map_err(|source| StoreError::BadRecord { at, source })?;
                    self.link = Some(Link {
                        seq: header.seq,
                        hash,
                    });
                    self.at = window.end_of(at.offset, &header);
                    self.window = Some(window);
                    return Ok(Some((at, record)));
                }
                FrameAt::Gap(gap) => {
                    if self.link.is_some_and(|link| link != gap.before) {
                        return Err(at.damaged());
                    }
                    self.order
                        .pass(gap.after.seq.saturating_sub(gap.before.seq));
                    self.link = Some(gap.after);
                    self.at.offset = gap.end;
                    self.window = Some(window);
                }
                FrameAt::Nothing if at.segment < self.to.segment => {
                    self.at = Address {
                        segment: at.segment.saturating_add(1),
                        offset: SEGMENT_HEADER,
                    };
                }
                FrameAt::Nothing | FrameAt::Rubbish => return Err(at.damaged()),
            }
        }
        Ok(None)
    }
}

impl Iterator for Scan<'_> {
    type Item = StoreResult<(Address, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.to = self.at;
        }
        step.transpose()
    }
}
