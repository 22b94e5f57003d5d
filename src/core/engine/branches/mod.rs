//! Branches: writable trees that began as a checkpoint of this one. Each has its own engine in this
//! process (docs/adr/0031-branches-look-through.md).
//!
//! The registry of branches is in the store (`store::layout::branches`): branches hold their bases
//! whether or not they are mounted. The table here contains the open branches, for the verbs of the
//! parent. Serving a directory belongs to the owner of the parent's session, the parent's [`Host`].
//!
//! **Locking.** The table and the set of claimed names are leaf locks. A name is claimed
//! ([`Branches::claim`]) while its branch is created, mounted, dropped, merged or updated. A second
//! such request fails immediately and does not wait.

mod create;
mod fresh;
mod list;
mod open;
pub mod radar;
mod trash;
pub mod verbs;
mod watchers;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::bases::registry_failed;
use super::change_stamp::ChangeStamp;
use super::config::{Config, Inherits};
use super::error::{self, Code, hinted};
use super::{Engine, error::error};
use crate::history::base::Base;
use ckptfs_api::display::word;
use ckptfs_api::{CheckpointId, MergeBase, VerbError, VerbResult};
use ckptfs_store::layout::StoreId;
use ckptfs_store::layout::branches::{BranchEntry, Registry, is_branch_name};
use ckptfs_sys::lock::Mutex;
pub(super) use list::changes_since;
pub(super) use trash::{invert, obstacle};

/// A branch that is served.
///
/// While its name is claimed ([`Branches::claim`]), it is neither dropped nor mounted again, and
/// `base` and `since` do not change. It can be unmounted nevertheless: reads continue to work, and
/// operations that need a record fail with EIO.
pub struct Branch {
    /// Its name.
    pub name: String,
    /// Its engine. Its changes are the records of its history after `since`. An inherited inode has
    /// the slot of the parent there; an inode born in the branch has a different one
    /// (`tree::merge`).
    pub engine: Arc<Engine>,
    /// The checkpoint of the parent that it looks through to. It is held, so the parent's engine
    /// can show its view. The changes of the parent are the records of its history after it.
    pub base: CheckpointId,
    /// The checkpoint of the branch's history that equals the base.
    pub since: CheckpointId,
    /// Its mount point.
    pub path: PathBuf,
    /// The number of unmerged paths at the last count.
    unmerged: Mutex<Option<(UnmergedStamp, u64)>>,
}

/// The merge base, and the change stamps of the parent and the branch.
type UnmergedStamp = (MergeBase, ChangeStamp, ChangeStamp);

impl Branch {
    fn of(entry: &BranchEntry, engine: Arc<Engine>) -> Branch {
        Branch {
            name: entry.name.clone(),
            engine,
            base: entry.base,
            since: entry.since,
            unmerged: Mutex::default(),
            path: entry.path.clone(),
        }
    }
}

/// A directory to serve as a branch.
pub struct BranchTree {
    /// Its store.
    pub id: StoreId,
    /// Its directory, opened before anything is mounted over it.
    pub root: OwnedFd,
    /// The path of the directory and of the mount.
    pub path: PathBuf,
    /// The checkpoint that it looks through to.
    pub base: Arc<Base>,
    /// The settings of its parent.
    pub inherits: Inherits,
}

/// The owner of a tree's session, which can serve other trees: the daemon.
pub trait Host: Send + Sync {
    /// Returns the directory of a branch whose mount was left by the previous worker and is to be
    /// continued; `None`: no such mount. **Do not access the path of such a branch**: the request
    /// would never be answered.
    ///
    /// # Errors
    /// EMFILE.
    fn left(&self, id: StoreId) -> VerbResult<Option<OwnedFd>>;

    /// Abandons the mount that a worker left of a branch: its requests fail from now on instead of
    /// waiting.
    fn give_up(&self, id: StoreId);

    /// Returns the configuration of a branch, derived from that of its parent.
    ///
    /// # Errors
    /// The branch cannot be prepared.
    fn config(&self, tree: BranchTree) -> VerbResult<Config>;

    /// Returns the default path of a branch of this name: next to the tree.
    ///
    /// # Errors
    /// `bad-path`: the tree has no name.
    fn beside(&self, name: &str) -> VerbResult<PathBuf>;

    /// Removes our dead mount at `path`, and waits for the branch of this name if it is being
    /// unmounted or closed. Does not affect a mounted branch.
    ///
    /// # Errors
    /// The mount cannot be removed, or the branch does not end.
    fn clear(&self, name: &str, path: &Path) -> VerbResult<()>;

    /// Mounts a branch, or continues the mount that a worker left, with a control socket in its
    /// store. The branch is served on return. `fresh`: its directory was just created, so no
    /// process uses it. At the end of the mount, [`Branches::ended`] of the parent is called.
    ///
    /// # Errors
    /// The mount failed. Nothing of the attempt remains, and the engine is not closed.
    fn serve(&self, name: &str, engine: &Arc<Engine>, fresh: bool) -> VerbResult<()>;

    /// Unmounts a branch and closes its engine. On return its store is unused, unless `how` defers
    /// that. Succeeds if the branch is not served.
    ///
    /// # Errors
    /// `branch-in-use`: it is still served.
    fn end(&self, name: &str, how: UnmountMode) -> VerbResult<()>;

    /// Unmounts a branch, and closes its engine later, before this process ends. On return the
    /// branch is unused, and its name is free.
    ///
    /// # Errors
    /// As [`Host::end`].
    fn leave(&self, name: &str, how: UnmountMode) -> VerbResult<()>;

    /// Waits without a time limit for the engines that [`Host::leave`] has yet to close.
    fn wait_closed(&self);
}

/// The way to end the mount of a branch that may be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Fail if it is in use.
    Unused,
    /// Detach at once, and serve it until the last file is closed.
    Lazy,
    /// At once: every call fails with ENOTCONN.
    Forced,
}

/// The branches of a tree.
#[derive(Default)]
pub struct Branches {
    /// The entry of this tree, if it is a branch itself.
    own: Option<BranchEntry>,
    /// The mount point of its parent, if that is served.
    parent: OnceLock<PathBuf>,
    host: OnceLock<Arc<dyn Host>>,
    open: Mutex<BTreeMap<String, Arc<Branch>>>,
    claimed: Mutex<BTreeSet<String>>,
    watchers: watchers::Watchers,
}

/// Exclusive access to a branch: until this is dropped, no other request creates, mounts, drops or
/// merges it.
pub struct Claim<'a> {
    branches: &'a Branches,
    name: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.branches.claimed.lock().remove(&self.name);
    }
}

impl Branches {
    pub(super) fn new(own: Option<BranchEntry>) -> Branches {
        Branches {
            own,
            ..Branches::default()
        }
    }

    /// Sets the host. Without one no branch can be created or mounted.
    pub fn set_host(&self, host: Arc<dyn Host>) {
        let _ = self.host.set(host);
    }

    /// Sets the mount point of the tree that this one is a branch of.
    pub fn set_parent(&self, at: &Path) {
        let _ = self.parent.set(at.to_owned());
    }

    /// Returns the store of this tree, if it is a branch itself.
    pub fn own_id(&self) -> Option<StoreId> {
        self.own.as_ref().map(|own| own.id)
    }

    pub(super) fn host(&self) -> VerbResult<&Arc<dyn Host>> {
        self.host
            .get()
            .ok_or_else(|| error::not_mounted("branches are served where their parent is mounted"))
    }

    /// Returns the open branch of this name.
    ///
    /// # Errors
    /// `unknown-branch`: no branch of this name is mounted.
    pub fn get(&self, name: &str) -> VerbResult<Arc<Branch>> {
        let open = self.open.lock();
        if let Some(branch) = open.get(name) {
            return Ok(Arc::clone(branch));
        }
        let known: Vec<String> = open.keys().cloned().collect();
        Err(self.unknown(name, &known))
    }

    /// Returns all open branches, by name.
    pub fn all(&self) -> Vec<Arc<Branch>> {
        self.open.lock().values().map(Arc::clone).collect()
    }

    /// Claims a branch, or the name of a new one.
    ///
    /// # Errors
    /// `busy`: another request has claimed it. `bad-name`.
    pub fn claim(&self, name: &str) -> VerbResult<Claim<'_>> {
        check_name(name)?;
        if !self.claimed.lock().insert(name.to_owned()) {
            return Err(hinted(
                Code::Busy,
                format!("another process is working on the branch {name}"),
                "try again when that is done",
            ));
        }
        Ok(Claim {
            branches: self,
            name: name.to_owned(),
        })
    }

    /// Returns the error for an unknown branch.
    fn unknown(&self, name: &str, known: &[String]) -> VerbError {
        if self.own.as_ref().is_some_and(|own| own.name == name) {
            let at = self.parent.get().map_or(Path::new("DIR"), PathBuf::as_path);
            return hinted(
                Code::UnknownBranch,
                format!("this tree is the branch {name} itself, and has no branch of that name"),
                format!(
                    "run it in the parent tree: ckptfs -C {}",
                    word(at.display())
                ),
            );
        }
        let hint = match error::nearest(name, known) {
            Some(near) => format!("did you mean {near}? `ckptfs branch list` lists all"),
            None if known.is_empty() => {
                "there is none yet: `ckptfs branch create NAME` makes one".to_owned()
            }
            None => "`ckptfs branch list` lists all".to_owned(),
        };
        hinted(
            Code::UnknownBranch,
            format!("there is no branch {name:?}"),
            hint,
        )
    }

    /// Serves a branch, and keeps it in the table until its mount ends.
    fn serve(&self, branch: Branch, fresh: bool) -> VerbResult<()> {
        let host = self.host()?;
        let (name, engine) = (branch.name.clone(), Arc::clone(&branch.engine));
        self.open.lock().insert(name.clone(), Arc::new(branch));
        host.serve(&name, &engine, fresh).inspect_err(|_| {
            self.ended(&name);
            engine.close();
        })
    }

    /// Notifies watchers that the tree is no longer served.
    pub(super) fn close(&self) {
        self.watchers.end();
    }

    /// Removes a branch from the table after its mount has ended.
    pub fn ended(&self, name: &str) {
        self.open.lock().remove(name);
    }
}

impl Engine {
    /// Returns the branches of this tree.
    pub fn branches(&self) -> &Branches {
        &self.branches
    }
}

/// Operations on the branches of a tree.
pub struct BranchOps<'a> {
    engine: &'a Engine,
}

impl<'a> BranchOps<'a> {
    /// For the branches of the tree that `engine` serves.
    pub fn new(engine: &'a Engine) -> BranchOps<'a> {
        BranchOps { engine }
    }

    fn registry(&self) -> Registry<'a> {
        self.engine.timeline().store().layout.branches()
    }

    /// Returns a mounted branch.
    ///
    /// # Errors
    /// `unknown-branch`, `not-mounted`.
    pub fn mounted(&self, name: &str) -> VerbResult<Arc<Branch>> {
        self.engine.branches.get(name).map_err(|unknown| {
            if !matches!(self.registry().get(name), Ok(Some(_))) {
                return unknown;
            }
            hinted(
                Code::NotMounted,
                format!("the branch {name} is not mounted"),
                format!("ckptfs branch mount {}", word(name)),
            )
        })
    }

    /// Returns the registered entry of a branch, open or not, with its current path.
    fn registered(&self, name: &str) -> VerbResult<BranchEntry> {
        if let Some(entry) = self.registry().get(name).map_err(registry_failed)? {
            return Ok(self.placed(entry));
        }
        Err(self.engine.branches.unknown(name, &self.names()?))
    }

    /// Returns the names of all registered branches.
    fn names(&self) -> VerbResult<Vec<String>> {
        let all = self.registry().all().map_err(registry_failed)?.entries;
        Ok(all.into_iter().map(|entry| entry.name).collect())
    }
}

/// Checks the name of a branch.
///
/// # Errors
/// `bad-name`: the name is invalid.
pub fn check_name(name: &str) -> VerbResult<()> {
    if is_branch_name(name) {
        return Ok(());
    }
    Err(hinted(
        Code::BadName,
        format!("{name:?} cannot be the name of a branch"),
        "a name has 1 to 64 letters, digits, _ . and -, begins with neither . nor -, and does not end in .new",
    ))
}

/// Returns the note of a checkpoint created as the base of a branch.
pub fn base_note(branch: &str) -> String {
    format!("base of the branch {branch}")
}

/// Returns the default path of a branch: next to the tree, `TREE@NAME`.
///
/// # Errors
/// `bad-path`: the tree has no name.
pub fn beside(tree: &Path, name: &str) -> VerbResult<PathBuf> {
    let mut file = tree.file_name().map(OsString::from).ok_or_else(|| {
        error(
            Code::BadPath,
            "the directory of the tree has no name to derive a branch's from",
        )
    })?;
    file.push("@");
    file.push(name);
    Ok(tree.with_file_name(file))
}

/// Returns the error for mounting the directory of a branch alone: it shows nothing without its
/// base.
pub(super) fn served_by_parent(mark: &BranchEntry) -> VerbError {
    hinted(
        Code::IsBranch,
        format!(
            "this directory is the branch {} of another tree, and only the daemon of that tree can mount it",
            mark.name
        ),
        format!(
            "in the parent tree: ckptfs branch mount {}",
            word(&mark.name)
        ),
    )
}

fn internal(message: &str) -> VerbError {
    error(Code::Internal, message)
}
