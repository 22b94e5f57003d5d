//! Creation of a branch.
//!
//! **Order.** First the registry entry, "making", which holds the base. Then the mark in the new
//! store, which identifies everything created after it; the store; its first checkpoint; then the
//! entry that the branch exists. After a kill before the last step, the next mount removes the
//! remains (`open`); after it, the next mount mounts the branch. None of these steps is synced:
//! that follows in the background (`fresh`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::open::{open_dir, take_back};
use super::verbs::branch_info;
use super::{Branch, Claim, base_note, fresh};
use crate::engine::Engine;
use crate::engine::bases::registry_failed;
use crate::engine::error::{self, Code, hinted};
use crate::engine::requester::Requester;
use crate::history::append::now_ns;
use ckptfs_api::display::word;
use ckptfs_api::{BranchInfo, CheckpointId, CheckpointOptions, CreateBranch, Reason, VerbResult};
use ckptfs_store::layout::branches::{BRANCHES_MAX, BranchEntry, DEPTH_MAX, DOT_GIT};
use ckptfs_store::layout::{STORE_NAME, StoreId};
use ckptfs_sys::{self as sys, Kind, Stat};

/// The first checkpoint of a store.
const FIRST: CheckpointId = CheckpointId(1);

/// Creates a branch.
pub(super) fn create(
    engine: &Engine,
    requester: &Requester,
    asked: &CreateBranch,
) -> VerbResult<BranchInfo> {
    let CreateBranch { name, path, .. } = asked;
    let _claim = claim(engine, name)?;
    engine.branches.host()?;
    let depth = room_for(engine, name)?;
    let given = asked
        .at
        .as_ref()
        .map(|at| engine.states.checkpoint_id(at))
        .transpose()?;
    let mut entry = BranchEntry {
        name: name.clone(),
        id: StoreId::random(),
        base: given.unwrap_or(CheckpointId(0)),
        since: FIRST,
        made_ns: now_ns(),
        depth,
        path: path.clone(),
        made: false,
        unsynced: None,
    };
    if asked.dry_run {
        return Ok(BranchInfo {
            dry_run: true,
            base: given,
            ..branch_info(&entry)
        });
    }
    // If this tree is a branch, it must be on disk before its store refers to a new branch.
    engine
        .live
        .locks
        .first_change
        .pass()
        .map_err(error::failed("the branch cannot be made"))?;
    let (root, like) = new_dir(engine, requester, asked)?;
    entry.base = match given {
        Some(base) => base,
        None => checkpoint(engine, requester, name)?,
    };
    hold(engine, &entry)?;
    let made = fresh::make(engine, requester.by(), &entry, &root, &like).and_then(|branch| {
        tell(engine, &branch, &mut entry, &root).inspect_err(|_| branch.close())?;
        engine
            .branches
            .serve(Branch::of(&entry, Arc::clone(&branch)), true)?;
        fresh::sync_behind(&branch);
        Ok(())
    });
    match made {
        Ok(()) => Ok(BranchInfo {
            mounted: true,
            ..branch_info(&entry)
        }),
        Err(error) => {
            // The next mount removes the rest.
            if let Err(error) = take_back(engine, &entry, &root) {
                tracing::warn!(%error, "a branch that was not made stays in part");
            }
            Err(error)
        }
    }
}

/// Claims the name. A concurrent creation of the same name is reported as an existing branch.
fn claim<'a>(engine: &'a Engine, name: &str) -> VerbResult<Claim<'a>> {
    match engine.branches.claim(name) {
        Err(error) if error.code == Code::Busy => {
            room_for(engine, name)?;
            Err(hinted(
                Code::BranchExists,
                format!("another process is making the branch {name}"),
                "give it another name",
            ))
        }
        claim => claim,
    }
}

/// Checks that another branch of this name can exist, and returns its depth.
fn room_for(engine: &Engine, name: &str) -> VerbResult<u32> {
    let registry = engine.timeline().store().layout.branches();
    if let Some(there) = registry.get(name).map_err(registry_failed)? {
        return Err(hinted(
            Code::BranchExists,
            format!(
                "there is already a branch {name}, at {}",
                there.path.display()
            ),
            format!(
                "give it another name, or drop that one first: ckptfs branch drop {}",
                word(name)
            ),
        ));
    }
    if registry.count().map_err(registry_failed)? >= BRANCHES_MAX {
        return Err(hinted(
            Code::TooManyBranches,
            format!("a tree can have at most {BRANCHES_MAX} branches"),
            "drop some: ckptfs branch drop NAME",
        ));
    }
    let depth = engine.branches.own.as_ref().map_or(0, |own| own.depth) + 1;
    if depth > DEPTH_MAX {
        return Err(hinted(
            Code::TooManyBranches,
            format!("branches of branches can be at most {DEPTH_MAX} deep"),
            "merge this one first, or branch from its parent",
        ));
    }
    Ok(depth)
}

/// Opens the directory of the branch: empty, created by the requester, and on the filesystem of
/// this tree. It gets the owner and the mode of this tree's root.
fn new_dir(
    engine: &Engine,
    requester: &Requester,
    asked: &CreateBranch,
) -> VerbResult<(OwnedFd, Stat)> {
    let shown = asked.path.display();
    let root = open_dir(&asked.path)?;
    let failed = |errno| error::failed(&format!("{shown} cannot be used"))(errno);
    let (found, like) = (
        sys::stat_fd(&root).map_err(failed)?,
        sys::stat_fd(engine.live.root()).map_err(failed)?,
    );
    let own = sys::ids().0;
    if ![like.uid, requester.by().uid, own].contains(&found.uid) {
        return Err(hinted(
            Code::NoPermission,
            format!("{shown} belongs to user {}", found.uid),
            "name a directory of your own",
        ));
    }
    if found.dev != like.dev {
        return Err(hinted(
            Code::OtherFilesystem,
            format!("{shown} is on another filesystem than the tree, so they cannot share data"),
            "choose a place on the same filesystem: --path DIR",
        ));
    }
    let inside = sys::list_dir(&root).map_err(failed)?;
    let linked = asked.git
        && inside.iter().all(|entry| entry.name == DOT_GIT)
        && sys::stat_at(&root, DOT_GIT).is_ok_and(|link| link.kind == Kind::File);
    if found.kind != Kind::Dir || !(linked || inside.is_empty()) {
        return Err(hinted(
            Code::NotEmpty,
            format!("{shown} is not empty"),
            "name a directory that does not exist yet: --path DIR",
        ));
    }
    Ok((root, like))
}

fn checkpoint(engine: &Engine, requester: &Requester, name: &str) -> VerbResult<CheckpointId> {
    let options = CheckpointOptions {
        note: base_note(name),
        ..CheckpointOptions::default()
    };
    let made = engine
        .checkpoints
        .checkpoint_with_hooks(requester.by(), &options, Reason::Asked)?;
    Ok(made.id)
}

/// Registers the branch, which then holds its base, unless the base was deleted in the meantime.
fn hold(engine: &Engine, entry: &BranchEntry) -> VerbResult<()> {
    let _one_at_a_time = engine.checkpoints.checkpointing.lock();
    if !engine.timeline().catalogue.has_checkpoint(entry.base) {
        return Err(engine.states.no_checkpoint(&entry.base.to_string()));
    }
    let registry = engine.timeline().store().layout.branches();
    registry.note(entry).map_err(registry_failed)
}

/// Records that the branch exists. From now on it survives a kill.
fn tell(
    engine: &Engine,
    branch: &Arc<Engine>,
    entry: &mut BranchEntry,
    root: &OwnedFd,
) -> VerbResult<()> {
    entry.made = true;
    entry.unsynced = fresh::mount_of(engine);
    if entry.unsynced.is_none() {
        // A kill could not be distinguished from a power cut.
        return fresh::sync(engine.timeline().store(), entry, root)
            .map_err(error::failed("the branch cannot be synced"));
    }
    let registry = engine.timeline().store().layout.branches();
    registry.note(entry).map_err(registry_failed)?;
    let root = root
        .try_clone()
        .map_err(|cause| error::io_error(STORE_NAME, cause))?;
    fresh::sync_before_changes(engine, branch, entry, root);
    Ok(())
}
