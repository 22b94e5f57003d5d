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

    /// The nearest checkpoint that `id` comes from and that is `kept`.
    pub fn parent(&self, id: CheckpointId, kept: impl Fn(CheckpointId) -> bool) -> Option<CheckpointId> {
        let before = |id: CheckpointId| match self.0.get(&id) {
            Some(parent) => Some(*parent),
            None => id.0.checked_sub(1).map(CheckpointId),
        };
        let mut at = before(id)?;
        while at.0 > 0 {
            if kept(at) {
                return Some(at);
            }
            at = before(at)?;
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
        let parents = |kept: fn(CheckpointId) -> bool| (1..=8).map(|n| lineage.parent(id(n), kept).map(|parent| parent.0)).collect::<Vec<_>>();
        assert_eq!(parents(|_| true), [None, Some(1), Some(2), Some(1), Some(4), Some(5), Some(6), Some(7)]);
        // What is not kept is passed over, along the branch.
        assert_eq!(parents(|id| ![1, 3, 5].contains(&id.0)), [None, None, Some(2), None, Some(4), Some(4), Some(6), Some(7)]);
    }
}
