//! The plan of a restore: which names of which directories lead to what, now and then. `planner` makes it, `apply` carries it out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::Engine;
use super::super::api::{Times, TreePath};
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::state::State;
use crate::history::view::View;
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::store::record::{Child, Place};
use crate::sys::{Errno, Kind, SysResult};

/// What is to be done for an inode that is no directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The live inode is it, unchanged.
    Same,
    /// The live inode is it, but for attributes.
    Attributes,
    /// The live inode is it, but has other content and other names that are not all known: it is rewritten.
    InPlace,
    /// It must be made again.
    New,
}

/// What is to be restored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which<'a> {
    /// These paths and what is below them; empty: everything.
    Below(&'a [Vec<u8>]),
    /// These paths alone. Whatever else goes or comes with them is among them.
    Only(&'a [Vec<u8>]),
}

/// One name of a directory.
#[derive(Debug)]
pub(super) struct NamePlan {
    pub(super) name: Name,
    /// What it led to at the checkpoint.
    pub(super) want: Option<(Child, Arc<Trail>)>,
    /// What it leads to now.
    pub(super) have: Option<Child>,
}

/// One directory in which names differ or may differ.
#[derive(Debug)]
pub(super) struct DirPlan {
    /// The directory at the checkpoint; for a directory on the way to a restored path, the live one.
    pub(super) want: Arc<Trail>,
    /// It exists in the live tree, and is this one.
    pub(super) live: Option<Arc<Trail>>,
    pub(super) names: Vec<NamePlan>,
    /// It gets back its attributes.
    pub(super) with_attrs: bool,
}

/// See the module.
pub(super) struct Plan {
    pub(super) target: CheckpointId,
    /// All of the tree is restored, and nothing of it stays as it is.
    pub(super) whole: bool,
    /// Parents before children.
    pub(super) dirs: Vec<DirPlan>,
    /// What becomes of each wanted inode that is no directory.
    pub(super) contents: HashMap<Slot, Content>,
    /// Those of them that are wanted at more than one name.
    pub(super) several: HashSet<Slot>,
    /// Wanted directories that are in the live tree, here or elsewhere.
    pub(super) alive_dirs: HashSet<Slot>,
    /// Where a wanted inode that is in the live tree was found when the plan was made: history may know only a name that it has lost.
    pub(super) found: HashMap<Slot, Place>,
    /// Files get the times that they had; else what is changed has the time of the restore.
    pub(super) times: Times,
    /// Paths of which it cannot be told what they were: they stay as they are.
    pub(super) unknown: BTreeSet<Vec<u8>>,
    /// Of these, inodes that are gone and cannot be made again.
    pub(super) lost: HashSet<Slot>,
}

impl Plan {
    /// The live inode with the wanted number is the wanted one.
    pub(super) fn keeps(&self, want: Child) -> bool {
        match want.kind {
            Kind::Dir => self.alive_dirs.contains(&want.slot),
            _ => self.contents.get(&want.slot).is_some_and(|content| *content != Content::New),
        }
    }

    /// Everything that no list of changes tells is so already: which names are one file, and the times of directories.
    pub(super) fn is_so(&self, engine: &Engine) -> SysResult<bool> {
        let (then, now) = (engine.states.view(State::At(self.target)), engine.states.view(State::Live));
        let (mut stands_for, mut stood_for) = (HashMap::new(), HashMap::new());
        for dir in &self.dirs {
            let Some((_, here)) = now.walk(&dir.want.path())?.filter(|(child, _)| child.kind == Kind::Dir) else { return Ok(false) };
            if dir.with_attrs && !has_attrs((&then, &dir.want), (&now, &here), self.times)? {
                return Ok(false);
            }
            for name in &dir.names {
                let Some((want, _)) = name.want.as_ref().filter(|(want, _)| want.kind != Kind::Dir) else { continue };
                let Some(have) = now.child(&here, &name.name)? else { return Ok(false) };
                let one =
                    *stands_for.entry(want.slot).or_insert(have.slot) == have.slot && *stood_for.entry(have.slot).or_insert(want.slot) == want.slot;
                if !one {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Paths that come back as files of their own, though at the checkpoint they were one with others that are not restored.
    pub(super) fn split(&self, engine: &Engine) -> Vec<TreePath> {
        let view = engine.states.view(State::At(self.target));
        let wanted = || self.dirs.iter().flat_map(|dir| dir.names.iter().filter_map(move |name| Some((dir, name, name.want.as_ref()?))));
        let mut names: HashMap<Slot, u64> = HashMap::new();
        wanted().for_each(|(_, _, (child, _))| *names.entry(child.slot).or_default() += 1);
        let is_split = |child: &Child, trail: &Arc<Trail>| {
            let known = names.get(&child.slot).copied().unwrap_or(0);
            child.kind == Kind::File
                && self.contents.get(&child.slot) == Some(&Content::New)
                && view.attr(trail).is_ok_and(|attr| u64::from(attr.stat.nlink) > known)
        };
        let split = wanted().filter(|(_, _, (child, trail))| is_split(child, trail));
        split.map(|(dir, name, _)| TreePath(join(&dir.want.path(), &name.name))).collect()
    }

    /// Everything that is wanted, with its directory, its name, the way to it, and what is there.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&DirPlan, &Name, Child, &Arc<Trail>, Option<Child>)> {
        self.dirs.iter().flat_map(|dir| {
            dir.names.iter().filter_map(move |name| name.want.as_ref().map(|(child, trail)| (dir, &name.name, *child, trail, name.have)))
        })
    }

    /// Every name of the live tree that is planned, with what it is to lead to.
    pub(super) fn leads(&self) -> Leads<'_> {
        let mut leads = Leads::new();
        for dir in &self.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                leads.entry((live.slot, &name.name)).or_default().push(name.want.as_ref().map(|(child, _)| child.slot));
            }
        }
        leads
    }
}

/// Directory and name -> what it is to lead to, `None` being nothing. That a name is planned twice is possible, and rare.
pub(super) type Leads<'p> = HashMap<(Slot, &'p Name), Vec<Option<Slot>>>;

/// An inode has the attributes and extended attributes that it had, or another one.
pub(super) fn has_attrs((before, old): (&View<'_>, &Arc<Trail>), (after, new): (&View<'_>, &Arc<Trail>), times: Times) -> SysResult<bool> {
    let (then, now) = (before.attr(old)?, after.attr(new)?);
    if then.target != now.target {
        return Err(Errno::EIO);
    }
    let (a, b) = (&then.stat, &now.stat);
    let same = a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && (times == Times::Now || a.mtime == b.mtime);
    Ok(same && before.xattrs(old)? == after.xattrs(new)?)
}
