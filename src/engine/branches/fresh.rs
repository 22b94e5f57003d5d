//! What a branch is made of, and a branch that was made a moment ago and may not be on the disk.
//!
//! What it is made of is written in an order in which a journalling filesystem brings it to the
//! disk, and nothing of it is synced one by one: whoever asked would wait for some fifteen syncs.
//! It is there at once, and survives a kill. All of it is synced behind the answer, in this order: the
//! journal of the parent, which has the base; what the branch is made of; the entry, which says
//! "made" from then on. Whatever would be changed in the branch before waits for that
//! (`live::first_change`), so nothing that somebody did in the branch is on the
//! disk before its entry is.
//!
//! So the next mount that finds an entry which says "unsynced" knows that nothing was changed. If
//! the filesystem is mounted as it was then, all of it is there, and it is synced. Else a power cut
//! may have taken a part, and the branch is made again, of the same base.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::{BranchTree, internal};
use crate::engine::Engine;
use crate::engine::api::{CheckpointOptions, VerbResult};
use crate::engine::auto::daemon;
use crate::engine::bases::registry_failed;
use crate::engine::config::Inherits;
use crate::engine::error;
use crate::store::Store;
use crate::store::layout::STORE_NAME;
use crate::store::layout::branch_store::{mark_branch, sync_branch, unmake_store};
use crate::store::layout::branches::BranchEntry;
use crate::store::record::{Actor, Reason};
use crate::sys::host;
use crate::sys::{self, Stat, SysResult};

/// The mode of the directory of a branch, which has only the store.
const ALONE: u32 = 0o700;

/// Names the mount of the filesystem that the store of `engine` is on.
pub(super) fn mount_of(engine: &Engine) -> Option<String> {
    host::mount_instance(engine.timeline().store().layout.dir())
}

/// Has the first change in the branch wait until that is on the disk. The branch is not served yet.
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

/// Brings a branch that is served to the disk, in a thread of its own. Where there can be none, its
/// first change does.
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

/// See the module. Durable on return.
pub(super) fn sync(parent: &Store, entry: &BranchEntry, root: impl AsFd) -> SysResult<()> {
    parent.journal.sync()?;
    sync_branch(root)?;
    Ok(parent.layout.branches().register(entry)?)
}

/// Makes what a branch is made of, in an empty directory, and opens it. Nothing is durable on
/// return.
///
/// # Errors
/// Those of making it; what there is of it stays.
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
    // Nothing that is shown of the branch is in it.
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

/// Has a branch on the disk that was not known to be: what is in its directory `root` is whole, or
/// is made again. It is not served.
///
/// # Errors
/// Those of making it and of syncs.
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
