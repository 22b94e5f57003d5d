//! Lists branches and their changes.

use std::os::fd::AsFd;
use std::path::Path;

use super::Branch;
use super::verbs::branch_info;
use crate::engine::Engine;
use crate::engine::bases::registry_failed;
use crate::engine::change_stamp::ChangeStamp;
use crate::engine::compare::change;
use crate::engine::error;
use crate::engine::merge::{BranchPair, changed_by, unmerged};
use crate::history::diff::{Difference, PathDiff};
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use crate::tree::has_attrs;
use ckptfs_api::{BranchInfo, Change, CheckpointId, ListBranches, MergeBase, VerbResult};
use ckptfs_store::layout::branches::{BranchEntry, RegistryContent, branches_of};
use ckptfs_store::layout::merges::MergeInto;
use ckptfs_sys::{Kind, SysResult};

/// Limit of files counted in a branch.
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
        info.path = branch.engine.place().backing();
        match moved_base(engine, &branch) {
            Ok(base) => info.merge_base = base,
            Err(error) => info.trouble = Some(error.message),
        }
        if asked.unmerged {
            match count_unmerged(engine, &branch) {
                Ok(paths) => info.unmerged = Some(paths),
                Err(error) => info.trouble = Some(error.message),
            }
        }
        if !asked.counted {
            continue;
        }
        info.bytes = own_bytes(&branch.engine);
        match changes(engine, &branch) {
            Ok(changes) => info.changed = Some(changes.len() as u64),
            Err(error) => info.trouble = Some(error.message),
        }
    }
    Ok(all)
}

/// As [`list`], for a store that is not served.
pub(super) fn list_offline(root: impl AsFd, dropped: bool) -> VerbResult<Vec<BranchInfo>> {
    let (there, thrown) = branches_of(root).map_err(registry_failed)?;
    Ok(infos(if dropped { thrown } else { there }, dropped))
}

fn infos(registered: RegistryContent, dropped: bool) -> Vec<BranchInfo> {
    let whole = registered.entries.iter().filter(|entry| entry.made);
    let mut whole: Vec<_> = whole.collect();
    // The files of dropped branches have random names.
    whole.sort_by_key(|entry| (&entry.name, entry.made_ns));
    let info = |entry: &BranchEntry| BranchInfo {
        dropped,
        ..branch_info(entry)
    };
    whole.into_iter().map(info).collect()
}

/// Returns the merge base of a branch, unless it is the checkpoint that the branch began as.
pub(super) fn moved_base(parent: &Engine, branch: &Branch) -> VerbResult<Option<MergeBase>> {
    let kin = BranchPair { parent, branch };
    let base = kin.base(TreeState::Live, TreeState::Live)?;
    Ok(Some(base).filter(|base| !kin.is_first(*base)))
}

/// Counts the unmerged paths of a branch. This runs a merge without effects; the result is valid
/// until one of the trees changes.
fn count_unmerged(parent: &Engine, branch: &Branch) -> VerbResult<u64> {
    let seen = |engine: &Engine| {
        engine.checkpoints.settle();
        ChangeStamp::of(&engine.live).ok()
    };
    let base = BranchPair { parent, branch }.base(TreeState::Live, TreeState::Live)?;
    let now = seen(parent).zip(seen(&branch.engine));
    let now = now.map(|(here, there)| (base, here, there));
    if let (Some(now), Some((then, found))) = (&now, &*branch.unmerged.lock())
        && now == then
    {
        return Ok(*found);
    }
    let found = unmerged(parent, branch)?.len() as u64;
    *branch.unmerged.lock() = now.map(|now| (now, found));
    Ok(found)
}

/// Returns the changes of a branch since its merge base.
pub(super) fn changes(parent: &Engine, branch: &Branch) -> VerbResult<Vec<Change>> {
    changed_by(BranchPair { parent, branch }, MergeInto::Branch)
}

/// Returns the inodes that a branch has changed since it began. The caller has settled it.
pub(super) fn differences(branch: &Branch) -> SysResult<Vec<PathDiff>> {
    differences_since(&branch.engine, branch.since)
}

/// Returns the records of a branch since it began.
pub(super) fn recorded(branch: &Branch) -> SysResult<Touched> {
    branch.engine.states.touched(branch.since, None)
}

/// Returns the differences from a checkpoint, except changes that bypassed the mount. Directories
/// whose times alone differ are left out, because the entries that changed in them are listed. The
/// caller has settled the tree.
pub(super) fn differences_since(engine: &Engine, since: CheckpointId) -> SysResult<Vec<PathDiff>> {
    let states = &engine.states;
    let mut differs = states.differs_since(since)?;
    let (before, now) = (
        states.view(TreeState::At(since)),
        states.view(TreeState::Live),
    );
    differs.retain(|one| match (&one.old, &one.new) {
        (Some(old), Some(new)) if one.how == Difference::Modified && one.kind == Kind::Dir => {
            // If it cannot be compared, it may differ.
            !has_attrs((&before, old), (&now, new), false).unwrap_or(false)
        }
        _ => true,
    });
    Ok(differs)
}

/// As [`differences_since`], including changes that bypassed the mount.
pub(in crate::engine) fn changes_since(
    engine: &Engine,
    since: CheckpointId,
) -> VerbResult<Vec<Change>> {
    engine.checkpoints.settle();
    let found = || -> SysResult<Vec<Change>> {
        let differs = differences_since(engine, since)?.into_iter();
        let unseen = engine
            .states
            .unseen_between(TreeState::At(since), TreeState::Live)?;
        Ok(differs
            .map(|one| change(one, false))
            .chain(unseen)
            .collect())
    };
    let mut changes = found().map_err(error::tree_not_compared)?;
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    changes.dedup_by(|a, b| a.path == b.path);
    Ok(changes)
}

/// Returns the space used by the files below the mount, including the store.
fn own_bytes(engine: &Engine) -> Option<u64> {
    let root = ckptfs_sys::host::path_in(engine.root_fd(), ".").ok()?;
    let (mut bytes, mut seen, mut open) = (0u64, 0usize, vec![root]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir::<&Path>(&dir).ok()?.map_while(Result::ok) {
            // Metadata of the entry itself; links are not followed.
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
