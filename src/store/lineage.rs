//! Which checkpoint each comes from: its parent.
//!
//! A checkpoint comes from the one before it, unless the whole tree was restored in between: then from what was restored. The journal says
//! so without a record of its own: a restore names the checkpoint that was made right before it, its guard, so the next one comes from what it restored.
//! A restore of some paths changes nothing of it.

use std::collections::BTreeMap;

use super::ids::CheckpointId;

/// Where checkpoints come from. Knows nothing of which are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage(BTreeMap<CheckpointId, CheckpointId>);

impl Lineage {
    /// A restore of `target` began, guarded by `guard`: which checkpoint will come from `target`, if it is another than would have anyway.
    pub fn restored(&mut self, target: CheckpointId, guard: CheckpointId, paths: &[Vec<u8>]) -> Option<CheckpointId> {
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

    /// The nearest checkpoint that `id` comes from and that is kept; `kept` gives the newest one that is, up to a number. Costs the branches in between,
    /// and not what was deleted there: many are deleted the oldest first.
    pub fn parent(&self, id: CheckpointId, kept: impl Fn(CheckpointId) -> Option<CheckpointId>) -> Option<CheckpointId> {
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
        let newest = |kept: fn(CheckpointId) -> bool| move |to: CheckpointId| (1..=to.0).rev().map(CheckpointId).find(|id| kept(*id));
        let parents = |kept| (1..=8).map(|n| lineage.parent(id(n), newest(kept)).map(|parent| parent.0)).collect::<Vec<_>>();
        assert_eq!(parents(|_| true), [None, Some(1), Some(2), Some(1), Some(4), Some(5), Some(6), Some(7)]);
        // What is not kept is passed over, along the branch.
        assert_eq!(parents(|id| ![1, 3, 5].contains(&id.0)), [None, None, Some(2), None, Some(4), Some(4), Some(6), Some(7)]);
    }

    /// It went from number to number: to delete 5,000 of 67,000, the oldest first, took half a minute.
    #[test]
    fn a_parent_is_found_beyond_any_number_that_was_deleted() {
        let (id, asked) = (CheckpointId, std::cell::Cell::new(0));
        let mut lineage = Lineage::default();
        lineage.put(id(500_000), id(2));
        let kept = |to: CheckpointId| {
            asked.set(asked.get() + 1);
            [3, 2, 1].into_iter().map(id).find(|kept| *kept <= to)
        };
        assert_eq!((lineage.parent(id(1_000_000), kept), lineage.parent(id(499_999), kept)), (Some(id(2)), Some(id(3))));
        assert_eq!(asked.get(), 3);
    }
}
