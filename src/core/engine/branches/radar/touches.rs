//! The changes of each tree since the common state with its branches, and the inodes that they
//! affect.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::Branch;
use super::super::list::{differences, differences_since};
use crate::engine::Engine;
use crate::engine::compare::change;
use crate::engine::error;
use crate::engine::merge::{BranchPair, changed_by};
use crate::history::diff::PathDiff;
use crate::history::present::Trail;
use crate::history::state::TreeState;
use crate::history::view::View;
use ckptfs_api::{Change, ChangeKind, CheckpointId, VerbResult};
use ckptfs_store::ids::Slot;
use ckptfs_store::layout::merges::MergeInto;
use ckptfs_sys::{Kind, SysResult, Time};

/// The common state of this tree and a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CommonState {
    /// A checkpoint of this tree.
    Checkpoint(CheckpointId),
    /// The last merged state of the branch with this index in [`TreeChanges::branches`].
    Merged(usize),
}

/// The tree that made a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TouchedBy {
    /// This tree.
    Here(CommonState),
    /// The branch with this index in [`TreeChanges::branches`].
    Branch(usize),
}

/// An inode of a base. In two bases the same number may be that of different inodes, which then
/// differ in their time of birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BaseInode {
    pub(super) slot: Slot,
    born: Option<Time>,
}

/// A change of one tree.
pub(super) struct TreeChange {
    pub(super) who: TouchedBy,
    pub(super) change: ChangeKind,
    pub(super) kind: Kind,
    pub(super) path: Vec<u8>,
    /// The path that it was renamed from.
    pub(super) from: Option<Vec<u8>>,
    /// The inode and path in the base.
    pub(super) before: Option<(BaseInode, Vec<u8>)>,
    /// The directory that it was moved to or created in.
    pub(super) into: Option<Slot>,
}

/// The changes of all trees.
pub(super) struct TreeChanges {
    pub(super) branches: Vec<Arc<Branch>>,
    /// The common state of each branch with this tree.
    pub(super) since: Vec<CommonState>,
    pub(super) all: Vec<TreeChange>,
}

impl TreeChanges {
    /// Collects the changes of the open branches, and of this tree since each of their bases;
    /// O(changes). The caller has settled them ([`settle`]).
    ///
    /// # Errors
    /// Errors of comparing a tree with its past.
    pub(super) fn of(engine: &Engine) -> VerbResult<TreeChanges> {
        let (mut branches, mut since, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for branch in engine.branches.all() {
            match of_branch(engine, &branch, branches.len()) {
                Ok((common, found)) => {
                    all.extend(found);
                    branches.push(branch);
                    since.push(common);
                }
                Err(why) if is_open(engine, &branch) => return Err(why),
                // Dropped or unmounted: it has no changes.
                Err(_) => {}
            }
        }
        let commons: BTreeSet<CommonState> = since.iter().copied().collect();
        for common in commons {
            all.extend(of_parent(engine, &branches, common)?);
        }
        Ok(TreeChanges {
            branches,
            since,
            all,
        })
    }
}

/// Returns the common state of a branch and its parent, and the changes of the branch since.
fn of_branch(
    engine: &Engine,
    branch: &Branch,
    number: usize,
) -> VerbResult<(CommonState, Vec<TreeChange>)> {
    let kin = BranchPair {
        parent: engine,
        branch,
    };
    let who = TouchedBy::Branch(number);
    let base = kin.base(TreeState::Live, TreeState::Live)?;
    let at = TreeState::At(base.checkpoint);
    let view = engine.states.view(at);
    let found = if base.of_branch {
        let view = branch.engine.states.view(at);
        let found = differences_since(&branch.engine, base.checkpoint);
        found.and_then(|found| touched(&branch.engine, base.checkpoint, who, &view, found))
    } else if kin.is_first(base) {
        let found = differences(branch);
        found.and_then(|found| touched(&branch.engine, branch.since, who, &view, found))
    } else {
        by_path(who, &view, changed_by(kin, MergeInto::Branch)?)
    };
    let common = match base.of_branch {
        true => CommonState::Merged(number),
        false => CommonState::Checkpoint(base.checkpoint),
    };
    Ok((common, found.map_err(error::tree_not_compared)?))
}

/// Returns the changes of this tree since the common state.
fn of_parent(
    engine: &Engine,
    branches: &[Arc<Branch>],
    since: CommonState,
) -> VerbResult<Vec<TreeChange>> {
    let who = TouchedBy::Here(since);
    let found = match since {
        CommonState::Checkpoint(base) => {
            let view = engine.states.view(TreeState::At(base));
            let found = differences_since(engine, base);
            found.and_then(|found| touched(engine, base, who, &view, found))
        }
        CommonState::Merged(number) => {
            let Some(branch) = branches.get(number) else {
                return Ok(Vec::new());
            };
            let kin = BranchPair {
                parent: engine,
                branch,
            };
            let base = kin.base(TreeState::Live, TreeState::Live)?;
            let view = branch.engine.states.view(TreeState::At(base.checkpoint));
            match changed_by(kin, MergeInto::Parent) {
                Ok(found) => by_path(who, &view, found),
                Err(why) if is_open(engine, branch) => return Err(why),
                Err(_) => return Ok(Vec::new()),
            }
        }
    };
    found.map_err(error::tree_not_compared)
}

/// Makes past stores to mapped files count as changes.
pub(super) fn settle(engine: &Engine) {
    engine.checkpoints.settle();
    for branch in engine.branches.all() {
        branch.engine.checkpoints.settle();
    }
}

/// Returns whether this branch is still served.
pub(super) fn is_open(engine: &Engine, branch: &Arc<Branch>) -> bool {
    let now = engine.branches.get(&branch.name);
    now.is_ok_and(|now| Arc::ptr_eq(&now, branch))
}

/// Returns the directory of an inode.
fn up(trail: &Option<Arc<Trail>>) -> Option<Slot> {
    let up = trail.as_ref()?.up.as_ref()?;
    Some(up.slot)
}

/// Converts the changes of a merge, which have only paths. Looks up their inodes in the base.
fn by_path(who: TouchedBy, base: &View<'_>, changes: Vec<Change>) -> SysResult<Vec<TreeChange>> {
    let one = |change: Change| {
        let path = change.path.0;
        let from = change.from.map(|from| from.0);
        let was = from.as_deref().unwrap_or(&path);
        let before = match base.walk(was)? {
            Some((child, trail)) => {
                let born = base.attr(&trail)?.stat.btime;
                let slot = child.slot;
                Some((BaseInode { slot, born }, was.to_vec()))
            }
            None => None,
        };
        Ok(TreeChange {
            who,
            change: change.change,
            kind: change.kind,
            path,
            from,
            before,
            into: None,
        })
    };
    changes.into_iter().map(one).collect()
}

/// Converts the differences of a tree, and adds changes that bypassed the mount, for which only the
/// path is known. `base`: the state that the tree began as, in the parent of the branches.
fn touched(
    engine: &Engine,
    since: CheckpointId,
    who: TouchedBy,
    base: &View<'_>,
    differs: Vec<PathDiff>,
) -> SysResult<Vec<TreeChange>> {
    let one = |differs: PathDiff| {
        let before = differs.old.as_ref().map(|old| {
            // An inode that only the branch began with is not in the base, nor in any other tree.
            let born = base.attr(old).ok().and_then(|attr| attr.stat.btime);
            let slot = old.slot;
            (BaseInode { slot, born }, old.path())
        });
        let into = up(&differs.new).filter(|into| up(&differs.old) != Some(*into));
        let kind = differs.kind;
        let told = change(differs, false);
        TreeChange {
            who,
            change: told.change,
            kind,
            path: told.path.0,
            from: told.from.map(|from| from.0),
            before,
            into,
        }
    };
    let mut all: Vec<TreeChange> = differs.into_iter().map(one).collect();
    let unseen = engine
        .states
        .unseen_between(TreeState::At(since), TreeState::Live)?;
    all.extend(unseen.into_iter().map(|change| TreeChange {
        who,
        change: change.change,
        kind: change.kind,
        path: change.path.0,
        from: None,
        before: None,
        into: None,
    }));
    Ok(all)
}
