//! A plan: for each directory, the current and wanted inodes of its names; for each wanted inode,
//! the action on it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::history::present::Trail;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::Kind;

/// The action on an inode that is not a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeAction {
    /// The existing inode is correct.
    Same,
    /// The existing inode is correct except for its attributes.
    Attributes,
    /// The existing inode has other content, and other names of which some may be unknown: it is
    /// rewritten in place.
    InPlace,
    /// It must be recreated.
    New,
}

/// One name of a directory.
#[derive(Debug)]
pub struct NamePlan {
    /// The name.
    pub name: Name,
    /// The wanted inode, with its trail in the wanted state.
    pub want: Option<(Child, Arc<Trail>)>,
    /// The current inode.
    pub have: Option<Child>,
}

/// A directory with names that differ or may differ.
#[derive(Debug)]
pub struct DirPlan {
    /// The directory in the wanted state, or the existing one if the wanted state lacks it.
    pub want: Arc<Trail>,
    /// The existing directory, if it stays.
    pub live: Option<Arc<Trail>>,
    /// Its names that differ or may differ.
    pub names: Vec<NamePlan>,
    /// Its attributes must be set.
    pub with_attrs: bool,
}

/// A rescued path: it stays although its directory is replaced. It is identified by name only,
/// because its inode number may equal that of a wanted inode.
#[derive(Debug)]
pub struct RescuedPath {
    /// Index of its new directory in [`TreePlan::dirs`].
    pub dir: usize,
    /// Its name in that directory.
    pub name: Name,
    /// Its inode.
    pub child: Child,
    /// Its current place, in the tree or in the staging directory.
    pub from: Place,
    /// Its place in the staging directory.
    pub aside: Place,
}

/// The change of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// It already leads to the wanted inode, which needs this action; a directory needs none here.
    Stays(InodeAction),
    /// It is created.
    Comes(Child),
    /// It is removed with everything below it.
    Goes(Child),
    /// Its inode, not a directory, is replaced by another that is not a directory.
    Replaced(Child),
    /// Its inode is removed with everything below it and replaced; at least one of the two is a
    /// directory.
    Exchanged(Child, Child),
}

/// See the module.
#[derive(Debug, Default)]
pub struct TreePlan {
    /// Directories, parents before children.
    pub dirs: Vec<DirPlan>,
    /// The action on each wanted inode that is not a directory.
    pub contents: HashMap<Slot, InodeAction>,
    /// Those of them that are wanted at more than one name.
    pub several: HashSet<Slot>,
    /// Wanted directories that exist, at any place.
    pub alive_dirs: HashSet<Slot>,
    /// The places of existing wanted inodes at planning time.
    pub found: HashMap<Slot, Place>,
    /// The rescued paths.
    pub kept: Vec<RescuedPath>,
}

/// Directory and name -> the wanted inodes, `None` for no inode. In rare cases a name is planned
/// twice.
pub type WantedByName<'p> = HashMap<(Slot, &'p Name), Vec<Option<Slot>>>;

impl TreePlan {
    /// Reports whether the existing inode with the wanted number is the wanted one.
    pub fn keeps(&self, want: Child) -> bool {
        match want.kind {
            Kind::Dir => self.alive_dirs.contains(&want.slot),
            _ => self
                .contents
                .get(&want.slot)
                .is_some_and(|content| *content != InodeAction::New),
        }
    }

    /// Returns the change of a name, or `None` if it neither exists nor is wanted.
    pub fn change(&self, name: &NamePlan) -> Option<NameChange> {
        let want = name.want.as_ref().map(|(child, _)| *child);
        Some(match (name.have, want) {
            (None, None) => return None,
            (None, Some(want)) => NameChange::Comes(want),
            (Some(have), None) => NameChange::Goes(have),
            (Some(have), Some(want)) if have == want && self.keeps(want) => NameChange::Stays(
                self.contents
                    .get(&want.slot)
                    .copied()
                    .unwrap_or(InodeAction::Same),
            ),
            (Some(have), Some(want)) if have.kind != Kind::Dir && want.kind != Kind::Dir => {
                NameChange::Replaced(want)
            }
            (Some(have), Some(want)) => NameChange::Exchanged(have, want),
        })
    }

    /// Returns all wanted entries: directory, name, inode, trail, and current inode.
    pub fn wanted(
        &self,
    ) -> impl Iterator<Item = (&DirPlan, &Name, Child, &Arc<Trail>, Option<Child>)> {
        self.dirs.iter().flat_map(|dir| {
            dir.names.iter().filter_map(move |name| {
                name.want
                    .as_ref()
                    .map(|(child, trail)| (dir, &name.name, *child, trail, name.have))
            })
        })
    }

    /// Returns every planned name of an existing directory, with its wanted inodes.
    pub fn leads(&self) -> WantedByName<'_> {
        let mut leads = WantedByName::new();
        for dir in &self.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                leads
                    .entry((live.slot, &name.name))
                    .or_default()
                    .push(name.want.as_ref().map(|(child, _)| child.slot));
            }
        }
        leads
    }
}
