//! A plan: which names of which directories lead to what, and are to lead to what, and what becomes
//! of the inodes that are wanted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::history::present::Trail;
use crate::store::ids::{Name, Slot};
use crate::store::record::{Child, Place};
use crate::sys::Kind;

/// What is to be done for an inode that is no directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The inode that is there is it, unchanged.
    Same,
    /// The inode that is there is it, but for attributes.
    Attributes,
    /// The inode that is there is it, but has other content and other names that are not all known:
    /// it is rewritten.
    InPlace,
    /// It must be made again.
    New,
}

/// One name of a directory.
#[derive(Debug)]
pub struct NamePlan {
    /// The name.
    pub name: Name,
    /// What it is to lead to, with the way to that in the state that is wanted.
    pub want: Option<(Child, Arc<Trail>)>,
    /// What it leads to.
    pub have: Option<Child>,
}

/// One directory in which names differ or may differ.
#[derive(Debug)]
pub struct DirPlan {
    /// The directory in the state that is wanted; where that has none, the one that is there.
    pub want: Arc<Trail>,
    /// It is there, and is this one.
    pub live: Option<Arc<Trail>>,
    /// Those of its names that differ or may differ.
    pub names: Vec<NamePlan>,
    /// It gets its attributes.
    pub with_attrs: bool,
}

/// What stays though the directory that it is in does not. It is known by this name alone, for its
/// number can be that of something that is wanted.
#[derive(Debug)]
pub struct Kept {
    /// Which of [`Plan::dirs`] it comes to, ...
    pub dir: usize,
    /// ... under which name.
    pub name: Name,
    /// What it is.
    pub child: Child,
    /// Where it is, beside the tree or in it.
    pub from: Place,
    /// Where it is put aside meanwhile.
    pub aside: Place,
}

/// What becomes of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there, and leads to the inode that is wanted, for which this is to be done; of a
    /// directory nothing.
    Stays(Content),
    /// It comes.
    Comes(Child),
    /// It goes, with everything below.
    Goes(Child),
    /// It leads to an inode that is no directory, and is to lead to another one.
    Replaced(Child),
    /// What it leads to goes, with everything below, and something else comes: one of both is a
    /// directory, or both are.
    Exchanged(Child, Child),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Plan {
    /// Parents before children.
    pub dirs: Vec<DirPlan>,
    /// What becomes of each wanted inode that is no directory.
    pub contents: HashMap<Slot, Content>,
    /// Those of them that are wanted at more than one name.
    pub several: HashSet<Slot>,
    /// Wanted directories that are there, here or elsewhere.
    pub alive_dirs: HashSet<Slot>,
    /// Where a wanted inode was found that is there, when the plan was made.
    pub found: HashMap<Slot, Place>,
    /// What is in directories that go, and stays.
    pub kept: Vec<Kept>,
}

/// Directory and name -> what it is to lead to, `None` being nothing. That a name is planned twice
/// is possible, and rare.
pub type Leads<'p> = HashMap<(Slot, &'p Name), Vec<Option<Slot>>>;

impl Plan {
    /// The inode that is there and has the wanted number is the wanted one.
    pub fn keeps(&self, want: Child) -> bool {
        match want.kind {
            Kind::Dir => self.alive_dirs.contains(&want.slot),
            _ => self
                .contents
                .get(&want.slot)
                .is_some_and(|content| *content != Content::New),
        }
    }

    /// What becomes of a name; `None`: nothing is there, and nothing comes.
    pub fn change(&self, name: &NamePlan) -> Option<Change> {
        let want = name.want.as_ref().map(|(child, _)| *child);
        Some(match (name.have, want) {
            (None, None) => return None,
            (None, Some(want)) => Change::Comes(want),
            (Some(have), None) => Change::Goes(have),
            (Some(have), Some(want)) if have == want && self.keeps(want) => Change::Stays(
                self.contents
                    .get(&want.slot)
                    .copied()
                    .unwrap_or(Content::Same),
            ),
            (Some(have), Some(want)) if have.kind != Kind::Dir && want.kind != Kind::Dir => {
                Change::Replaced(want)
            }
            (Some(have), Some(want)) => Change::Exchanged(have, want),
        })
    }

    /// Everything that is wanted, with its directory, its name, the way to it, and what is there.
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

    /// Every name that is there and planned, with what it is to lead to.
    pub fn leads(&self) -> Leads<'_> {
        let mut leads = Leads::new();
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
