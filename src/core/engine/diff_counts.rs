//! Cache of the number of paths that differ between two checkpoints.
//!
//! Checkpoints are immutable, so a number stays valid whatever else is deleted, undone or freed: a
//! checkpoint with a new parent is another pair. Only the loss of data can change a comparison; it
//! empties the cache.

use std::collections::BTreeMap;

use ckptfs_api::CheckpointId;
use ckptfs_sys::lock::Mutex;

/// Limit of pairs; those of the newest checkpoints are kept. About 50 bytes each.
const PAIRS_MAX: usize = 16_384;

/// A checkpoint and its parent.
pub(super) type Pair = (CheckpointId, CheckpointId);

/// The cache. A leaf lock.
#[derive(Default)]
pub(super) struct DiffCountCache(Mutex<CountTable>);

#[derive(Default)]
struct CountTable {
    /// See [`crate::history::losses::Losses::count`].
    losses: u64,
    pairs: BTreeMap<Pair, u64>,
}

impl DiffCountCache {
    /// Returns a number counted at this state of the losses.
    pub(super) fn get(&self, pair: Pair, losses: u64) -> Option<u64> {
        let known = self.0.lock();
        known
            .pairs
            .get(&pair)
            .copied()
            .filter(|_| known.losses == losses)
    }

    /// Stores a number; `losses` was read before counting.
    pub(super) fn put(&self, pair: Pair, losses: u64, count: u64) {
        let mut known = self.0.lock();
        if known.losses < losses {
            *known = CountTable {
                losses,
                pairs: BTreeMap::new(),
            };
        }
        if known.losses == losses {
            known.pairs.insert(pair, count);
        }
        if known.pairs.len() > PAIRS_MAX {
            known.pairs.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_before_a_loss_is_not_told_after_it() {
        let (counted, pair) = (
            DiffCountCache::default(),
            (CheckpointId(2), CheckpointId(1)),
        );
        counted.put(pair, 0, 7);
        assert_eq!(
            (counted.get(pair, 0), counted.get(pair, 1)),
            (Some(7), None)
        );
        counted.put(pair, 1, 8);
        counted.put(pair, 0, 7);
        assert_eq!(
            (counted.get(pair, 0), counted.get(pair, 1)),
            (None, Some(8))
        );
    }

    #[test]
    fn the_newest_are_kept() {
        let counted = DiffCountCache::default();
        (0..=PAIRS_MAX as u64)
            .for_each(|id| counted.put((CheckpointId(id + 1), CheckpointId(id)), 0, id));
        let get = |id| counted.get((CheckpointId(id + 1), CheckpointId(id)), 0);
        assert_eq!(
            (get(0), get(1), get(PAIRS_MAX as u64)),
            (None, Some(1), Some(PAIRS_MAX as u64))
        );
    }
}
