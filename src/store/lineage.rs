//! The parent of each checkpoint.
//!
//! The parent is the preceding checkpoint, unless the whole tree was restored in between: then it
//! is the restored one. The journal needs no extra record for this: a restore names its guard, the
//! checkpoint made right before it, so the next one is a child of the restored one. A restore of
//! some paths has no effect.

use std::collections::{BTreeMap, BTreeSet};

use ckptfs_api::CheckpointId;

/// Parents of checkpoints, independent of which are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage(BTreeMap<CheckpointId, CheckpointId>);

impl Lineage {
    /// Adds a restore of `target` guarded by `guard`. Returns the checkpoint that becomes a child
    /// of `target`, or `None` for a restore of some paths.
    pub fn restored(
        &mut self,
        target: CheckpointId,
        guard: CheckpointId,
        paths: &[Vec<u8>],
    ) -> Option<CheckpointId> {
        let child = CheckpointId(guard.0.checked_add(1)?);
        if !paths.is_empty() {
            return None;
        }
        self.put(child, target);
        Some(child)
    }

    /// Sets `parent` as the parent of `child`.
    pub fn put(&mut self, child: CheckpointId, parent: CheckpointId) {
        // A parent is older than its child; other entries are invalid.
        if parent < child {
            self.0.insert(child, parent);
        }
    }

    /// Returns the children whose entries are not needed if these checkpoints are kept, and `next`
    /// is the next id. For any subset of the kept checkpoints [`Lineage::parent`] returns the same
    /// without them.
    pub fn unneeded(
        &self,
        kept: &BTreeSet<CheckpointId>,
        next: CheckpointId,
    ) -> BTreeSet<CheckpointId> {
        let mut unneeded: BTreeSet<CheckpointId> = self.0.keys().copied().collect();
        let Some(oldest) = kept.first() else {
            return unneeded;
        };
        // No parent is found below the oldest.
        for id in kept.iter().skip(1).chain([&next]) {
            unneeded.remove(id);
            let mut at = self
                .0
                .get(id)
                .copied()
                .or(id.0.checked_sub(1).map(CheckpointId));
            while let Some((branch, parent)) = at
                .and_then(|at| self.0.range(..=at).next_back())
                .filter(|(branch, _)| *branch > oldest)
            {
                // The rest of the path was already followed if this branch was removed before.
                at = Some(*parent).filter(|_| unneeded.remove(branch));
            }
        }
        unneeded
    }

    /// Removes entries that are not needed.
    pub fn forget(&mut self, unneeded: &BTreeSet<CheckpointId>) {
        self.0.retain(|child, _| !unneeded.contains(child));
    }

    /// Returns whether `id` is checkpoint `epoch` or descends from it, and so from the changes of
    /// that epoch, even if that checkpoint is not kept.
    pub fn comes_by(&self, id: CheckpointId, epoch: CheckpointId) -> bool {
        let mut at = id;
        while at >= epoch {
            match self.0.range(..=at).next_back() {
                // From `branch` on, each parent is the preceding checkpoint.
                Some((branch, parent)) if *branch > epoch => at = *parent,
                _ => return true,
            }
        }
        false
    }

    /// Returns the nearest kept ancestor of `id`; `kept` returns the newest kept checkpoint up to a
    /// number. The cost depends on the branches in between, not on deleted checkpoints: often many
    /// of the oldest are deleted.
    pub fn parent(
        &self,
        id: CheckpointId,
        kept: impl Fn(CheckpointId) -> Option<CheckpointId>,
    ) -> Option<CheckpointId> {
        let mut at = match self.0.get(&id) {
            Some(parent) => *parent,
            None => CheckpointId(id.0.checked_sub(1)?),
        };
        while at.0 > 0 {
            let found = kept(at).filter(|found| found.0 > 0);
            // Down to the start of this branch, each parent is the preceding checkpoint.
            match self.0.range(..=at).next_back() {
                Some((branch, parent)) if found.is_none_or(|found| found < *branch) => at = *parent,
                _ => return found,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_of_the_whole_tree_makes_a_branch() {
        let id = CheckpointId;
        let mut lineage = Lineage::default();
        assert_eq!(lineage.restored(id(1), id(3), &[]), Some(id(4)));
        assert_eq!(lineage.restored(id(2), id(5), &[b"path".to_vec()]), None);
        lineage.put(id(8), id(8));
        let newest = |kept: fn(CheckpointId) -> bool| {
            move |to: CheckpointId| (1..=to.0).rev().map(CheckpointId).find(|id| kept(*id))
        };
        let parents = |kept| {
            (1..=8)
                .map(|n| lineage.parent(id(n), newest(kept)).map(|parent| parent.0))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            parents(|_| true),
            [
                None,
                Some(1),
                Some(2),
                Some(1),
                Some(4),
                Some(5),
                Some(6),
                Some(7)
            ]
        );
        // Checkpoints that are not kept are skipped along the branch.
        assert_eq!(
            parents(|id| ![1, 3, 5].contains(&id.0)),
            [
                None,
                None,
                Some(2),
                None,
                Some(4),
                Some(4),
                Some(6),
                Some(7)
            ]
        );
    }

    #[test]
    fn what_was_restored_away_is_nothing_that_one_comes_by() {
        let id = CheckpointId;
        let mut lineage = Lineage::default();
        // The restore guarded by 5 restores 3, so 6 is a child of 3. The one guarded by 8 restores
        // 5.
        lineage.put(id(6), id(3));
        lineage.put(id(9), id(5));
        let by = |at| {
            (1..=10)
                .filter(|epoch| lineage.comes_by(id(at), id(*epoch)))
                .collect::<Vec<u64>>()
        };
        assert_eq!(by(5), [1, 2, 3, 4, 5]);
        assert_eq!(by(7), [1, 2, 3, 6, 7]);
        assert_eq!(by(10), [1, 2, 3, 4, 5, 9, 10]);
    }

    /// The parents of every set of kept checkpoints are unchanged.
    #[test]
    fn what_no_kept_checkpoint_comes_by_is_not_needed() {
        let id = CheckpointId;
        for seed in 0..2000_u64 {
            let random = |number: u64, below: u64| {
                let hash = blake3::hash(&[seed.to_le_bytes(), number.to_le_bytes()].concat());
                u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap()) % below
            };
            let mut lineage = Lineage::default();
            (2..=12)
                .filter(|child| random(*child, 3) == 0)
                .for_each(|child| lineage.put(id(child), id(1 + random(100 + child, child - 1))));
            let kept: BTreeSet<CheckpointId> = (1..=12)
                .filter(|number| random(200 + number, 3) == 0)
                .map(id)
                .collect();
            let mut less = lineage.clone();
            less.forget(&lineage.unneeded(&kept, id(13)));
            for part in 0..8 {
                let of = |number: u64| part == 0 || random(300 + 20 * part + number, 2) == 0;
                let newest =
                    |to: CheckpointId| kept.range(..=to).rev().find(|kept| of(kept.0)).copied();
                for asked in kept.iter().copied().chain([id(13), id(14)]) {
                    assert_eq!(
                        lineage.parent(asked, newest),
                        less.parent(asked, newest),
                        "{asked} of {kept:?} in {lineage:?}, {less:?}"
                    );
                }
            }
        }
        // Repeated restores of one checkpoint leave a single branch.
        let mut lineage = Lineage::default();
        (1..1000).for_each(|number| lineage.put(id(2 * number), id(1)));
        let kept = [1, 1996, 1997, 1998].map(id).into();
        assert_eq!(lineage.unneeded(&kept, id(1999)).len(), 997);
    }

    /// The search visited every number: deleting 5,000 of 67,000 checkpoints, oldest first, took
    /// half a minute.
    #[test]
    fn a_parent_is_found_beyond_any_number_that_was_deleted() {
        let (id, asked) = (CheckpointId, std::cell::Cell::new(0));
        let mut lineage = Lineage::default();
        lineage.put(id(500_000), id(2));
        let kept = |to: CheckpointId| {
            asked.set(asked.get() + 1);
            [3, 2, 1].into_iter().map(id).find(|kept| *kept <= to)
        };
        assert_eq!(
            (
                lineage.parent(id(1_000_000), kept),
                lineage.parent(id(499_999), kept)
            ),
            (Some(id(2)), Some(id(3)))
        );
        assert_eq!(asked.get(), 3);
    }
}
