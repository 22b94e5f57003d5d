//! Merge conflicts of the radar: the result of a dry run for each pair of trees that touched the
//! same file.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::Branch;
use super::super::list::recorded;
use super::rows::{OverlapRow, Overlaps};
use super::touches::{TreeChanges, is_open};
use crate::engine::Engine;
use crate::engine::error;
use crate::engine::merge::planning::{along, leave_out_git, told};
use crate::engine::merge::{BranchPair, clashes_of};
use crate::history::state::TreeState;
use crate::tree::merge::{Conflict, MergeOptions, merge};
use ckptfs_api::{Clash, VerbResult};
use ckptfs_sys::SysResult;

/// Retries of a merge when a tree changes during it.
const TRIES: u32 = 3;

/// Adds the conflicts of each pair of trees to their rows. A conflict that belongs to no row gets a
/// new one.
///
/// # Errors
/// Errors of reading the files that both touched.
pub(super) fn check(engine: &Engine, touches: &TreeChanges, rows: &mut Overlaps) -> VerbResult<()> {
    let mut pairs: BTreeSet<(Option<usize>, usize)> = BTreeSet::new();
    for row in &mut rows.0 {
        row.clashes = Some(Vec::new());
        for theirs in &row.branches {
            pairs.extend(row.here.then_some((None, *theirs)));
            let others = row.branches.range(..theirs);
            pairs.extend(others.map(|ours| (Some(*ours), *theirs)));
        }
    }
    for (ours, theirs) in pairs {
        let branch = |number: usize| touches.branches.get(number);
        let (of, Some(with)) = (ours.and_then(branch), branch(theirs)) else {
            continue;
        };
        let mut tries = 0;
        let found = loop {
            match clashes(engine, of, with) {
                Err(_) if tries < TRIES => tries += 1,
                found => break found,
            }
        };
        let found = match found {
            Ok(found) => found,
            Err(why) if of.into_iter().chain([with]).all(|one| is_open(engine, one)) => {
                return Err(why);
            }
            // The branch was dropped or unmounted.
            Err(_) => continue,
        };
        let name = |branch: &Arc<Branch>| branch.name.clone();
        for conflict in found {
            let clash = Clash {
                ours: of.map(name),
                theirs: name(with),
                conflict: told(&conflict),
            };
            let is_of = |row: &&mut OverlapRow| {
                let both = ours.map_or(row.here, |ours| row.branches.contains(&ours))
                    && row.branches.contains(&theirs);
                both && (row.slot == Some(conflict.slot) || row.is_at(touches, &conflict.path))
            };
            // A branch with another base has later changes of this tree, which a merge into it
            // reports.
            let one_base = of.is_none_or(|of| of.base == with.base);
            let mut row = OverlapRow::of_clash(conflict.path.clone(), ours, theirs);
            match rows.0.iter_mut().find(is_of) {
                Some(row) => row.clashes.get_or_insert_default().push(clash),
                None if one_base => {
                    row.clashes.get_or_insert_default().push(clash);
                    rows.0.push(row);
                }
                None => {}
            }
        }
    }
    Ok(())
}

/// Returns the conflicts of a merge of `theirs` into `ours`, or into this tree. The merge base of
/// two branches is the older of their bases; they have the same later changes of this tree.
fn clashes(
    engine: &Engine,
    ours: Option<&Arc<Branch>>,
    theirs: &Arc<Branch>,
) -> VerbResult<Vec<Conflict>> {
    let Some(ours) = ours else {
        let kin = BranchPair {
            parent: engine,
            branch: theirs,
        };
        return clashes_of(kin);
    };
    between(engine, ours, theirs).map_err(error::tree_not_compared)
}

fn between(engine: &Engine, ours: &Arc<Branch>, theirs: &Arc<Branch>) -> SysResult<Vec<Conflict>> {
    let (older, newer) = (ours.base.min(theirs.base), ours.base.max(theirs.base));
    let mut recorded_by = vec![recorded(theirs)?, recorded(ours)?];
    if older != newer {
        recorded_by.push(engine.states.touched(older, Some(newer))?);
    }
    let base = engine.states.view(TreeState::At(older));
    let (here, there) = (
        ours.engine.states.view(TreeState::Live),
        theirs.engine.states.view(TreeState::Live),
    );
    let mut along = along(&recorded_by.iter().collect::<Vec<_>>());
    leave_out_git(&mut along, [&base, &here, &there])?;
    // The records of a branch begin at its base.
    let since = |branch: &Arc<Branch>| (branch.base == older).then_some(branch.since);
    let how = MergeOptions {
        along: Some(&along),
        since: [since(ours), since(theirs)],
        ..MergeOptions::default()
    };
    let outcome = merge(&base, &here, &there, &how)?;
    Ok(outcome.conflicts().to_vec())
}
