//! The tools for branches.

use super::super::branch::conflicts::clash;
use super::super::branch::create::{BranchOptions, make};
use super::super::branch::drop::drop_branch;
use super::super::merge::{outcome, why};
use super::results::{
    BranchMade, Branches, Changes, Conflict, Conflicts, Dropped, Merged, UnappliedPath, name,
    names, warnings,
};
use super::{McpContext, params, paths_of};
use ckptfs_api::{self as api, DropBranch, ListBranches, ListConflicts, Merge, VerbResult};
use ckptfs_ui::output::Out;

pub fn create(seat: &McpContext, asked: params::BranchCreate) -> VerbResult<BranchMade> {
    let mut served = seat.served()?;
    let out = Out::to_memory(0);
    let how = BranchOptions::beside(asked.at);
    let made = make(&mut served, &asked.name, &how, asked.dry_run, &out)?;
    Ok(BranchMade {
        branch: (&made.branch).into(),
        warnings: warnings(out.kept().1),
        dry_run: asked.dry_run,
    })
}

pub fn list(seat: &McpContext) -> VerbResult<Branches> {
    let all = seat.served()?.client.ask(ListBranches {
        counted: true,
        unmerged: true,
        ..ListBranches::default()
    })?;
    Ok(Branches {
        branches: all.iter().map(Into::into).collect(),
    })
}

pub fn conflicts(seat: &McpContext, asked: params::BranchConflicts) -> VerbResult<Conflicts> {
    let limit = params::limit(asked.limit);
    let all = seat
        .served()?
        .client
        .ask(ListConflicts { check: asked.check })?;
    let one = |conflict: &api::Conflict| Conflict {
        path: name(&conflict.path),
        branches: conflict.branches.clone(),
        this_tree: conflict.parent,
        clashes: conflict
            .clashes
            .as_ref()
            .map(|clashes| clashes.iter().map(clash).collect()),
    };
    Ok(Conflicts {
        conflicts: all.iter().take(limit).map(one).collect(),
        conflicts_left_out: all.len().saturating_sub(limit) as u64,
    })
}

pub fn merge(seat: &McpContext, asked: params::BranchMerge) -> VerbResult<Merged> {
    let limit = params::limit(asked.limit);
    let mut served = seat.served()?;
    let paths = paths_of(&served, &asked.paths)?;
    let merged = served.client.ask(Merge {
        what: asked.name,
        paths,
        policy: asked.conflicts.map(Into::into),
        dry_run: asked.dry_run,
        ..Merge::default()
    })?;
    let open: Vec<UnappliedPath> = merged
        .conflicts
        .iter()
        .map(|conflict| UnappliedPath {
            path: name(&conflict.path),
            why: [&why(conflict), outcome(conflict, &merged)].concat(),
        })
        .collect();
    Ok(Merged {
        refused: merged.refused,
        guard: merged.guard.map(|guard| guard.0),
        changed: Changes::first(&merged.changes, limit),
        conflicts_left_out: open.len().saturating_sub(limit) as u64,
        conflicts: open.into_iter().take(limit).collect(),
        dry_run: merged.dry_run,
    })
}

pub fn drop(seat: &McpContext, asked: params::BranchDrop) -> VerbResult<Dropped> {
    let mut served = seat.served()?;
    let out = Out::to_memory(0);
    let ask = DropBranch {
        name: asked.name,
        force: false,
        dry_run: asked.dry_run,
    };
    let dropped = drop_branch(&mut served, ask, &out)?;
    Ok(Dropped {
        branch: (&dropped.branch).into(),
        unmerged: names(&dropped.unmerged, params::LIMIT),
        warnings: warnings(out.kept().1),
        dry_run: dropped.dry_run,
    })
}
