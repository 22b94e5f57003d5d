//! Applies a plan to the live tree with the operations that serve the kernel, so every step
//! captures the past. Collects the kernel cache entries to invalidate.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::Engine;
use super::desired::DesiredInodes;
use super::plan::RestorePlan;
use super::stage::Stage;
use super::stale::StaleEntries;
use crate::history::present::Trail;
use crate::history::state::TreeState;
use crate::live::{ChangeCtx, KernelRequest, Live, NewInode, NodeRef, Swap};
use crate::tree::apply::Sink;
use crate::tree::plan::{DirPlan, InodeAction, NameChange as Becomes, NamePlan};
use ckptfs_api::Times;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{self as sys, Errno, Kind, RenameMode, SysResult};

/// Limit of new inodes put in place behind one record.
const SWAPS_MAX: usize = 4096;

struct LiveSink<'a> {
    engine: &'a Engine,
    change: &'a ChangeCtx,
    plan: &'a RestorePlan,
    want: &'a dyn DesiredInodes,
    stage: Stage<'a>,
    /// New inodes to be put in place. They are flushed before any other operation.
    swaps: Vec<Swap>,
    places: HashSet<Place>,
    /// Inodes whose mode denies their owner the operation, with that mode.
    lent: HashMap<Slot, (Option<Arc<Trail>>, u32)>,
    stale: StaleEntries,
}

/// Carries out a plan with the staged inodes. The caller holds the freeze lock and the tree lock
/// for writing.
pub(super) fn apply(
    engine: &Engine,
    change: &ChangeCtx,
    (plan, want): (&RestorePlan, &dyn DesiredInodes),
    stage: Stage<'_>,
) -> SysResult<StaleEntries> {
    let mut sink = LiveSink {
        engine,
        change,
        plan,
        want,
        stage,
        swaps: Vec::new(),
        places: HashSet::new(),
        lent: HashMap::new(),
        stale: StaleEntries::default(),
    };
    let carried_out = carry_out(&mut sink);
    for (slot, (trail, mode)) in std::mem::take(&mut sink.lent) {
        let trail = trail.as_ref();
        engine
            .live
            .attrs
            .give_back_in(NodeRef { slot, trail }, mode);
    }
    carried_out.map(|()| sink.stale.without_twice())
}

fn carry_out(sink: &mut LiveSink<'_>) -> SysResult<()> {
    let (engine, plan) = (sink.engine, sink.plan);
    // Inherited inodes of a branch are found by their path, which is valid until a rename.
    for dir in &plan.tree.dirs {
        let changes = |name: &NamePlan| {
            !matches!(
                plan.tree.change(name),
                None | Some(Becomes::Stays(InodeAction::Same))
            )
        };
        if let Some(live) = &dir.live
            && dir.names.iter().any(changes)
        {
            engine.live.names.own_in(live)?;
            sink.lend(live.into())?;
        }
    }
    let inodes = &engine.live.inodes;
    inodes
        .found
        .remember_ways(plan.tree.dirs.iter().filter_map(|dir| dir.live.as_ref()));
    let dirs = crate::tree::apply::apply(&plan.tree, sink);
    inodes.found.remember_ways(std::iter::empty());
    let dirs = dirs?;
    let here = |dir: &DirPlan| {
        dir.live
            .as_ref()
            .map(|live| live.slot)
            .or_else(|| dirs.get(&dir.want.slot).copied())
    };
    sink.stale
        .nodes
        .extend(plan.tree.dirs.iter().filter_map(here));
    sink.stage.clear();
    sink.clean_staging()
}

/// Returns everything that a plan can have changed, for a plan that was carried out in part.
pub(super) fn all_of(plan: &RestorePlan) -> StaleEntries {
    let mut stale = StaleEntries::default();
    for dir in &plan.tree.dirs {
        let here = dir.live.as_ref().map_or(dir.want.slot, |live| live.slot);
        stale.nodes.push(here);
        for name in &dir.names {
            stale.names.push((here, name.name.clone()));
            stale.nodes.extend(name.have.map(|have| have.slot));
            stale
                .nodes
                .extend(name.want.as_ref().map(|(child, _)| child.slot));
        }
    }
    stale
}

impl LiveSink<'_> {
    fn live(&self) -> &Live {
        &self.engine.live
    }

    fn keeps_times(&self) -> bool {
        self.plan.times == Times::Kept
    }

    /// Grants the owner of an inode access to it, and remembers the mode.
    fn lend(&mut self, at: NodeRef<'_>) -> SysResult<()> {
        if let Some(mode) = self.live().attrs.lend_in(self.change, at)? {
            let way = at.trail.map(Arc::clone);
            self.lent.entry(at.slot).or_insert((way, mode));
        }
        Ok(())
    }

    /// Records that a name leads to another inode. The kernel does not see the staging directory.
    fn renamed(&mut self, place: &Place) {
        if place.parent != Slot::STAGING {
            self.stale.names.push((place.parent, place.name.clone()));
        }
    }

    /// Records that an inode lost a name, possibly the last. If other names remain, its cached link
    /// count is stale.
    fn lost(&mut self, dir: Slot, name: &Name, slot: Slot) {
        // Only inodes in the tables, which are those that the kernel has, can be dead.
        if self.live().nodes.is_dead(slot) {
            self.stale.dead.push((dir, name.clone(), slot));
        } else {
            self.stale.nodes.push(slot);
        }
    }

    /// Returns whether a name in the staging directory leads to an inode, which an interrupted
    /// restore may have left. Removes any other inode of that name.
    fn is_left_at(&self, staged: &Place, slot: Slot) -> SysResult<bool> {
        match sys::stat_at(self.live().staging(), staged.name.as_bytes()) {
            Ok(stat) if self.live().inodes.slot_of(&stat) == Ok(slot) => Ok(true),
            Ok(_) => self
                .live()
                .removal
                .remove_in(
                    self.change,
                    NodeRef::from(Slot::STAGING),
                    &staged.name,
                    false,
                )
                .map(|_| false),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Removes a name and everything below it, if it still leads to `have`.
    fn remove_below(&mut self, dir: &Arc<Trail>, name: &Name, have: Child) -> SysResult<()> {
        let engine = self.engine;
        let view = engine.states.view(TreeState::Live);
        match view.child(dir, name)? {
            Some(now) if now.slot == have.slot => {}
            _ => return Ok(()),
        }
        // Depth-first without recursion: directories are removed on the way back.
        let mut open = vec![(Arc::clone(dir), name.clone(), have, false)];
        while let Some((dir, name, child, emptied)) = open.pop() {
            if child.kind != Kind::Dir || emptied {
                let slot = engine.live.removal.remove_in(
                    self.change,
                    NodeRef::from(&dir),
                    &name,
                    child.kind == Kind::Dir,
                )?;
                self.lost(dir.slot, &name, slot);
                continue;
            }
            let trail = dir.step(&name, child.slot);
            self.lend(NodeRef::from(&trail))?;
            open.push((dir, name, child, true));
            for (name, below) in view.list(&trail)? {
                open.push((Arc::clone(&trail), name, below, false));
            }
        }
        Ok(())
    }

    /// Removes the remains of an interrupted restore that this one did not use, by ordinary
    /// removals, so that the guard still shows them.
    fn clean_staging(&mut self) -> SysResult<()> {
        let staging = Arc::new(Trail {
            slot: Slot::STAGING,
            name: Name::new(b""),
            up: None,
        });
        for (name, child) in self.engine.states.view(TreeState::Live).list(&staging)? {
            self.remove_below(&staging, &name, child)?;
        }
        Ok(())
    }
}

impl Sink for LiveSink<'_> {
    /// For an inode with several names, history may have only a removed one; then its place is that
    /// of the plan.
    fn locate(&self, child: Child, want: Option<&Arc<Trail>>) -> SysResult<Place> {
        let here = want.map(|want| self.want.here(want));
        let at = here
            .as_ref()
            .map_or_else(|| NodeRef::from(child.slot), NodeRef::from);
        match self.live().inodes.locate(at, child.kind) {
            Err(Errno::ESTALE) => self
                .plan
                .tree
                .found
                .get(&child.slot)
                .cloned()
                .ok_or(Errno::ESTALE),
            place => place,
        }
    }

    /// The whole tree is restored, and the inode had only this name: all other names are removed.
    fn has_one_name(&self, want: &Arc<Trail>) -> bool {
        self.plan.whole
            && self.plan.unknown.is_empty()
            && self.want.attr(want).is_ok_and(|attr| attr.stat.nlink == 1)
    }

    fn rewrite(&mut self, child: Child, want: &Arc<Trail>, content: InodeAction) -> SysResult<()> {
        let (wanted, here) = (self.want, self.want.here(want));
        self.lend(NodeRef::from(&here))?;
        if content == InodeAction::InPlace {
            let opened = wanted.open(want, true)?.ok_or(Errno::EIO)?;
            self.live().attrs.rewrite_in(
                self.change,
                NodeRef::from(&here),
                opened.file.as_ref(),
                wanted.attr(want)?.stat.size,
            )?;
            if !wanted.was_so(want, &opened)? {
                return Err(Errno::EBUSY);
            }
        }
        self.live().attrs.apply_attrs_in(
            self.change,
            NodeRef::from(&here),
            &wanted.attr(want)?,
            &wanted.xattrs(want)?,
            self.keeps_times(),
        )?;
        // It has the desired mode now.
        self.lent.remove(&child.slot);
        self.stale.nodes.push(child.slot);
        Ok(())
    }

    fn rename(
        &mut self,
        child: Child,
        from: &Place,
        to: &Place,
        mode: RenameMode,
    ) -> SysResult<()> {
        if child.kind == Kind::Dir && from.parent != to.parent {
            // Its `..` entry changes.
            self.lend(NodeRef::from(child.slot))?;
        }
        let ends = (
            (NodeRef::from(from.parent), &from.name),
            (NodeRef::from(to.parent), &to.name),
        );
        let replaced = self.live().names.rename_in(
            self.change,
            ends.0,
            ends.1,
            mode,
            KernelRequest::default(),
        )?;
        self.stale.nodes.push(child.slot);
        self.renamed(from);
        self.renamed(to);
        if let Some(replaced) = replaced.filter(|_| to.parent != Slot::STAGING) {
            self.lost(to.parent, &to.name, replaced);
        }
        Ok(())
    }

    fn link(&mut self, child: Child, from: &Place, to: &Place) -> SysResult<()> {
        self.stale.nodes.push(child.slot);
        if to.parent == Slot::STAGING && self.is_left_at(to, child.slot)? {
            return Ok(());
        }
        self.live().names.link_in(self.change, from, to)?;
        self.renamed(to);
        Ok(())
    }

    fn remove(&mut self, dir: &Arc<Trail>, name: &Name, have: Child) -> SysResult<()> {
        self.remove_below(dir, name, have)?;
        self.stale.names.push((dir.slot, name.clone()));
        Ok(())
    }

    fn make_dir(&mut self, want: &Arc<Trail>, at: &Place) -> SysResult<Slot> {
        let stat = self.want.attr(want)?.stat;
        let make = NewInode {
            kind: Kind::Dir,
            mode: 0o700,
            umask: 0,
            rdev: 0,
            target: b"",
            uid: stat.uid,
            gid: stat.gid,
            open: None,
            again: false,
        };
        let made =
            self.live()
                .names
                .make_in(self.change, NodeRef::from(at.parent), &at.name, &make, 0)?;
        self.renamed(at);
        let born = || {
            let stat = self.live().inodes.stat(made.slot)?;
            Ok((made.slot, stat.btime))
        };
        self.want.made(want.slot, &born)?;
        Ok(made.slot)
    }

    fn make(&mut self, child: Child, want: &Arc<Trail>) -> SysResult<()> {
        self.stage.complete((self.plan, self.want), child, want)
    }

    fn put(&mut self, child: Child, at: &Place) -> SysResult<bool> {
        let Some(staged) = self.stage.take(self.change, child.slot)? else {
            return Ok(false);
        };
        let born = || {
            let stat = staged.stat();
            Ok((self.live().inodes.slot_of(stat)?, stat.btime))
        };
        self.want.made(child.slot, &born)?;
        if self.places.contains(at) || self.swaps.len() == SWAPS_MAX {
            self.flush()?;
        }
        self.places.insert(at.clone());
        self.swaps.push(Swap {
            staged,
            to: at.clone(),
        });
        self.stale.nodes.push(child.slot);
        Ok(true)
    }

    /// Many inodes share one record.
    fn flush(&mut self) -> SysResult<()> {
        self.places.clear();
        let swaps = std::mem::take(&mut self.swaps);
        let replaced = self.live().swaps.put_in_place(self.change, &swaps)?;
        for (
            Swap {
                to: Place { parent, name },
                ..
            },
            replaced,
        ) in swaps.into_iter().zip(replaced)
        {
            match replaced {
                // The invalidation of the inode includes the name.
                Some(dead) if self.live().nodes.is_dead(dead) => {
                    self.stale.dead.push((parent, name, dead))
                }
                replaced => {
                    self.stale.nodes.extend(replaced);
                    self.stale.names.push((parent, name));
                }
            }
        }
        Ok(())
    }

    fn arrived(&mut self, child: Child) -> SysResult<()> {
        if self.keeps_times() {
            Ok(())
        } else {
            self.live()
                .attrs
                .renew_in(self.change, NodeRef::from(child.slot))
        }
    }

    fn apply_attrs(&mut self, dir: &DirPlan, here: Slot) -> SysResult<()> {
        let way = self.want.here(&dir.want);
        let at = if here == dir.want.slot {
            NodeRef::from(&way)
        } else {
            NodeRef::from(here)
        };
        let (attr, xattrs) = (self.want.attr(&dir.want)?, self.want.xattrs(&dir.want)?);
        self.lend(at)?;
        let (attrs, times) = (&self.live().attrs, self.keeps_times());
        let changed = attrs.apply_attrs_in(self.change, at, &attr, &xattrs, times)?;
        // It has the desired mode now.
        self.lent.remove(&here);
        if changed && dir.live.is_some() {
            self.stale.attrs_changed.push(here);
        }
        Ok(())
    }
}
