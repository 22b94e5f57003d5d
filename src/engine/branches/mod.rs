//! Branches: writable second trees that began as a checkpoint of this one, each with an engine of
//! its own in this process (docs/adr/0031-branches-look-through.md).
//!
//! Which branches there are is in the store (`store::layout::branches`): they hold their bases
//! whether or not anything is mounted. Those that are open are in a table here, which a verb of the
//! parent reaches them by. Serving a directory is not for this layer: whoever runs the parent's
//! session does so, as the parent's [`Host`].
//!
//! **Locking.** The table and the names that are being worked on are leaves. While a branch is
//! made, mounted, dropped, merged or updated its name is claimed ([`Branches::claim`]): a second such
//! request is refused at once, and waits for nothing.

mod create;
mod fresh;
mod list;
mod open;
pub mod radar;
mod trash;
pub mod verbs;
mod watchers;

pub(super) use list::changes_since;
pub(super) use trash::{invert, obstacle};

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::api::{VerbError, VerbResult};
use super::bases::registry_failed;
use super::config::{Config, Inherits};
use super::error::{self, Code, hinted};
use super::merge::MergeBase;
use super::seen::Seen;
use super::word::word;
use super::{Engine, error::error};
use crate::history::base::Base;
use crate::store::ids::CheckpointId;
use crate::store::layout::StoreId;
use crate::store::layout::branches::{BranchEntry, Registry, is_branch_name};
use crate::sys::lock::Mutex;

/// A branch that is served.
///
/// Guaranteed as long as its name is claimed ([`Branches::claim`]): it is neither dropped nor
/// mounted anew, and `base` and `since` stay what they are. Its mount may end all the same, by
/// whoever unmounts it: reading it goes on to work, and what would be recorded fails with EIO.
pub struct Branch {
    /// What it is called.
    pub name: String,
    /// Its engine. What the branch has touched is what its history recorded after `since`; an inode
    /// that it has from the base has the parent's slot there, what was born in it has another
    /// (`tree::merge`).
    pub engine: Arc<Engine>,
    /// The checkpoint of the parent that it looks through to. It is held: whoever has the parent's
    /// engine can take its view. What the parent has touched is what its history recorded after it.
    pub base: CheckpointId,
    /// The checkpoint of the branch's own history that is as the base is.
    pub since: CheckpointId,
    /// Where it is mounted.
    pub path: PathBuf,
    /// How many of its paths nobody had merged when it was last looked at.
    unmerged: Mutex<Option<(Looked, u64)>>,
}

/// What a branch and its parent have in common, and what the parent and the branch look like.
type Looked = (MergeBase, Seen, Seen);

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

/// A directory that is to be served as a branch.
pub struct BranchTree {
    /// Its store.
    pub id: StoreId,
    /// Its directory, opened before anything is mounted over it.
    pub root: OwnedFd,
    /// Where that is, and where it is to be mounted.
    pub path: PathBuf,
    /// What it looks through to.
    pub base: Arc<Base>,
    /// Its parent's settings.
    pub inherits: Inherits,
}

/// Whoever serves a tree, and can serve others: the daemon.
pub trait Host: Send + Sync {
    /// The directory of a branch whose mount a worker before us has left, and that is to be served
    /// on; `None`: there is none. **Nothing at the path of such a branch may be asked for**: nobody
    /// would answer.
    ///
    /// # Errors
    /// EMFILE.
    fn left(&self, id: StoreId) -> VerbResult<Option<OwnedFd>>;

    /// Nobody goes on with what is left of a branch: requests fail from now on, and do not wait.
    fn give_up(&self, id: StoreId);

    /// How a branch is to be served: as its parent.
    ///
    /// # Errors
    /// It cannot be made ready for.
    fn config(&self, tree: BranchTree) -> VerbResult<Config>;

    /// Where a branch of this name is made that nobody says a place for: beside the tree.
    ///
    /// # Errors
    /// `bad-path`: the tree has no name.
    fn beside(&self, name: &str) -> VerbResult<PathBuf>;

    /// Removes a dead mount of ours at `path`, and waits for the branch of this name if it was
    /// unmounted or is being closed. Does nothing to a branch that is mounted.
    ///
    /// # Errors
    /// It cannot be taken away, or does not end.
    fn clear(&self, name: &str, path: &Path) -> VerbResult<()>;

    /// Mounts a branch, or goes on with the mount that is left, and answers for it, with a control
    /// socket in its store; it serves when this returns. `fresh`: its directory was made a moment ago, so nobody has anything of it. At the
    /// end of its mount [`Branches::ended`] of the parent is called.
    ///
    /// # Errors
    /// It cannot be mounted; nothing is left of the attempt, and the engine is not closed.
    fn serve(&self, name: &str, engine: &Arc<Engine>, fresh: bool) -> VerbResult<()>;

    /// Unmounts a branch, and closes its engine: when this returns nobody has its store, unless
    /// that was to come later. One that is not served has ended.
    ///
    /// # Errors
    /// `branch-in-use`: it is still served.
    fn end(&self, name: &str, how: Ending) -> VerbResult<()>;

    /// Unmounts a branch, and closes its engine later, before this process ends: when this returns
    /// nobody has anything of the branch, and another can have its name.
    ///
    /// # Errors
    /// As [`Host::end`].
    fn leave(&self, name: &str, how: Ending) -> VerbResult<()>;

    /// Waits for the engines that [`Host::leave`] has left, as long as that takes.
    fn wait_closed(&self);
}

/// How the mount of a branch ends that somebody may have something of open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It does not.
    Unused,
    /// It is out of sight at once, and served until the last file is closed.
    Lazy,
    /// At once: every call fails with ENOTCONN.
    Forced,
}

/// The branches of a tree.
#[derive(Default)]
pub struct Branches {
    /// What this tree is itself, if it is a branch.
    own: Option<BranchEntry>,
    /// Where its parent is mounted, if it is served.
    parent: OnceLock<PathBuf>,
    host: OnceLock<Arc<dyn Host>>,
    open: Mutex<BTreeMap<String, Arc<Branch>>>,
    claimed: Mutex<BTreeSet<String>>,
    watchers: watchers::Watchers,
}

/// A branch that somebody works on: nobody else makes, mounts, drops or merges it until this is
/// dropped.
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

    /// Sets who serves branches. Before this none can be made or mounted.
    pub fn set_host(&self, host: Arc<dyn Host>) {
        let _ = self.host.set(host);
    }

    /// Sets where the tree is mounted that this one is a branch of.
    pub fn set_parent(&self, at: &Path) {
        let _ = self.parent.set(at.to_owned());
    }

    /// The store of this tree, if it is a branch itself.
    pub fn own_id(&self) -> Option<StoreId> {
        self.own.as_ref().map(|own| own.id)
    }

    pub(super) fn host(&self) -> VerbResult<&Arc<dyn Host>> {
        self.host
            .get()
            .ok_or_else(|| error::not_mounted("branches are served where their parent is mounted"))
    }

    /// The open branch of this name.
    ///
    /// # Errors
    /// `unknown-branch`: none of this name is mounted.
    pub fn get(&self, name: &str) -> VerbResult<Arc<Branch>> {
        let open = self.open.lock();
        if let Some(branch) = open.get(name) {
            return Ok(Arc::clone(branch));
        }
        let known: Vec<String> = open.keys().cloned().collect();
        Err(self.unknown(name, &known))
    }

    /// All that are open, by name.
    pub fn all(&self) -> Vec<Arc<Branch>> {
        self.open.lock().values().map(Arc::clone).collect()
    }

    /// Claims a branch, or the name of one that is to be made.
    ///
    /// # Errors
    /// `busy`: somebody else works on it. `bad-name`.
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

    /// There is no branch of this name among those that are known.
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

    /// Serves a branch, and has it in the table for as long as its mount is there.
    fn serve(&self, branch: Branch, fresh: bool) -> VerbResult<()> {
        let host = self.host()?;
        let (name, engine) = (branch.name.clone(), Arc::clone(&branch.engine));
        self.open.lock().insert(name.clone(), Arc::new(branch));
        host.serve(&name, &engine, fresh).inspect_err(|_| {
            self.ended(&name);
            engine.close();
        })
    }

    /// The tree is served no longer: who watches it is told.
    pub(super) fn close(&self) {
        self.watchers.end();
    }

    /// The mount of a branch is gone: it is not open any more.
    pub fn ended(&self, name: &str) {
        self.open.lock().remove(name);
    }
}

impl Engine {
    /// The branches of this tree.
    pub fn branches(&self) -> &Branches {
        &self.branches
    }
}

/// What is done to the branches of a tree with its engine.
pub struct Brancher<'a> {
    engine: &'a Engine,
}

impl<'a> Brancher<'a> {
    /// For the branches of the tree that `engine` serves.
    pub fn new(engine: &'a Engine) -> Brancher<'a> {
        Brancher { engine }
    }

    fn registry(&self) -> Registry<'a> {
        self.engine.timeline().store().layout.branches()
    }

    /// A branch that is mounted.
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

    /// The registered entry of a branch, open or not, with its present path.
    fn registered(&self, name: &str) -> VerbResult<BranchEntry> {
        if let Some(entry) = self.registry().get(name).map_err(registry_failed)? {
            return Ok(self.placed(entry));
        }
        Err(self.engine.branches.unknown(name, &self.names()?))
    }

    /// The names of the branches that are registered.
    fn names(&self) -> VerbResult<Vec<String>> {
        let all = self.registry().all().map_err(registry_failed)?.entries;
        Ok(all.into_iter().map(|entry| entry.name).collect())
    }
}

/// # Errors
/// `bad-name`: no branch can be called so.
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

/// The note of a checkpoint that is made for a branch to begin as.
pub fn base_note(branch: &str) -> String {
    format!("base of the branch {branch}")
}

/// Where a branch of a tree is made that nobody says a place for: beside it, `TREE@NAME`.
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

/// This directory is a branch's, and shows nothing without what it looks through to.
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
