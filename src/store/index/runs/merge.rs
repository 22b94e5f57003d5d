//! Selection of the runs to merge, and ordered iteration over several runs.

use std::ops::Range;

use super::run::RunCursor;
use super::{FAN, ListedRun, VoidRecords, is_struck, keys};
use crate::error::StoreResult;
use ckptfs_api::Epoch;

/// Returns the newest neighbours of one level that are at least [`FAN`].
pub fn due(runs: &[ListedRun]) -> Option<Range<usize>> {
    let mut end = runs.len();
    while let Some(level) = end
        .checked_sub(1)
        .and_then(|last| runs.get(last))
        .map(|listed| listed.level)
    {
        let start = runs
            .iter()
            .take(end)
            .rposition(|listed| listed.level != level)
            .map_or(0, |before| before + 1);
        if end - start >= FAN {
            return Some(start..end);
        }
        end = start;
    }
    None
}

/// A record: key, epoch, value.
pub type RunEntry<'a> = (&'a [u8], Epoch, &'a [u8]);

/// The records of several runs (oldest first) in order of keys and epochs, without void ones. For
/// an equal key and epoch the oldest run counts, for places the newest.
pub struct MergeIter<'a> {
    struck: &'a VoidRecords,
    /// Cursors at their next entry; those at the end are removed.
    cursors: Vec<(RunCursor<'a>, &'a ListedRun)>,
    /// The record returned last.
    key: Vec<u8>,
    epoch: Epoch,
    value: Vec<u8>,
    begun: bool,
}

impl<'a> MergeIter<'a> {
    /// Starts at the first key that is not less than `from`.
    pub fn new(
        runs: &'a [ListedRun],
        struck: &'a VoidRecords,
        from: &[u8],
    ) -> StoreResult<MergeIter<'a>> {
        let mut cursors = Vec::with_capacity(runs.len());
        for listed in runs {
            let mut cursor = RunCursor::new(&listed.run, None);
            let found = if from.is_empty() {
                cursor.next()?
            } else {
                cursor.seek(from, Epoch(0))?
            };
            if found {
                cursors.push((cursor, listed));
            }
        }
        Ok(MergeIter {
            struck,
            cursors,
            key: Vec::new(),
            epoch: Epoch(0),
            value: Vec::new(),
            begun: false,
        })
    }

    /// Returns the previous record again.
    pub fn last(&self) -> RunEntry<'_> {
        (&self.key, self.epoch, &self.value)
    }

    /// Returns the cursor with the least entry.
    fn least(&self) -> Option<usize> {
        let mut least: Option<(usize, &RunCursor<'_>)> = None;
        for (at, (cursor, _)) in self.cursors.iter().enumerate() {
            let order =
                least.map(|(_, least)| (&cursor.key, cursor.epoch).cmp(&(&least.key, least.epoch)));
            if order
                .is_none_or(|order| order.is_lt() || (order.is_eq() && keys::is_place(&cursor.key)))
            {
                least = Some((at, cursor));
            }
        }
        least.map(|(at, _)| at)
    }

    /// Returns the next record.
    pub fn next(&mut self) -> StoreResult<Option<RunEntry<'_>>> {
        loop {
            let Some((at, (cursor, listed))) = self
                .least()
                .and_then(|at| Some((at, self.cursors.get(at)?)))
            else {
                return Ok(None);
            };
            let known = self.begun && (&cursor.key, cursor.epoch) == (&self.key, self.epoch);
            let skip = known || is_struck(self.struck, listed, &cursor.key, cursor.epoch);
            if !skip {
                (self.epoch, self.begun) = (cursor.epoch, true);
                self.key.clone_from(&cursor.key);
                self.value.clear();
                self.value.extend_from_slice(cursor.value());
            }
            let ended = match self.cursors.get_mut(at) {
                Some((cursor, _)) => !cursor.next()?,
                None => false,
            };
            if ended {
                self.cursors.remove(at);
            }
            if !skip {
                return Ok(Some(self.last()));
            }
        }
    }
}
