//! What a branch, or its parent, has changed since they had it in common.

use super::Merge;
use super::common::Kin;
use super::prepare::Three;
use crate::engine::api::{Change, ChangeKind, VerbResult};
use crate::engine::branches::changes_since;
use crate::history::state::State;
use crate::store::layout::merges::MergeInto;
use crate::sys::Kind;
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
    kin.changed_engine(who).checkpoints.settle();
    let states = (State::At(at), State::Live);
    let three = Three::between((kin, into), base, states, &asked)?;
    let mut changes = three.prepare(&|_| Ok(()))?.changes;
    changes.retain(|change| !(change.change == ChangeKind::Modified && change.kind == Kind::Dir));
    Ok(changes)
}

/// What would clash if a branch was merged into its parent now.
///
/// # Errors
/// Those of reading both.
pub(in crate::engine) fn clashes_of(kin: Kin<'_>) -> VerbResult<Vec<Conflict>> {
    let (base, asked) = (kin.base(State::Live, State::Live)?, Merge::default());
    let states = (State::Live, State::Live);
    let three = Three::between((kin, MergeInto::Parent), base, states, &asked)?;
    Ok(three.prepare(&|_| Ok(()))?.clashes().to_vec())
}
