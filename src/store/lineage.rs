//! Which checkpoint each comes from: its parent.
//!
//! A checkpoint comes from the one before it, unless the whole tree was restored in between: then
//! from what was restored. The journal says so without a record of its own: a restore names the
//! checkpoint that was made right before it, its guard, so the next one comes from what it
//! restored. A restore of some paths changes nothing of it.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::CheckpointId;

/// Where checkpoints come from. Knows nothing of which are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage(BTreeMap<CheckpointId, CheckpointId>);

impl Lineage {
    /// A restore of `target` began, guarded by `guard`: which checkpoint will come from `target`,
    /// if it is another than would have anyway.
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

    /// `child` comes from `parent`.
    pub fn put(&mut self, child: CheckpointId, parent: CheckpointId) {
        // Each comes from an older one; what says otherwise is no lineage.
        if parent < child {
            self.0.insert(child, parent);
        }
    }

    /// Of which children nobody need know where they come from, if these checkpoints are kept,
    /// oldest first, and `next` is the next: whichever of the kept ones are asked for,
    /// [`Lineage::parent`] answers the same without.
    pub fn unneeded(
        &self,
        kept: &BTreeSet<CheckpointId>,
        next: CheckpointId,
    ) -> BTreeSet<CheckpointId> {
        let mut unneeded: BTreeSet<CheckpointId> = self.0.keys().copied().collect();
        let Some(oldest) = kept.first() else {
            return unneeded;
        };
        // Below the oldest nothing is found, whichever way.
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
                // Where one went already, this goes on as it did.
                at = Some(*parent).filter(|_| unneeded.remove(branch));
            }
        }
        unneeded
    }

    /// These are not asked for any more.
    pub fn forget(&mut self, unneeded: &BTreeSet<CheckpointId>) {
        self.0.retain(|child, _| !unneeded.contains(child));
    }

    /// Whether `id` is what checkpoint `epoch` was to become, or comes from that: so from what was
    /// done between the one before and `epoch`, whether or not that is kept.
    pub fn comes_by(&self, id: CheckpointId, epoch: CheckpointId) -> bool {
        let mut at = id;
        while at >= epoch {
            match self.0.range(..=at).next_back() {
                // From `branch` on each comes from the one before.
                Some((branch, parent)) if *branch > epoch => at = *parent,
                _ => return true,
            }
        }
        false
    }

    /// The nearest checkpoint that `id` comes from and that is kept; `kept` gives the newest one
    /// that is, up to a number. Costs the branches in between, and not what was deleted there: many
    /// are deleted the oldest first.
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
            // Down to the beginning of this branch each comes from the one before.
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
        // What is not kept is passed over, along the branch.
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
        // Guarded by 5 it is what 3 was: 6 comes from 3. Guarded by 8 it is what 5 was.
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

    /// Each set of kept ones has the parents that it had.
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
        // One that was restored again and again leaves a single branch.
        let mut lineage = Lineage::default();
        (1..1000).for_each(|number| lineage.put(id(2 * number), id(1)));
        let kept = [1, 1996, 1997, 1998].map(id).into();
        assert_eq!(lineage.unneeded(&kept, id(1999)).len(), 997);
    }

    /// It went from number to number: to delete 5,000 of 67,000, the oldest first, took half a
    /// minute.
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
