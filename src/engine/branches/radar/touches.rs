//! What each tree has touched since its branches had it in common, and of which inode that is.

use std::sync::Arc;

use super::super::Branch;
use super::super::list::{differences, differences_since};
use crate::engine::Engine;
use crate::engine::api::{ChangeKind, VerbResult};
use crate::engine::compare::change;
use crate::engine::error;
use crate::history::diff::Differs;
use crate::history::present::Trail;
use crate::history::state::State;
use crate::history::view::View;
use crate::store::ids::{CheckpointId, Slot};
use crate::sys::{Kind, SysResult, Time};

/// Who has touched something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// This tree, since this checkpoint: one that a branch began as.
    Here(CheckpointId),
    /// The branch with this number in [`Touches::branches`].
    Branch(usize),
}

/// An inode of a base. Of two bases one number may be that of two inodes, one after the other, which
/// then have other births.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Inode {
    pub(super) slot: Slot,
    born: Option<Time>,
}

/// Something that was touched.
pub(super) struct Touched {
    pub(super) who: Who,
    pub(super) change: ChangeKind,
    pub(super) kind: Kind,
    pub(super) path: Vec<u8>,
    /// The path that it was renamed from.
    pub(super) from: Option<Vec<u8>>,
    /// What it was in the base, and where.
    pub(super) before: Option<(Inode, Vec<u8>)>,
    /// The directory that it came into.
    pub(super) into: Option<Slot>,
}

/// What all have touched.
pub(super) struct Touches {
    pub(super) branches: Vec<Arc<Branch>>,
    pub(super) all: Vec<Touched>,
}

impl Touches {
    /// O(changes) of the open branches, and of this tree since each of their bases. The caller has
    /// settled them ([`settle`]).
    ///
    /// # Errors
    /// Those of comparing a tree with its past.
    pub(super) fn of(engine: &Engine) -> VerbResult<Touches> {
        let open = engine.branches.all();
        let (mut branches, mut all) = (Vec::new(), Vec::new());
        for branch in open {
            let base = engine.states.view(State::At(branch.base));
            let who = Who::Branch(branches.len());
            let found = differences(&branch)
                .and_then(|differs| touched(&branch.engine, branch.since, who, &base, differs));
            match found {
                Ok(found) => {
                    all.extend(found);
                    branches.push(branch);
                }
                Err(why) if is_open(engine, &branch) => return Err(error::tree_not_compared(why)),
                // It was dropped, or its mount has ended: it has touched nothing.
                Err(_) => {}
            }
        }
        let mut bases: Vec<CheckpointId> = branches.iter().map(|branch| branch.base).collect();
        bases.sort();
        bases.dedup();
        for base in bases {
            let view = engine.states.view(State::At(base));
            let found = differences_since(engine, base)
                .and_then(|differs| touched(engine, base, Who::Here(base), &view, differs));
            all.extend(found.map_err(error::tree_not_compared)?);
        }
        Ok(Touches { branches, all })
    }
}

/// What was written through mappings counts from now on.
pub(super) fn settle(engine: &Engine) {
    engine.checkpoints.settle();
    for branch in engine.branches.all() {
        branch.engine.checkpoints.settle();
    }
}

/// A branch is served still, and is the one that was asked.
pub(super) fn is_open(engine: &Engine, branch: &Arc<Branch>) -> bool {
    let now = engine.branches.get(&branch.name);
    now.is_ok_and(|now| Arc::ptr_eq(&now, branch))
}

/// The directory that an inode is in.
fn up(trail: &Option<Arc<Trail>>) -> Option<Slot> {
    let up = trail.as_ref()?.up.as_ref()?;
    Some(up.slot)
}

/// What one has touched, and what of that was changed behind our back, which is known by its path
/// alone. `base`: what it began as, in the tree whose branches these are.
fn touched(
    engine: &Engine,
    since: CheckpointId,
    who: Who,
    base: &View<'_>,
    differs: Vec<Differs>,
) -> SysResult<Vec<Touched>> {
    let one = |differs: Differs| {
        let before = differs.old.as_ref().map(|old| {
            // Of what only the branch began with, the base knows nothing, and nobody else has it.
            let born = base.attr(old).ok().and_then(|attr| attr.stat.btime);
            let slot = old.slot;
            (Inode { slot, born }, old.path())
        });
        let into = up(&differs.new).filter(|into| up(&differs.old) != Some(*into));
        let kind = differs.kind;
        let told = change(differs, false);
        Touched {
            who,
            change: told.change,
            kind,
            path: told.path.0,
            from: told.from.map(|from| from.0),
            before,
            into,
        }
    };
    let mut all: Vec<Touched> = differs.into_iter().map(one).collect();
    let unseen = engine
        .states
        .unseen_between(State::At(since), State::Live)?;
    all.extend(unseen.into_iter().map(|change| Touched {
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
