//! The contents of a new branch, which may not be on disk yet.
//!
//! They are written in an order that a journalling filesystem preserves on disk, without individual
//! syncs, because the requester would wait for some fifteen of them. The branch exists at once and
//! survives a kill. Afterwards all of it is synced in the background, in this order: the journal of
//! the parent, which has the base; the contents of the branch; the entry, which then reads "made".
//! The first change in the branch waits for that (`live::first_change`), so no change is on disk
//! before the entry is.
//!
//! A mount that finds an entry "unsynced" can therefore conclude that the branch has no changes. If
//! it is still the same mount of the filesystem, the branch is complete, and is synced. Otherwise a
//! power cut may have lost a part, and the branch is created again from the same base.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::{BranchTree, internal};
use crate::engine::Engine;
use crate::engine::auto::daemon;
use crate::engine::bases::registry_failed;
use crate::engine::config::Inherits;
use crate::engine::error;
use ckptfs_api::{Actor, CheckpointOptions, Reason, VerbResult};
use ckptfs_store::Store;
use ckptfs_store::layout::STORE_NAME;
use ckptfs_store::layout::branch_store::{mark_branch, sync_branch, unmake_store};
use ckptfs_store::layout::branches::BranchEntry;
use ckptfs_sys::{self as sys, Stat, SysResult, host};

/// The mode of the directory of a branch, which contains only the store.
const ALONE: u32 = 0o700;

/// Identifies the mount of the filesystem with the store of `engine`.
pub(super) fn mount_of(engine: &Engine) -> Option<String> {
    host::mount_instance(engine.timeline().store().layout.dir())
}

/// Makes the first change in the branch wait until the branch is on disk. The branch is not served
/// yet.
pub(super) fn sync_before_changes(
    engine: &Engine,
    branch: &Engine,
    entry: &BranchEntry,
    root: OwnedFd,
) {
    let (parent, entry) = (Arc::clone(engine.timeline().store()), entry.clone());
    let sync = move || sync(&parent, &entry, &root);
    branch.live.locks.first_change.comes_after(sync);
}

/// Syncs a served branch in a separate thread. If no thread can be created, its first change syncs
/// it.
pub(super) fn sync_behind(branch: &Engine) {
    if host::left_out("settle") {
        return;
    }
    let locks = Arc::clone(&branch.live.locks);
    let work = move || {
        if let Err(errno) = locks.first_change.pass() {
            tracing::warn!(%errno, "a branch that was made is not on the disk yet: its first change tries again");
        }
    };
    let started = std::thread::Builder::new()
        .name("settle".into())
        .spawn(work);
    if let Err(cause) = started {
        tracing::warn!(%cause, "a branch that was made is not on the disk before its first change");
    }
}

/// Syncs a branch in the order of the module. Durable on return.
pub(super) fn sync(parent: &Store, entry: &BranchEntry, root: impl AsFd) -> SysResult<()> {
    parent.journal.sync()?;
    sync_branch(root)?;
    Ok(parent.layout.branches().register(entry)?)
}

/// Creates the contents of a branch in an empty directory and opens it. Nothing is durable on
/// return.
///
/// # Errors
/// Errors of the creation, whose remains stay.
pub(super) fn make(
    engine: &Engine,
    by: &Actor,
    entry: &BranchEntry,
    root: &OwnedFd,
    like: &Stat,
) -> VerbResult<Arc<Engine>> {
    let path = entry.path.clone();
    let failed = |errno| error::failed(&format!("{} cannot be used", path.display()))(errno);
    let own = sys::stat_fd(root).map_err(failed)?;
    if (own.uid, own.gid) != (like.uid, like.gid) {
        sys::chown_fd(root, Some(like.uid), Some(like.gid)).map_err(failed)?;
    }
    // The directory contains nothing that the branch shows.
    sys::chmod_fd(root, ALONE).map_err(failed)?;
    let marked = BranchEntry {
        made: true,
        unsynced: None,
        ..entry.clone()
    };
    mark_branch(root, &marked).map_err(registry_failed)?;
    let tree = BranchTree {
        id: entry.id,
        root: root
            .try_clone()
            .map_err(|cause| error::io_error(STORE_NAME, cause))?,
        path: entry.path.clone(),
        base: engine.as_base(entry.base),
        inherits: Inherits(Arc::clone(&engine.serving)),
    };
    let branch = Engine::open(engine.branches.host()?.config(tree)?)?;
    let options = CheckpointOptions {
        note: format!("branched from checkpoint {}", entry.base),
        ..CheckpointOptions::default()
    };
    let first = branch
        .checkpoints
        .make_checkpoint(by, &options, Reason::Asked);
    let checked = first.and_then(|first| {
        if first.id == entry.since {
            Ok(())
        } else {
            Err(internal("a new store has another first checkpoint"))
        }
    });
    checked.inspect_err(|_| branch.close())?;
    Ok(branch)
}

/// Syncs a branch that may not be on disk. If the contents of its directory `root` may be
/// incomplete, they are created again. The branch is not served.
///
/// # Errors
/// Errors of the creation and of syncs.
pub(super) fn settle(engine: &Engine, entry: &BranchEntry, root: &OwnedFd) -> VerbResult<()> {
    let is_whole = entry.unsynced.is_some() && entry.unsynced == mount_of(engine);
    if !is_whole && unmake_store(root, entry.id).map_err(registry_failed)? {
        tracing::info!(
            branch = entry.name,
            "it may not be whole since the power was cut: nothing was changed in it, and it is made again"
        );
        let like = sys::stat_fd(engine.live.root()).map_err(error::unusable)?;
        make(engine, &daemon(), entry, root, &like)?.close();
    }
    sync(engine.timeline().store(), entry, root).map_err(error::failed("it cannot be synced"))
}
