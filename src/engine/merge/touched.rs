//! What a branch, or its parent, has changed since they had it in common.

use std::collections::BTreeSet;

use super::Merge;
use super::common::Kin;
use super::prepare::{Eyes, Merging, Three};
use crate::engine::Engine;
use crate::engine::api::{Change, ChangeKind, TreePath, VerbResult};
use crate::engine::branches::{Branch, changes_since};
use crate::history::state::State;
use crate::store::ids::CheckpointId;
use crate::store::layout::merges::MergeInto;
use crate::sys::{Kind, SysResult};
use crate::tree::merge::Conflict;

/// What one side has changed since the newest state that both come from. O(changes): of a side
/// whose own checkpoint that is, from its history; of the other by what both have recorded.
///
/// # Errors
/// Those of reading both.
pub(in crate::engine) fn changed_by(kin: Kin<'_>, who: MergeInto) -> VerbResult<Vec<Change>> {
    let base = kin.base(State::Live, State::Live)?;
    let at = base.checkpoint;
    match who {
        MergeInto::Branch if kin.is_first(base) => {
            return changes_since(&kin.branch.engine, kin.branch.since);
        }
        MergeInto::Branch if base.of_branch => return changes_since(&kin.branch.engine, at),
        MergeInto::Parent if !base.of_branch => return changes_since(kin.parent, at),
        _ => {}
    }
    // Merged into the base it is all that comes.
    let into = match who {
        MergeInto::Branch => MergeInto::Parent,
        MergeInto::Parent => MergeInto::Branch,
    };
    let asked = Merge::default();
    kin.changed(who).checkpoints.settle();
    let states = (State::At(at), State::Live);
    let eyes = Eyes::of(kin);
    let three = Three::between((kin, into), base, states, (&asked, &eyes))?;
    let mut changes = three.prepare(&|_| Ok(()))?.changes;
    changes.retain(|change| !(change.change == ChangeKind::Modified && change.kind == Kind::Dir));
    Ok(changes)
}

/// What would clash if a branch was merged into its parent now.
///
/// # Errors
/// Those of reading both.
pub(in crate::engine) fn clashes_of(kin: Kin<'_>) -> VerbResult<Vec<Conflict>> {
    would(kin, |merging| merging.clashes().to_vec())
}

/// The paths that a merge of a branch would change in its parent, or that clash: what it has done
/// and its parent has not. The caller sees to it that the branch stays.
///
/// # Errors
/// Those of reading both.
pub(in crate::engine) fn unmerged(
    parent: &Engine,
    branch: &Branch,
) -> VerbResult<BTreeSet<TreePath>> {
    parent.checkpoints.settle();
    branch.engine.checkpoints.settle();
    would(Kin { parent, branch }, |merging| {
        let changes = merging.changes.iter().map(|change| change.path.clone());
        let clashes = merging.conflicts().into_iter().map(|clash| clash.path);
        changes.chain(clashes).collect()
    })
}

/// As [`unmerged`], of a branch of which it is known what it has `changed` since both were one. That is
/// all of it where the parent has recorded nothing since; and where neither was merged into the
/// other, so that an inode has one number in both, and neither has touched what the other has.
///
/// # Errors
/// As [`unmerged`].
pub(in crate::engine) fn unmerged_of(
    parent: &Engine,
    branch: &Branch,
    changed: &[Change],
) -> VerbResult<BTreeSet<TreePath>> {
    let kin = Kin { parent, branch };
    if changed.is_empty() {
        return Ok(BTreeSet::new());
    }
    parent.checkpoints.settle();
    let base = kin.base(State::Live, State::Live)?;
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
    // What was changed behind our back is not among what was recorded.
    let states = [(parent, base.checkpoint), (&*branch.engine, branch.since)];
    let unseen = |(engine, at): (&Engine, CheckpointId)| {
        let unseen = engine.states.unseen_between(State::At(at), State::Live);
        !unseen.is_ok_and(|unseen| unseen.is_empty())
    };
    if apart().unwrap_or(false) && !states.into_iter().any(unseen) {
        return Ok(changed.iter().map(|change| change.path.clone()).collect());
    }
    unmerged(parent, branch)
}

/// What a merge of a branch into its parent would do now.
fn would<T>(kin: Kin<'_>, of: impl FnOnce(&Merging<'_>) -> T) -> VerbResult<T> {
    let (base, asked) = (kin.base(State::Live, State::Live)?, Merge::default());
    let states = (State::Live, State::Live);
    let eyes = Eyes::of(kin);
    let into = MergeInto::Parent;
    let three = Three::between((kin, into), base, states, (&asked, &eyes))?;
    Ok(of(&three.prepare(&|_| Ok(()))?))
}
