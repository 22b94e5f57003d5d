//! What more than one tree has touched: known while they work, from what each has recorded since
//! they had it in common.

use std::collections::BTreeMap;

use super::verbs::Conflict;
use crate::engine::Engine;
use crate::engine::api::{Change, TreePath, VerbResult};
use crate::engine::merge::{Kin, changed_by};
use crate::history::state::State;
use crate::store::ids::CheckpointId;
use crate::store::layout::merges::MergeInto;

/// Since when this tree has changed something: a checkpoint of it, or what it has in common with a
/// branch that was merged.
#[derive(Clone, PartialEq, Eq)]
enum Since {
    Checkpoint(CheckpointId),
    Branch(String),
}

/// The paths that a change is at.
fn paths(changes: Vec<Change>) -> impl Iterator<Item = TreePath> {
    changes
        .into_iter()
        .flat_map(|change| [Some(change.path), change.from])
        .flatten()
}

/// O(changes) of the open branches, and of this tree since the oldest of their bases.
pub(super) fn conflicts(engine: &Engine) -> VerbResult<Vec<Conflict>> {
    // Where this tree has changed a path: since what it has in common with which of the branches.
    let mut ours: BTreeMap<TreePath, Vec<Since>> = BTreeMap::new();
    let mut theirs: BTreeMap<TreePath, Vec<(String, Since)>> = BTreeMap::new();
    let mut seen: Vec<Since> = Vec::new();
    for branch in engine.branches.all() {
        let kin = Kin {
            parent: engine,
            branch: &branch,
        };
        let base = kin.base(State::Live, State::Live)?;
        let since = match base.of_branch {
            true => Since::Branch(branch.name.clone()),
            false => Since::Checkpoint(base.checkpoint),
        };
        if !seen.contains(&since) {
            for path in paths(changed_by(kin, MergeInto::Parent)?) {
                ours.entry(path).or_default().push(since.clone());
            }
            seen.push(since.clone());
        }
        for path in paths(changed_by(kin, MergeInto::Branch)?) {
            let touched = theirs.entry(path).or_default();
            let by = (branch.name.clone(), since.clone());
            if touched.last() != Some(&by) {
                touched.push(by);
            }
        }
    }
    let conflict = |(path, by): (TreePath, Vec<(String, Since)>)| {
        let since = ours.get(&path);
        let parent = since.is_some_and(|since| by.iter().any(|(_, base)| since.contains(base)));
        (parent || by.len() > 1).then(|| Conflict {
            path,
            branches: by.into_iter().map(|(name, _)| name).collect(),
            parent,
        })
    };
    Ok(theirs.into_iter().filter_map(conflict).collect())
}
