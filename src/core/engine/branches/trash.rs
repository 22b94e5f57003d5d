//! Drops and restores branches: renames, independent of their size.
//!
//! A drop does not wait for the disk: a power cut within the next second may bring the whole branch
//! back. The branch is unmounted and disappears; its engine is closed in the background, in the
//! trash.

use std::path::PathBuf;

use super::list::changes;
use super::open::{mount, open_branch, open_dir, placed};
use super::verbs::branch_info;
use super::{Branch, BranchOps, UnmountMode, internal};
use crate::engine::Engine;
use crate::engine::bases::registry_failed;
use crate::engine::error::{self, Code, hinted};
use crate::engine::merge::unmerged_of;
use ckptfs_api::display::word;
use ckptfs_api::{
    Actor, BranchInfo, DropBranch, DroppedBranch, SavePolicy, TreePath, VerbError, VerbResult,
};
use ckptfs_store::StoreError;
use ckptfs_store::layout::branches::{BranchEntry, branches_of, parent_and_name};
use ckptfs_store::operation::OperationEffect;
use ckptfs_sys::Errno;

/// Limit of paths reported of a dropped branch.
const TOLD_MAX: usize = 20;

pub(super) fn drop_branch(
    engine: &Engine,
    by: &Actor,
    asked: &DropBranch,
) -> VerbResult<DroppedBranch> {
    let DropBranch {
        name,
        force,
        dry_run,
    } = asked;
    let _claim = engine.branches.claim(name)?;
    let entry = BranchOps::new(engine).registered(name)?;
    let open = engine.branches.get(name).ok();
    let (mut changed, mut left): (Vec<TreePath>, Vec<TreePath>) = (Vec::new(), Vec::new());
    let mut info = BranchInfo {
        mounted: open.is_some(),
        ..branch_info(&entry)
    };
    if let Some(branch) = &open {
        let all = changes(engine, branch)?;
        info.changed = Some(all.len() as u64);
        let told = all.iter().take(TOLD_MAX);
        changed.extend(told.map(|change| change.path.clone()));
        check_childless(name, &BranchOps::new(&branch.engine).names()?)?;
        // An error here does not prevent the drop.
        if let Ok(paths) = unmerged_of(engine, branch, &all) {
            info.unmerged = Some(paths.len() as u64);
            left.extend(paths.into_iter().take(TOLD_MAX));
        }
    }
    let report = |branch| DroppedBranch {
        branch,
        changed,
        unmerged: left,
        dry_run: *dry_run,
    };
    if *dry_run {
        return Ok(report(info));
    }
    if let Some(branch) = open {
        let how = if *force {
            UnmountMode::Forced
        } else {
            UnmountMode::Unused
        };
        leave(engine, &branch, how)?;
    }
    throw(engine, by, None, &entry)?;
    Ok(report(BranchInfo {
        mounted: false,
        dropped: true,
        ..info
    }))
}

/// Unmounts a branch that is being dropped.
fn leave(engine: &Engine, branch: &Branch, how: UnmountMode) -> VerbResult<()> {
    // A dropped branch needs no protection from changes while it is unmounted.
    branch.engine.keep_at_end(Some(SavePolicy::None));
    // Its registry entry stays in place from here on.
    let first_change = &branch.engine.live.locks.first_change;
    if let Err(errno) = first_change.pass() {
        tracing::warn!(%errno, "a branch is thrown away that is not on the disk");
    }
    engine.branches.host()?.leave(&branch.name, how)?;
    first_change.forget();
    Ok(())
}

/// Moves the directory of an unmounted branch to the trash. If the directory no longer exists, only
/// unregisters the branch.
fn throw(engine: &Engine, by: &Actor, undoes: Option<u64>, entry: &BranchEntry) -> VerbResult<()> {
    let registry = engine.timeline().store().layout.branches();
    let root = match open_branch(engine, entry) {
        Err(error)
            if [Code::NotFound, Code::NotADirectory, Code::BadBranch].contains(&error.code) =>
        {
            return registry.unregister(&entry.name).map_err(registry_failed);
        }
        root => root?,
    };
    let (there, _) = branches_of(&root).map_err(registry_failed)?;
    let names: Vec<String> = there.entries.into_iter().map(|entry| entry.name).collect();
    check_childless(&entry.name, &names)?;
    let (parent, name) =
        parent_and_name(&entry.path).ok_or_else(|| internal("a branch is at the root"))?;
    registry
        .discard(entry, open_dir(parent)?, name)
        .map_err(|cause| match cause.errno() {
            Errno::EXDEV => hinted(
                Code::OtherFilesystem,
                format!("{} cannot be moved into the trash", entry.path.display()),
                "it is on another filesystem, or in another project of a quota: move it back",
            ),
            _ => registry_failed(cause),
        })?;
    record(engine, by, undoes, entry, true)
}

/// Records the operation. After a kill before this, the change is done but has no operation to
/// undo; `branch restore` reverts it.
fn record(
    engine: &Engine,
    by: &Actor,
    undoes: Option<u64>,
    entry: &BranchEntry,
    dropped: bool,
) -> VerbResult<()> {
    let _one_at_a_time = engine.checkpoints.checkpointing.lock();
    let deed = OperationEffect::Branch {
        base: entry.base,
        name: entry.name.clone(),
        store: entry.id.to_string(),
        dropped,
    };
    let recorded = engine
        .timeline()
        .operations
        .operate(by, undoes, deed, Vec::new());
    recorded.map_err(error::failed("it was done, but not recorded"))
}

/// Performs the inverse of dropping or restoring a branch.
pub(in crate::engine) fn invert(
    engine: &Engine,
    by: &Actor,
    undoes: Option<u64>,
    (store, dropped): (&str, bool),
) -> VerbResult<()> {
    let entry = find(engine, store, dropped)?;
    let _claim = engine.branches.claim(&entry.name)?;
    if dropped {
        return bring_back(engine, by, undoes, &entry);
    }
    if let Ok(branch) = engine.branches.get(&entry.name) {
        leave(engine, &branch, UnmountMode::Unused)?;
    }
    throw(engine, by, undoes, &entry)
}

/// Returns the known reason why [`invert`] would fail now, if any.
pub(in crate::engine) fn obstacle(engine: &Engine, of: (&str, bool)) -> Option<VerbError> {
    find(engine, of.0, of.1).err()
}

/// Finds a branch by its store, in the trash or among the registered ones.
fn find(engine: &Engine, store: &str, dropped: bool) -> VerbResult<BranchEntry> {
    let registry = engine.timeline().store().layout.branches();
    let all = if dropped {
        registry.dropped()
    } else {
        registry.all()
    };
    let mut all = all.map_err(registry_failed)?.entries.into_iter();
    all.find(|entry| entry.id.to_string() == store)
        .ok_or_else(|| {
            hinted(
                Code::Freed,
                "the branch no longer exists",
                "`ckptfs branch list --dropped` lists what can be brought back",
            )
        })
}

fn check_childless(name: &str, children: &[String]) -> VerbResult<()> {
    let Some(first) = children.first() else {
        return Ok(());
    };
    Err(hinted(
        Code::Held,
        format!(
            "the branch {name} has branches of its own: {}",
            children.join(", ")
        ),
        format!(
            "drop these first: ckptfs branch drop {}, in {}",
            word(first),
            word(name)
        ),
    ))
}

pub(super) fn free(engine: &Engine, name: &str) -> VerbResult<()> {
    let _claim = engine.branches.claim(name)?;
    let registry = engine.timeline().store().layout.branches();
    let dropped = registry.dropped().map_err(registry_failed)?.entries;
    for entry in dropped.iter().filter(|entry| entry.name == name) {
        registry.free(entry).map_err(registry_failed)?;
    }
    // A store that is still open would not be removed.
    engine.branches.host()?.wait_closed();
    registry.remove_gone().map_err(registry_failed)
}

pub(super) fn revive(engine: &Engine, by: &Actor, name: &str) -> VerbResult<BranchInfo> {
    let _claim = engine.branches.claim(name)?;
    let registry = engine.timeline().store().layout.branches();
    let dropped = registry.dropped().map_err(registry_failed)?.entries;
    let known: Vec<String> = dropped.iter().map(|entry| entry.name.clone()).collect();
    let last = dropped
        .into_iter()
        .filter(|entry| entry.name == name)
        .max_by_key(|entry| entry.made_ns);
    let entry = last.ok_or_else(|| not_dropped(name, &known))?;
    bring_back(engine, by, None, &entry)?;
    Ok(BranchInfo {
        mounted: true,
        ..branch_info(&placed(engine, entry))
    })
}

/// Moves a branch out of the trash and mounts it. The caller has claimed it.
fn bring_back(
    engine: &Engine,
    by: &Actor,
    undoes: Option<u64>,
    entry: &BranchEntry,
) -> VerbResult<()> {
    let (registry, name) = (engine.timeline().store().layout.branches(), &entry.name);
    if registry.get(name).map_err(registry_failed)?.is_some() {
        return Err(hinted(
            Code::BranchExists,
            format!("there is another branch {name} now"),
            format!("drop that one first: ckptfs branch drop {}", word(name)),
        ));
    }
    // Its former parent directory may have been renamed together with the tree.
    let places = entry.places(Some(&engine.place().backing()));
    let is_there = |path: &&PathBuf| path.parent().is_some_and(|dir| open_dir(dir).is_ok());
    let path = places.iter().find(is_there).unwrap_or(&entry.path).clone();
    let entry = &BranchEntry {
        path,
        ..entry.clone()
    };
    let (parent, file) =
        parent_and_name(&entry.path).ok_or_else(|| internal("a branch is at the root"))?;
    registry
        .revive(entry, open_dir(parent)?, file)
        .map_err(|cause| already_there(entry, cause))?;
    record(engine, by, undoes, entry, false)?;
    mount(engine, entry)
}

fn already_there(entry: &BranchEntry, cause: StoreError) -> VerbError {
    match cause.errno() {
        Errno::EEXIST => hinted(
            Code::NotEmpty,
            format!("something else is at {} now", entry.path.display()),
            format!(
                "move it out of the way first: mv {} ELSEWHERE",
                word(entry.path.display())
            ),
        ),
        _ => registry_failed(cause),
    }
}

fn not_dropped(name: &str, known: &[String]) -> VerbError {
    let hint = match error::nearest(name, known) {
        Some(near) => {
            format!("did you mean {near}? `ckptfs branch list --dropped` lists all")
        }
        None => "`ckptfs branch list --dropped` lists all".to_owned(),
    };
    hinted(
        Code::UnknownBranch,
        format!("no branch {name:?} was dropped, or gc has emptied the trash since"),
        hint,
    )
}
