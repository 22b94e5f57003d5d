//! The changes of a branch or its parent since their merge base.

use std::collections::BTreeSet;

use super::merge_base::BranchPair;
use super::prepare::{MergeInput, PreparedMerge, StatCaches};
use crate::engine::Engine;
use crate::engine::branches::{Branch, changes_since};
use crate::history::state::TreeState;
use crate::tree::merge::Conflict;
use ckptfs_api::{Change, ChangeKind, CheckpointId, Merge, TreePath, VerbResult};
use ckptfs_store::layout::merges::MergeInto;
use ckptfs_sys::{Kind, SysResult};

/// Returns the changes of one side since the merge base. O(changes): if the base is a checkpoint of
/// that side, from its history, otherwise from the records of both.
///
/// # Errors
/// Errors of reading both.
pub(in crate::engine) fn changed_by(
    kin: BranchPair<'_>,
    who: MergeInto,
) -> VerbResult<Vec<Change>> {
    let base = kin.base(TreeState::Live, TreeState::Live)?;
    let at = base.checkpoint;
    match who {
        MergeInto::Branch if kin.is_first(base) => {
            return changes_since(&kin.branch.engine, kin.branch.since);
        }
        MergeInto::Branch if base.of_branch => return changes_since(&kin.branch.engine, at),
        MergeInto::Parent if !base.of_branch => return changes_since(kin.parent, at),
        _ => {}
    }
    // A merge into the base yields exactly these changes.
    let into = match who {
        MergeInto::Branch => MergeInto::Parent,
        MergeInto::Parent => MergeInto::Branch,
    };
    let asked = Merge::default();
    kin.changed(who).checkpoints.settle();
    let states = (TreeState::At(at), TreeState::Live);
    let eyes = StatCaches::of(kin);
    let three = MergeInput::between((kin, into), base, states, (&asked, &eyes))?;
    let mut changes = three.prepare(&|_| Ok(()))?.changes;
    changes.retain(|change| !(change.change == ChangeKind::Modified && change.kind == Kind::Dir));
    Ok(changes)
}

/// Returns the conflicts of a merge of the branch into its parent now.
///
/// # Errors
/// Errors of reading both.
pub(in crate::engine) fn clashes_of(kin: BranchPair<'_>) -> VerbResult<Vec<Conflict>> {
    would(kin, |merging| merging.clashes().to_vec())
}

/// Returns the paths that a merge of the branch would change in its parent, or that conflict: its
/// unmerged changes. The caller ensures that the branch is not dropped.
///
/// # Errors
/// Errors of reading both.
pub(in crate::engine) fn unmerged(
    parent: &Engine,
    branch: &Branch,
) -> VerbResult<BTreeSet<TreePath>> {
    parent.checkpoints.settle();
    branch.engine.checkpoints.settle();
    would(BranchPair { parent, branch }, |merging| {
        let changes = merging.changes.iter().map(|change| change.path.clone());
        let clashes = merging.conflicts().into_iter().map(|clash| clash.path);
        changes.chain(clashes).collect()
    })
}

/// As [`unmerged`], with the known changes of the branch since the merge base. All of them are
/// unmerged if the parent has no records since. The same holds if no merge has taken place, so that
/// an inode has one number in both, and the sides have changed different inodes.
///
/// # Errors
/// As [`unmerged`].
pub(in crate::engine) fn unmerged_of(
    parent: &Engine,
    branch: &Branch,
    changed: &[Change],
) -> VerbResult<BTreeSet<TreePath>> {
    let kin = BranchPair { parent, branch };
    if changed.is_empty() {
        return Ok(BTreeSet::new());
    }
    parent.checkpoints.settle();
    let base = kin.base(TreeState::Live, TreeState::Live)?;
    let since = |engine: &Engine, at| engine.states.touched(at, None);
    let apart = || -> SysResult<bool> {
        if base.of_branch {
            return Ok(false);
        }
        let here = since(parent, base.checkpoint)?;
        if here.is_empty() || !kin.is_first(base) {
            return Ok(here.is_empty());
        }
        Ok(here.is_apart_from(&since(&branch.engine, branch.since)?))
    };
    // Changes that bypassed the mount have no records.
    let states = [(parent, base.checkpoint), (&*branch.engine, branch.since)];
    let unseen = |(engine, at): (&Engine, CheckpointId)| {
        let unseen = engine
            .states
            .unseen_between(TreeState::At(at), TreeState::Live);
        !unseen.is_ok_and(|unseen| unseen.is_empty())
    };
    if apart().unwrap_or(false) && !states.into_iter().any(unseen) {
        return Ok(changed.iter().map(|change| change.path.clone()).collect());
    }
    unmerged(parent, branch)
}

/// Runs a merge of the branch into its parent without effects.
fn would<T>(kin: BranchPair<'_>, of: impl FnOnce(&PreparedMerge<'_>) -> T) -> VerbResult<T> {
    let (base, asked) = (
        kin.base(TreeState::Live, TreeState::Live)?,
        Merge::default(),
    );
    let states = (TreeState::Live, TreeState::Live);
    let eyes = StatCaches::of(kin);
    let into = MergeInto::Parent;
    let three = MergeInput::between((kin, into), base, states, (&asked, &eyes))?;
    Ok(of(&three.prepare(&|_| Ok(()))?))
}
