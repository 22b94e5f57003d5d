//! Planning: a walk of the wanted state along possible differences.

use std::sync::Arc;

use super::plan::{DirPlan, InodeAction, NamePlan, TreePlan};
use crate::history::present::Trail;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Kind, SysResult};

/// A wanted inode, its trail, and whether its name already leads to it.
pub type WantedStep = (Child, Arc<Trail>, bool);

/// Two states of a tree, current and wanted. Implementations choose how much of them is compared.
pub trait PlanBuilder {
    /// Returns the plan under construction.
    fn plan(&mut self) -> &mut TreePlan;

    /// Returns the names of a wanted directory that may differ, all names if `live` is `None`.
    /// `live` is the trail of the existing directory.
    ///
    /// # Errors
    /// Those of reading both.
    fn names(&mut self, want: &Arc<Trail>, live: Option<&Arc<Trail>>) -> SysResult<Vec<NamePlan>>;

    /// Returns the current place of a wanted inode, from which it may be moved. `here`: it is
    /// already at the wanted name.
    ///
    /// # Errors
    /// Those of the lookup.
    fn find(&mut self, child: Child, want: &Arc<Trail>, here: bool) -> SysResult<Option<Place>>;

    /// Reports whether the walk continues below a wanted directory. Each directory is entered once;
    /// in forged data one can occur in several places.
    ///
    /// # Errors
    /// EIO: it occurs in several places, and no plan is possible.
    fn enters(&mut self, want: &Arc<Trail>, alive: bool) -> SysResult<bool>;

    /// Returns the action on an inode that is not a directory.
    ///
    /// # Errors
    /// Those of comparing it.
    fn content(&mut self, child: Child, want: &Arc<Trail>, alive: bool) -> SysResult<InodeAction>;

    /// Reports whether the attributes of a directory must be set.
    ///
    /// # Errors
    /// Those of reading them.
    fn with_attrs(&mut self, want: &Arc<Trail>) -> SysResult<bool>;

    /// Plans the whole tree.
    ///
    /// # Errors
    /// Those of reading both states.
    fn all(&mut self) -> SysResult<()> {
        self.plan().alive_dirs.insert(Slot::ROOT);
        let wanted = self.dir(Trail::root(), Some(Trail::root()))?;
        self.below(wanted)
    }

    /// Plans the given inodes in order, each with everything below it. Without recursion, because a
    /// tree can be deeper than the stack.
    ///
    /// # Errors
    /// As [`PlanBuilder::all`].
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

    /// Plans a wanted directory and returns its wanted entries.
    ///
    /// # Errors
    /// As [`PlanBuilder::all`].
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

    /// Plans a wanted inode. For a directory, reports whether the walk continues below it.
    ///
    /// # Errors
    /// As [`PlanBuilder::all`].
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
            // Its names planned before may have led to no existing inode.
            if content != InodeAction::New || !here {
                return Ok(false);
            }
        }
        let content = self.content(child, want, alive)?;
        self.plan().contents.insert(child.slot, content);
        if content == InodeAction::New {
            // A recreated inode is not looked up.
            self.plan().found.remove(&child.slot);
        }
        Ok(false)
    }
}
