//! `.branches` in the root directory: the branches, for programs that have nothing but the tree,
//! as in a container. mkdir(2) there makes one, beside the tree; rmdir(2) drops it.
//!
//! A branch is a filesystem of its own (its numbers are those of this one), so it is not shown
//! below this directory. `.branches/NAME` has two links: `tree` leads to where the branch is
//! mounted, for whoever sees that path; `base` to the checkpoint that it began as.
//!
//! A tree may have a `.branches` of its own in its root directory: then that is what is there, and
//! this is not. The kernel remembers no name and no attributes of what is here, and the number of a
//! link comes from where it leads.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::create::create;
use super::open::open_dir;
use super::trash::drop_branch;
use super::verbs::{CreateBranch, DropBranch};
use super::{Branch, check_name};
use crate::engine::Engine;
use crate::engine::api::{VerbError, VerbResult};
use crate::engine::bases::registry_failed;
use crate::engine::control::{
    BRANCHES, BRANCHES_NAME, CONTROL, SNAPDIR, ZFS, ZFS_LINK, ZFS_LINK_NAME,
};
use crate::engine::error::{self, Code};
use crate::engine::request::{Caller, Entry, Listed, Looked, Names, NodeId};
use crate::engine::requester::Requester;
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::store::layout::branches::{BRANCHES_MAX, BranchEntry, parent_and_name};
use crate::store::record::Reason;
use crate::sys::{self, Errno, Kind, Stat, SysResult};

/// Set in the number of what is below `.branches`; no other control node has this and neither of
/// the two bits above.
const BELOW: u64 = 1 << 58;
/// The bits of such a number that tell the branch: 54 of a hash.
const HASH: u64 = (1 << 56) - 4;
/// Names below `.branches/NAME`, by the last two bits of their numbers.
const LINKS: [(&[u8], u64); 2] = [(b"tree", 1), (b"base", 2)];
/// Offsets in listings: of the two dots; what comes after them has its hash.
const AFTER_DOTS: u64 = 2;

/// What `.branches` has to tell of a branch.
struct Shown {
    name: String,
    path: PathBuf,
    base: CheckpointId,
}

impl Shown {
    fn of(entry: BranchEntry) -> Shown {
        Shown {
            name: entry.name,
            path: entry.path,
            base: entry.base,
        }
    }

    fn of_open(branch: &Branch) -> Shown {
        Shown {
            name: branch.name.clone(),
            path: branch.path.clone(),
            base: branch.base,
        }
    }

    fn node(&self) -> NodeId {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&self.base.0.to_le_bytes())
            .update(self.name.as_bytes())
            .update(b"/")
            .update(self.path.as_os_str().as_bytes());
        let hash = hasher.finalize();
        let mut low = [0_u8; 8];
        low.copy_from_slice(hash.as_bytes().get(..8).unwrap_or(&[0; 8]));
        // Never the offset of a dot.
        let bits = (u64::from_le_bytes(low) & HASH).max(4);
        NodeId(CONTROL | BELOW | bits)
    }

    fn link(&self, which: u64, snapdir: &[u8]) -> Option<Vec<u8>> {
        match which {
            1 => Some(self.path.as_os_str().as_bytes().to_vec()),
            2 => {
                let above: &[u8] = b"../../";
                let number = self.base.to_string();
                Some([above, snapdir, b"/", number.as_bytes()].concat())
            }
            _ => None,
        }
    }
}

fn listed(name: &[u8], node: NodeId, kind: Kind, next: u64) -> Listed {
    Listed {
        name: name.to_vec(),
        node,
        kind,
        slot: node.0,
        next,
    }
}

/// All of a directory that has few names; a reader goes on at its offset.
fn names(dots: (NodeId, NodeId), mut rest: Vec<Listed>, offset: u64) -> Names {
    rest.sort_by_key(|listed| listed.next);
    let dots = [
        listed(b".", dots.0, Kind::Dir, 1),
        listed(b"..", dots.1, Kind::Dir, AFTER_DOTS),
    ];
    let all = dots.into_iter().chain(rest);
    Names {
        names: all.filter(|listed| listed.next > offset).collect(),
        last: true,
    }
}

/// A failure as the kernel is told of it; the log has the words.
fn told(what: &str, name: &str, error: VerbError) -> Errno {
    let errno = error.code.errno();
    tracing::info!(name, what, error = error.message, %errno, "refused in .branches");
    errno
}

/// `.branches` of a tree, by its engine.
pub(in crate::engine) struct BranchDir<'a> {
    engine: &'a Engine,
}

impl<'a> BranchDir<'a> {
    pub(in crate::engine) fn of(engine: &'a Engine) -> BranchDir<'a> {
        BranchDir { engine }
    }

    /// Whether a name in the root directory leads to `.branches`.
    pub(in crate::engine) fn is_its_name(&self, parent: NodeId, name: &[u8]) -> bool {
        parent == NodeId(Slot::ROOT.0) && name == BRANCHES_NAME && !self.is_hidden()
    }

    /// Whether the tree has an entry of this name itself. If that is not known it has.
    pub(in crate::engine) fn is_hidden(&self) -> bool {
        let inodes = &self.engine.live.inodes;
        let there = inodes.kind_at(Slot::ROOT, &Name::new(BRANCHES_NAME));
        there != Err(Errno::ENOENT)
    }

    fn entry(&self, node: NodeId) -> SysResult<Looked> {
        Ok(Looked::Found(Entry {
            node,
            generation: 0,
            stat: self.stat(node)?,
            ttl: Duration::ZERO,
        }))
    }

    /// What `.branches` leads to from the root directory.
    pub(in crate::engine) fn top(&self) -> SysResult<Looked> {
        self.entry(BRANCHES)
    }

    /// A name in a control directory.
    pub(in crate::engine) fn lookup(&self, dir: NodeId, name: &[u8]) -> SysResult<Looked> {
        if dir != BRANCHES && dir.0 & BELOW == 0 {
            return self.engine.snapdir.lookup_control(dir, name);
        }
        let node = if dir == BRANCHES {
            self.shown_named(name)?.map(|shown| shown.node())
        } else {
            self.shown(dir)?;
            let link = LINKS.iter().find(|(known, _)| *known == name);
            link.map(|(_, which)| NodeId(dir.0 | which))
        };
        match node {
            Some(node) => self.entry(node),
            None => Ok(Looked::Absent(Duration::ZERO)),
        }
    }

    fn shown_named(&self, name: &[u8]) -> SysResult<Option<Shown>> {
        let Ok(name) = std::str::from_utf8(name) else {
            return Ok(None);
        };
        let registry = self.engine.timeline().store().layout.branches();
        let entry = registry.get(name).map_err(|cause| cause.errno())?;
        Ok(entry.filter(|entry| entry.made).map(Shown::of))
    }

    /// The branch that a number below `.branches` is of.
    ///
    /// # Errors
    /// ESTALE: it is gone.
    fn shown(&self, node: NodeId) -> SysResult<Shown> {
        let is_it = |shown: &Shown| shown.node().0 == node.0 & !3;
        let mut open = self.engine.branches.all().into_iter();
        if let Some(shown) = open.find_map(|one| Some(Shown::of_open(&one)).filter(is_it)) {
            return Ok(shown);
        }
        let mut all = self.all_shown()?.into_iter();
        all.find(is_it).ok_or(Errno::ESTALE)
    }

    fn all_shown(&self) -> SysResult<Vec<Shown>> {
        let registry = self.engine.timeline().store().layout.branches();
        let all = registry.all().map_err(|cause| cause.errno())?.entries;
        let made = all.into_iter().filter(|entry| entry.made);
        Ok(made.map(Shown::of).collect())
    }

    /// Attributes of a control node. Who may make checkpoints in `.snapshots` may make branches.
    pub(in crate::engine) fn stat(&self, node: NodeId) -> SysResult<Stat> {
        let own = node == BRANCHES || node.0 & BELOW != 0;
        if !own {
            return self.engine.snapdir.control_stat(node);
        }
        let dir = Stat {
            ino: node.0,
            ..self.engine.snapdir.snapdir_stat()?
        };
        Ok(match self.target(node)? {
            None if node == BRANCHES => Stat { nlink: 2, ..dir },
            // What is in there is nobody's to change.
            None => Stat {
                mode: dir.mode & 0o555,
                nlink: 2,
                ..dir
            },
            Some(target) => Stat {
                kind: Kind::Symlink,
                mode: 0o777,
                nlink: 1,
                size: target.len() as u64,
                ..dir
            },
        })
    }

    /// Where a link below `.branches` leads; `None` of a directory.
    fn target(&self, node: NodeId) -> SysResult<Option<Vec<u8>>> {
        if node == BRANCHES {
            return Ok(None);
        }
        let snapdir = self.engine.serving.snapdir_name();
        Ok(self.shown(node)?.link(node.0 & 3, snapdir))
    }

    /// Target of a link of ours.
    pub(in crate::engine) fn link(&self, node: NodeId) -> SysResult<Vec<u8>> {
        if node == BRANCHES || node.0 & BELOW == 0 {
            return self.engine.snapdir.control_link(node);
        }
        self.target(node)?.ok_or(Errno::EINVAL)
    }

    /// Names of a control directory.
    pub(in crate::engine) fn list(&self, node: NodeId, offset: u64) -> SysResult<Names> {
        if node == SNAPDIR {
            return Ok(self.engine.snapdir.list_control(offset));
        }
        if node == ZFS {
            let link = listed(ZFS_LINK_NAME, ZFS_LINK, Kind::Symlink, AFTER_DOTS + 1);
            let above = NodeId(Slot::ROOT.0);
            return Ok(names((ZFS, above), vec![link], offset));
        }
        if node == BRANCHES {
            let rest = self.all_shown()?.into_iter().map(|shown| {
                let node = shown.node();
                listed(shown.name.as_bytes(), node, Kind::Dir, node.0 & HASH)
            });
            let above = NodeId(Slot::ROOT.0);
            return Ok(names((BRANCHES, above), rest.collect(), offset));
        }
        if node.0 & BELOW == 0 || node.0 & 3 != 0 {
            return Err(Errno::ENOTDIR);
        }
        self.shown(node)?;
        let rest = LINKS.iter().map(|(name, which)| {
            let link = NodeId(node.0 | which);
            listed(name, link, Kind::Symlink, AFTER_DOTS + which)
        });
        Ok(names((node, BRANCHES), rest.collect(), offset))
    }

    /// mkdir(2) in `.branches`: a branch that begins as the tree is now, beside it. Whoever may not
    /// have the daemon do it with a verb makes as many as checkpoints with mkdir(2).
    pub(in crate::engine) fn mkdir(&self, caller: Caller, name: &[u8]) -> SysResult<Entry> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        check_name(name).map_err(|error| error.code.errno())?;
        // A worker that died may have made it.
        if !caller.again || self.shown_named(name.as_bytes())?.is_none() {
            let mut one = self.engine.asked_by_kernel.try_lock().ok_or(Errno::EBUSY)?;
            self.engine.collector.check_quota(caller, &mut one)?;
            self.make_asked(caller, name)
                .map_err(|error| told("mkdir", name, error))?;
        }
        match self.lookup(BRANCHES, name.as_bytes())? {
            Looked::Found(entry) => Ok(entry),
            Looked::Absent(_) => Err(Errno::EIO),
        }
    }

    fn make_asked(&self, caller: Caller, name: &str) -> VerbResult<()> {
        let registry = self.engine.timeline().store().layout.branches();
        let dropped = registry.dropped().map_err(registry_failed)?;
        if dropped.entries.len() >= BRANCHES_MAX {
            // What was dropped holds its base; it goes when somebody says so.
            return Err(error::hinted(
                Code::TooManyBranches,
                format!("{BRANCHES_MAX} branches are in the trash"),
                "free them: ckptfs gc",
            ));
        }
        let path = self.engine.branches.host()?.beside(name)?;
        let made = NewDir::at(&path)?;
        let asked = CreateBranch {
            name: name.to_owned(),
            at: None,
            path: path.clone(),
            git: false,
            dry_run: false,
        };
        // Rules of retention count what mkdir(2) makes by itself.
        let reason = Reason::Directory {
            name: format!(".branches/{name}"),
        };
        let requester = Requester::from(caller.actor());
        let created = create(self.engine, &requester, &asked, reason);
        self.snapshot_was_made();
        created.map(drop).inspect_err(|_| made.take_back())
    }

    /// rmdir(2) in `.branches`: the branch goes to the trash, as by `branch drop`.
    pub(in crate::engine) fn rmdir(&self, caller: Caller, name: &[u8]) -> SysResult<()> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let Some(shown) = self.shown_named(name.as_bytes())? else {
            return Err(Errno::ENOENT);
        };
        // What somebody has put elsewhere than mkdir(2) does is theirs: a volume, for one.
        let open = self.engine.branches.get(name);
        let at = open.map_or(shown.path, |branch| branch.engine.place().backing());
        if at
            != self
                .engine
                .branches
                .host()
                .and_then(|host| host.beside(name))
                .map_err(|error| error.code.errno())?
        {
            return Err(Errno::EPERM);
        }
        let asked = DropBranch {
            name: name.to_owned(),
            force: false,
            dry_run: false,
        };
        drop_branch(self.engine, &caller.actor(), &asked)
            .map(drop)
            .map_err(|error| told("rmdir", name, error))
    }

    /// Other branches are there than before: has the kernel forget its listing of `.branches`. Not
    /// for threads that serve requests, and no lock may be held, as of `Snapdir::snapdir_changed`.
    pub(in crate::engine) fn changed(&self) {
        if let Some(caches) = self.engine.serving.caches.get() {
            // For an entry, whichever, the kernel waits for listings that are under way.
            caches.forget_entry(BRANCHES, b"-");
            caches.forget_data(BRANCHES);
        }
    }

    /// The kernel knows by itself that `.branches` has changed, but not that `.snapshots` has.
    fn snapshot_was_made(&self) {
        let snapdir = Arc::clone(&self.engine.snapdir);
        let forget = move || snapdir.snapdir_changed();
        if let Err(error) = std::thread::Builder::new()
            .name("forget-view".into())
            .spawn(forget)
        {
            tracing::warn!(%error, "the kernel may go on with its listing of .snapshots");
        }
    }
}

/// The directory that a branch is made in, which was not there before.
struct NewDir<'a> {
    path: &'a Path,
}

impl NewDir<'_> {
    fn at(path: &Path) -> VerbResult<NewDir<'_>> {
        let (parent, name) =
            parent_and_name(path).ok_or_else(|| super::internal("a branch is at the root"))?;
        let made = sys::mkdir_at(open_dir(parent)?, name, 0o700);
        made.map_err(|errno| match errno {
            Errno::EEXIST => error::error(
                Code::NotEmpty,
                format!("something else is at {} now", path.display()),
            ),
            errno => error::failed(&format!("{} cannot be made", path.display()))(errno),
        })?;
        Ok(NewDir { path })
    }

    /// Nothing came of it.
    fn take_back(&self) {
        if let Some((parent, name)) = parent_and_name(self.path)
            && let Ok(parent) = open_dir(parent)
        {
            // The branch may have taken it away with itself.
            let _ = sys::rmdir_at(parent, name);
        }
    }
}
