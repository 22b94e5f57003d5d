//! What more than one tree has touched: known while they work, from what each has recorded since
//! they had it in common.

use std::collections::BTreeMap;

use super::list::{changes, changes_since};
use super::verbs::Conflict;
use crate::engine::Engine;
use crate::engine::api::{Change, TreePath, VerbResult};
use crate::store::ids::CheckpointId;

/// The paths that a change is at.
fn paths(changes: Vec<Change>) -> impl Iterator<Item = TreePath> {
    changes
        .into_iter()
        .flat_map(|change| [Some(change.path), change.from])
        .flatten()
}

/// O(changes) of the open branches, and of this tree since the oldest of their bases.
pub(super) fn conflicts(engine: &Engine) -> VerbResult<Vec<Conflict>> {
    // Where this tree has changed a path: since which of the bases.
    let mut ours: BTreeMap<TreePath, Vec<CheckpointId>> = BTreeMap::new();
    let mut theirs: BTreeMap<TreePath, Vec<(String, CheckpointId)>> = BTreeMap::new();
    let branches = engine.branches.all();
    let mut bases: Vec<CheckpointId> = branches.iter().map(|branch| branch.base).collect();
    bases.sort();
    bases.dedup();
    for base in bases {
        for path in paths(changes_since(engine, base)?) {
            ours.entry(path).or_default().push(base);
        }
    }
    for branch in branches {
        for path in paths(changes(&branch)?) {
            let touched = theirs.entry(path).or_default();
            let by = (branch.name.clone(), branch.base);
            if touched.last() != Some(&by) {
                touched.push(by);
            }
        }
    }
    let conflict = |(path, by): (TreePath, Vec<(String, CheckpointId)>)| {
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
