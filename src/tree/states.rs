//! How a plan is made: a walk through the wanted state, along what may differ.

use std::sync::Arc;

use super::plan::{Content, DirPlan, NamePlan, Plan};
use crate::history::present::Trail;
use crate::store::ids::Slot;
use crate::store::record::{Child, Place};
use crate::sys::{Kind, SysResult};

/// What is wanted at a name, the way to it, and whether the name leads to it already.
pub type WantedStep = (Child, Arc<Trail>, bool);

/// Two states of a tree: as it is, and as it is to be. What is known of where they differ decides
/// how much of them is looked at.
pub trait States {
    /// The plan that is being made.
    fn plan(&mut self) -> &mut Plan;

    /// The names of a wanted directory that may differ; `live`: it is there, and was reached by
    /// this way. Without that, all of them.
    ///
    /// # Errors
    /// Those of reading both.
    fn names(&mut self, want: &Arc<Trail>, live: Option<&Arc<Trail>>) -> SysResult<Vec<NamePlan>>;

    /// Where a wanted inode is now, from where it may be taken; `here`: it is where it is wanted.
    ///
    /// # Errors
    /// Those of looking for it.
    fn find(&mut self, child: Child, want: &Arc<Trail>, here: bool) -> SysResult<Option<Place>>;

    /// The walk goes on below a wanted directory. Each is entered once: forged, one can be in many
    /// places.
    ///
    /// # Errors
    /// EIO: it is, and nothing can be planned.
    fn enters(&mut self, want: &Arc<Trail>, alive: bool) -> SysResult<bool>;

    /// What is to be done for an inode that is no directory.
    ///
    /// # Errors
    /// Those of comparing it.
    fn content(&mut self, child: Child, want: &Arc<Trail>, alive: bool) -> SysResult<Content>;

    /// A directory gets its attributes.
    ///
    /// # Errors
    /// Those of reading them.
    fn with_attrs(&mut self, want: &Arc<Trail>) -> SysResult<bool>;

    /// Plans everything.
    ///
    /// # Errors
    /// Those of reading both states.
    fn all(&mut self) -> SysResult<()> {
        self.plan().alive_dirs.insert(Slot::ROOT);
        let wanted = self.dir(Trail::root(), Some(Trail::root()))?;
        self.below(wanted)
    }

    /// Plans everything that is wanted, in order, with everything below it. Without recursion: a
    /// tree can be deeper than the stack.
    ///
    /// # Errors
    /// As [`States::all`].
    fn below(&mut self, wanted: Vec<WantedStep>) -> SysResult<()> {
        let mut open = wanted;
        open.reverse();
        while let Some((child, trail, here)) = open.pop() {
            if self.inode(child, &trail, here)? && child.kind == Kind::Dir {
                let alive = self.plan().alive_dirs.contains(&child.slot);
                let below = self.dir(Arc::clone(&trail), alive.then_some(trail))?;
                open.extend(below.into_iter().rev());
            }
        }
        Ok(())
    }

    /// A wanted directory; gives what is wanted in it.
    ///
    /// # Errors
    /// As [`States::all`].
    fn dir(&mut self, want: Arc<Trail>, live: Option<Arc<Trail>>) -> SysResult<Vec<WantedStep>> {
        let names = self.names(&want, live.as_ref())?;
        let next = names
            .iter()
            .filter_map(|plan| {
                plan.want
                    .clone()
                    .map(|(child, trail)| (child, trail, plan.have == Some(child)))
            })
            .collect();
        let with_attrs = self.with_attrs(&want)?;
        self.plan().dirs.push(DirPlan {
            want,
            live,
            names,
            with_attrs,
        });
        Ok(next)
    }

    /// A wanted inode. Of a directory it says whether the walk goes on below.
    ///
    /// # Errors
    /// As [`States::all`].
    fn inode(&mut self, child: Child, want: &Arc<Trail>, here: bool) -> SysResult<bool> {
        let found = self.find(child, want, here)?;
        let alive = found.is_some();
        if child.kind == Kind::Dir {
            if !self.enters(want, alive)? {
                return Ok(false);
            }
            self.plan()
                .found
                .extend(found.map(|place| (child.slot, place)));
            if alive {
                self.plan().alive_dirs.insert(child.slot);
            }
            return Ok(true);
        }
        self.plan()
            .found
            .extend(found.map(|place| (child.slot, place)));
        if let Some(content) = self.plan().contents.get(&child.slot).copied() {
            self.plan().several.insert(child.slot);
            // By the names that were looked at before it may have been nowhere.
            if content != Content::New || !here {
                return Ok(false);
            }
        }
        let content = self.content(child, want, alive)?;
        self.plan().contents.insert(child.slot, content);
        if content == Content::New {
            // What is made again is not looked for.
            self.plan().found.remove(&child.slot);
        }
        Ok(false)
    }
}
