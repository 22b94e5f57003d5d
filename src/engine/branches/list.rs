//! Which branches there are.

use std::os::fd::AsFd;
use std::path::Path;

use super::Branch;
use super::verbs::{BranchInfo, ListBranches};
use crate::engine::Engine;
use crate::engine::api::{Change, ChangeKind, VerbResult};
use crate::engine::bases::registry_failed;
use crate::engine::error;
use crate::engine::merge::unmerged;
use crate::history::state::State;
use crate::store::ids::CheckpointId;
use crate::store::layout::branches::{Registered, branches_of};

/// Files of a branch that are counted at most.
const COUNTED_MAX: usize = 200_000;

pub(super) fn list(engine: &Engine, asked: &ListBranches) -> VerbResult<Vec<BranchInfo>> {
    let registry = engine.timeline().store().layout.branches();
    if asked.dropped {
        return registry
            .dropped()
            .map(|registered| infos(registered, true))
            .map_err(registry_failed);
    }
    let mut all = infos(registry.all().map_err(registry_failed)?, false);
    for info in &mut all {
        let Ok(branch) = engine.branches.get(&info.name) else {
            continue;
        };
        info.mounted = true;
        if asked.unmerged {
            match unmerged(engine, &branch) {
                Ok(paths) => info.unmerged = Some(paths.len() as u64),
                Err(error) => info.trouble = Some(error.message),
            }
        }
        if !asked.counted {
            continue;
        }
        info.bytes = own_bytes(&branch.engine);
        match changes(&branch) {
            Ok(changes) => info.changed = Some(changes.len() as u64),
            Err(error) => info.trouble = Some(error.message),
        }
    }
    Ok(all)
}

/// As [`list`], of a store that nobody serves.
pub(super) fn list_offline(root: impl AsFd, dropped: bool) -> VerbResult<Vec<BranchInfo>> {
    let (there, thrown) = branches_of(root).map_err(registry_failed)?;
    Ok(infos(if dropped { thrown } else { there }, dropped))
}

fn infos(registered: Registered, dropped: bool) -> Vec<BranchInfo> {
    let whole = registered.entries.iter().filter(|entry| entry.made);
    whole
        .map(|entry| BranchInfo {
            dropped,
            ..BranchInfo::of(entry)
        })
        .collect()
}

/// What a branch has changed since it began.
pub(super) fn changes(branch: &Branch) -> VerbResult<Vec<Change>> {
    changes_since(&branch.engine, branch.since)
}

/// What differs from a checkpoint. Directories that only have other times, because something in
/// them came or went, are left out: that is told by what came.
pub(super) fn changes_since(engine: &Engine, since: CheckpointId) -> VerbResult<Vec<Change>> {
    engine.checkpoints.settle();
    let mut changes = engine
        .states
        .compare_all(State::At(since), State::Live)
        .map_err(error::tree_not_compared)?;
    changes.retain(|change| {
        !(change.change == ChangeKind::Modified && change.kind == crate::sys::Kind::Dir)
    });
    Ok(changes)
}

/// What the files below the mount take, the store's included.
fn own_bytes(engine: &Engine) -> Option<u64> {
    let root = crate::sys::host::path_in(engine.root_fd(), ".").ok()?;
    let (mut bytes, mut seen, mut open) = (0u64, 0usize, vec![root]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir::<&Path>(&dir).ok()?.map_while(Result::ok) {
            // Of the entry itself, never of what a link leads to.
            let Ok(found) = entry.metadata() else {
                continue;
            };
            seen += 1;
            if seen > COUNTED_MAX {
                return None;
            }
            bytes = bytes.saturating_add(512 * std::os::unix::fs::MetadataExt::blocks(&found));
            if found.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Some(bytes)
}
