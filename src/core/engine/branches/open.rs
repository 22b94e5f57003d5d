//! Mounts registered branches, and repairs the state after a kill.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::{Branch, BranchOps, BranchTree, UnmountMode, fresh};
use crate::engine::Engine;
use crate::engine::bases::registry_failed;
use crate::engine::config::Inherits;
use crate::engine::error::{self, Code, hinted};
use crate::engine::merge::BranchPair;
use ckptfs_api::VerbResult;
use ckptfs_api::display::word;
use ckptfs_store::layout::branch_store::unmake_branch;
use ckptfs_store::layout::branches::{BranchEntry, branch_mark, parent_and_name, store_id};
use ckptfs_sys::{self as sys, Errno, OpenKind};

/// Opens a directory by its absolute path without following symbolic links: a user who can write to
/// a directory above it must not choose the directory opened.
///
/// # Errors
/// `not-found`, `not-a-directory`: also for a link.
pub(super) fn open_dir(path: &Path) -> VerbResult<OwnedFd> {
    let open = || {
        let below = path
            .as_os_str()
            .as_bytes()
            .strip_prefix(b"/")
            .filter(|below| !below.is_empty())
            .ok_or(Errno::EINVAL)?;
        sys::open_beneath(sys::open_root(Path::new("/"))?, below, OpenKind::Dir)
    };
    let shown = path.display();
    open().map_err(|errno| match errno {
        Errno::ENOENT => error::error(Code::NotFound, format!("{shown} does not exist")),
        Errno::ELOOP | Errno::ENOTDIR => error::error(
            Code::NotADirectory,
            format!("{shown} is not a directory, or its path has a symbolic link"),
        ),
        errno => error::failed(&format!("{shown} cannot be opened"))(errno),
    })
}

/// Opens the directory of a branch after checking its identity.
///
/// # Errors
/// `not-found`; `bad-branch`: a different directory is there.
pub(super) fn open_branch(engine: &Engine, entry: &BranchEntry) -> VerbResult<OwnedFd> {
    check_branch(engine, entry, open_dir(&entry.path)?)
}

/// Returns the entry of a branch with the current path of its directory.
pub(super) fn placed(engine: &Engine, entry: BranchEntry) -> BranchEntry {
    if let Ok(branch) = engine.branches.get(&entry.name) {
        let path = branch.engine.place().backing();
        return BranchEntry { path, ..entry };
    }
    let places = entry.places(Some(&engine.place().backing())).into_iter();
    let mut placed = places.map(|path| BranchEntry {
        path,
        ..entry.clone()
    });
    placed
        .find(|entry| open_branch(engine, entry).is_ok())
        .unwrap_or(entry)
}

/// Checks that a directory is that of the branch.
///
/// # Errors
/// `bad-branch`: it is a different one.
fn check_branch(engine: &Engine, entry: &BranchEntry, root: OwnedFd) -> VerbResult<OwnedFd> {
    let failed = |errno| error::failed("the branch cannot be opened")(errno);
    let (found, like) = (
        sys::stat_fd(&root).map_err(failed)?,
        sys::stat_fd(engine.live.root()).map_err(failed)?,
    );
    let is_marked = branch_mark(&root)
        .map_err(registry_failed)?
        .is_some_and(|mark| mark.id == entry.id);
    if found.dev == like.dev && is_marked && store_id(&root) == Some(entry.id) {
        return Ok(root);
    }
    Err(hinted(
        Code::BadBranch,
        format!(
            "what is at {} is not the branch {}",
            entry.path.display(),
            entry.name
        ),
        format!(
            "move it back there, or drop it: ckptfs branch drop {}",
            word(&entry.name)
        ),
    ))
}

/// Removes the remains of a branch whose creation was interrupted; its registry entry last.
pub(super) fn take_back(engine: &Engine, entry: &BranchEntry, root: &OwnedFd) -> VerbResult<()> {
    if unmake_branch(root, entry.id).map_err(registry_failed)?
        && let Some((parent, name)) = parent_and_name(&entry.path)
        && let Ok(parent) = open_dir(parent)
    {
        // The requester may have created the directory, and may remove it.
        let _ = sys::rmdir_at(parent, name);
    }
    let registry = engine.timeline().store().layout.branches();
    registry.unregister(&entry.name).map_err(registry_failed)
}

/// Updates the registered path of a branch before it is mounted there: a worker that takes over
/// relies on it.
fn note_place(engine: &Engine, entry: &BranchEntry) -> VerbResult<()> {
    let registry = engine.timeline().store().layout.branches();
    match registry.get(&entry.name).map_err(registry_failed)? {
        Some(known) if known.path != entry.path => {
            registry.register(entry).map_err(registry_failed)
        }
        _ => Ok(()),
    }
}

/// Mounts a registered branch. The caller has claimed it.
pub(super) fn mount(engine: &Engine, entry: &BranchEntry) -> VerbResult<()> {
    let host = engine.branches.host()?;
    // The path of a mount that a worker left leads into that mount.
    let left = host.left(entry.id)?;
    if left.is_none() {
        host.clear(&entry.name, &entry.path)?;
    }
    if engine.branches.get(&entry.name).is_ok() {
        return Err(hinted(
            Code::AlreadyMounted,
            format!(
                "the branch {} is already mounted, at {}",
                entry.name,
                entry.path.display()
            ),
            format!("to see it: ckptfs -C {} status", word(entry.path.display())),
        ));
    }
    if !engine.timeline().catalogue.is_stored(entry.base) {
        return Err(error::error(
            Code::UnknownCheckpoint,
            format!(
                "checkpoint {}, which the branch {} is based on, is gone",
                entry.base, entry.name
            ),
        ));
    }
    if entry.unsynced.is_some() {
        match &left {
            Some(root) => fresh::settle(engine, entry, root)?,
            None => fresh::settle(engine, entry, &open_dir(&entry.path)?)?,
        }
    }
    let root = match left {
        Some(root) => check_branch(engine, entry, root)?,
        None => open_branch(engine, entry)?,
    };
    note_place(engine, entry)?;
    let tree = BranchTree {
        id: entry.id,
        root,
        path: entry.path.clone(),
        base: engine.as_base(entry.base),
        inherits: Inherits(Arc::clone(&engine.serving)),
    };
    let branch = Engine::open(host.config(tree)?)?;
    let branch = Branch::of(entry, branch);
    BranchPair {
        parent: engine,
        branch: &branch,
    }
    .settle();
    engine.branches.serve(branch, false)
}

impl BranchOps<'_> {
    /// See [`placed`].
    pub(super) fn placed(&self, entry: BranchEntry) -> BranchEntry {
        placed(self.engine, entry)
    }

    /// Continues the mounts that the previous worker left. Must precede any other operation on
    /// branches: until then, requests to their paths are not answered.
    pub fn go_on(&self) {
        let Ok(host) = self.engine.branches.host() else {
            return;
        };
        // A read error is reported when they are mounted.
        let registered = self.registry().all().unwrap_or_default();
        for entry in registered.entries {
            if !entry.made || matches!(host.left(entry.id), Ok(None)) {
                continue;
            }
            let claimed = self.engine.branches.claim(&entry.name);
            if let Err(error) = claimed.and_then(|_claim| mount(self.engine, &entry)) {
                tracing::warn!(branch = entry.name, %error, "its mount does not go on");
                host.give_up(entry.id);
            }
        }
    }

    /// Repairs the state of branches after a kill, and mounts all of them. A branch that cannot be
    /// mounted is reported as a warning and stays registered.
    pub fn mount_all(&self) {
        self.mount_registered();
        self.engine.branches.watchers.settle(true);
    }

    fn mount_registered(&self) {
        let registry = self.registry();
        let is_there = |entry: &BranchEntry| {
            open_branch(self.engine, &placed(self.engine, entry.clone())).is_ok()
        };
        if let Err(error) = registry.settle(is_there) {
            tracing::warn!(%error, "dropped branches were not looked through");
        }
        let registered = match registry.all() {
            Ok(registered) => registered,
            Err(error) => return self.engine.warn(registry_failed(error).message),
        };
        for file in registered.unreadable {
            self.engine
                .warn(registry_failed(ckptfs_store::StoreError::BadBranch { file }).message);
        }
        for entry in registered.entries {
            if self.engine.branches.get(&entry.name).is_ok() {
                continue;
            }
            let mounted = self.engine.branches.claim(&entry.name).and_then(|_claim| {
                if entry.made {
                    mount(self.engine, &placed(self.engine, entry.clone()))
                } else {
                    self.sweep(&entry)
                }
            });
            if let Err(error) = mounted {
                self.engine.warn(format!(
                    "the branch {} is not mounted: {}",
                    entry.name, error.message
                ));
            }
        }
    }

    /// Ends the mounts of all branches. If one fails to end, those already ended are mounted again.
    ///
    /// # Errors
    /// As [`super::Host::end`].
    pub fn end_all(&self, how: UnmountMode) -> VerbResult<()> {
        self.engine.branches.watchers.settle(false);
        // The table must not be locked while a branch ends.
        let names: Vec<String> = self.engine.branches.open.lock().keys().cloned().collect();
        let Ok(host) = self.engine.branches.host() else {
            return Ok(());
        };
        for name in names {
            if let Err(error) = host.end(&name, how) {
                self.mount_all();
                return Err(error);
            }
        }
        host.wait_closed();
        Ok(())
    }

    /// Removes a branch whose creation was interrupted; it was never reported.
    fn sweep(&self, entry: &BranchEntry) -> VerbResult<()> {
        tracing::info!(
            branch = entry.name,
            "its making was cut short: it is taken back"
        );
        match open_dir(&entry.path) {
            Ok(root) => take_back(self.engine, entry, &root),
            Err(error) if error.code == Code::NotFound || error.code == Code::NotADirectory => {
                let registry = self.registry();
                registry.unregister(&entry.name).map_err(registry_failed)
            }
            Err(error) => Err(error),
        }
    }
}
