//! The outcome of a merge as a tree, and the plan that makes `ours` equal to it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::Tree;
use super::super::pair;
use super::super::plan::TreePlan;
use super::inodes::{ContentOrigin, MergedInode, versions};
use super::places::MergedPlaces;
use super::side::MergeState;
use super::{ANOTHER, BESIDE, Conflict};
use crate::history::present::Trail;
use crate::history::touched::Touched;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::layout::merges::InodeBirth;
use ckptfs_store::record::{AttrState, Child};
use ckptfs_sys::{Errno, SysResult, Xattrs};

/// The outcome. Its inodes have the numbers of `ours`; inodes that come from `theirs` have the
/// numbers of `theirs`.
pub struct MergeOutcome<'a, T> {
    base: MergeState<'a, T>,
    ours: MergeState<'a, T>,
    theirs: MergeState<'a, T>,
    merged: MergedPlaces,
    inodes: HashMap<Slot, MergedInode>,
    /// Directory -> the inode of each compared name.
    names: HashMap<Slot, BTreeMap<Name, Option<Slot>>>,
    /// Number in the outcome -> common number.
    numbers: HashMap<Slot, Slot>,
    /// Common number -> number in the outcome, for inodes of `theirs` or parted hard links whose
    /// own number denotes another inode of `ours`.
    renumbered: HashMap<Slot, Slot>,
}

/// The location of an inode's content.
#[derive(Clone, Debug)]
pub enum MergedContent<'o> {
    /// The inode of `ours` with this trail.
    Ours(Arc<Trail>),
    /// The inode of `theirs` with this trail.
    Theirs(Arc<Trail>),
    /// Merged lines.
    Text(&'o [u8]),
}

/// The two states of the plan: `ours`, and the outcome.
enum PlanSide<'o, 'a, T> {
    Ours(&'o MergeOutcome<'a, T>),
    Merged(&'o MergeOutcome<'a, T>),
}

impl<'a, T: Tree> MergeOutcome<'a, T> {
    pub(super) fn new(
        base: MergeState<'a, T>,
        ours: MergeState<'a, T>,
        theirs: MergeState<'a, T>,
        merged: MergedPlaces,
        inodes: HashMap<Slot, MergedInode>,
    ) -> MergeOutcome<'a, T> {
        let mut names: HashMap<Slot, BTreeMap<Name, Option<Slot>>> = HashMap::new();
        for place in [&base, &ours, &theirs]
            .into_iter()
            .flat_map(MergeState::all_places)
        {
            let place = place.clone();
            names
                .entry(place.parent)
                .or_default()
                .insert(place.name, None);
        }
        for (slot, places) in &merged.places {
            for place in places {
                let place = place.clone();
                let names = names.entry(place.parent).or_default();
                names.insert(place.name, Some(*slot));
            }
        }
        let mut outcome = MergeOutcome {
            base,
            ours,
            theirs,
            merged,
            inodes,
            names,
            numbers: HashMap::new(),
            renumbered: HashMap::new(),
        };
        let here: HashSet<Slot> = outcome
            .ours
            .met
            .values()
            .map(|(child, _)| child.slot)
            .collect();
        for (number, (child, _)) in &outcome.theirs.met {
            let beside = number.0 & BESIDE != 0;
            let is_others = match outcome.ours.has(*number) {
                true => outcome.ours.is_parted(*number),
                false => beside || here.contains(&child.slot),
            };
            if is_others {
                let slot = Slot(number.0 | ANOTHER);
                outcome.renumbered.insert(*number, slot);
            }
        }
        let known = outcome.merged.places.keys().copied();
        // The outcome lacks inodes that are only in the base; their numbers may have been reused.
        let is_here = |number: &Slot| outcome.ours.has(*number) || outcome.theirs.has(*number);
        outcome.numbers = known
            .filter(is_here)
            .filter_map(|number| Some((outcome.child(number)?.slot, number)))
            .collect();
        outcome
    }

    /// Returns the conflicts, sorted by path.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.merged.conflicts
    }

    /// Returns the paths whose content was taken from [`super::MergeOptions::answers`].
    pub fn answered(&self) -> &BTreeSet<Vec<u8>> {
        &self.merged.answered
    }

    /// Returns the content of a file in conflict in the base, in `ours` and in `theirs`. Returns
    /// `None` if one of them lacks it, it is not a file, or it exceeds [`super::text::BYTES_MAX`].
    ///
    /// # Errors
    /// Those of reading it.
    pub fn versions(&self, conflict: &Conflict) -> SysResult<Option<[Vec<u8>; 3]>> {
        versions([&self.base, &self.ours, &self.theirs], conflict.slot)
    }

    /// Plans the changes that turn `ours` into the outcome.
    ///
    /// # Errors
    /// Those of reading both sides.
    pub fn plan(&self) -> SysResult<TreePlan> {
        let mut touched = Touched::default();
        for (dir, names) in &self.names {
            let dir = self.child(*dir).map_or(*dir, |child| child.slot);
            touched
                .names
                .entry(dir)
                .or_default()
                .extend(names.keys().cloned());
        }
        for number in self.inodes.keys() {
            let slot = self.child(*number).map_or(*number, |child| child.slot);
            touched.nodes.insert(slot);
            touched.data.insert(slot);
        }
        let mut plan = pair::plan(
            &PlanSide::Ours(self),
            &PlanSide::Merged(self),
            Some(&touched),
        )?;
        for dir in &mut plan.dirs {
            dir.live = dir.live.as_ref().map(|live| self.here(live));
        }
        Ok(plan)
    }

    /// Returns the trail in `ours` of an inode of the outcome, or its own if `ours` lacks it.
    pub fn here(&self, node: &Arc<Trail>) -> Arc<Trail> {
        let way = self.ours.way(self.number(node.slot));
        Arc::clone(way.unwrap_or(node))
    }

    /// Returns the path in `ours` of a directory of the outcome, empty if it was not compared.
    pub fn path_here(&self, dir: Slot) -> Vec<u8> {
        let way = self.ours.way(self.number(dir));
        way.map(|way| way.path()).unwrap_or_default()
    }

    /// Returns the location of the content of an inode.
    pub fn source(&self, node: &Arc<Trail>) -> MergedContent<'_> {
        let number = self.number(node.slot);
        let there = self.theirs.way(number).map(Arc::clone);
        match (self.inodes.get(&number).map(|inode| &inode.content), there) {
            (Some(ContentOrigin::Text(text)), _) => MergedContent::Text(text),
            (Some(ContentOrigin::Theirs), Some(there)) => MergedContent::Theirs(there),
            (None, Some(there)) if !self.ours.has(number) => MergedContent::Theirs(there),
            _ => MergedContent::Ours(self.home(node).1),
        }
    }

    /// Returns the inodes of both sides that an inode of the outcome represents, with their births;
    /// empty for an inode added next to another.
    ///
    /// # Errors
    /// Those of reading them.
    pub fn stands_for(&self, slot: Slot) -> SysResult<Vec<InodeBirth>> {
        let number = self.number(slot);
        let mut births = Vec::new();
        if number.0 & BESIDE != 0 {
            return Ok(births);
        }
        for side in [&self.ours, &self.theirs] {
            if let Some((child, way)) = side.met.get(&number).filter(|_| !side.is_parted(number)) {
                births.push((child.slot, side.tree.attr(way)?.stat.btime));
            }
        }
        Ok(births)
    }

    fn number(&self, slot: Slot) -> Slot {
        self.numbers.get(&slot).copied().unwrap_or(slot)
    }

    /// Returns the inode with this common number, with its number in the outcome.
    fn child(&self, number: Slot) -> Option<Child> {
        let side = [&self.ours, &self.theirs, &self.base]
            .into_iter()
            .find_map(|side| side.met.get(&number));
        let slot = self.renumbered.get(&number);
        side.map(|(child, _)| Child {
            slot: slot.copied().unwrap_or(child.slot),
            ..*child
        })
    }

    /// Returns the side of an inode, and its trail there.
    fn home(&self, node: &Arc<Trail>) -> (&MergeState<'a, T>, Arc<Trail>) {
        let number = self.number(node.slot);
        for side in [&self.ours, &self.theirs] {
            if let Some(way) = side.way(number) {
                return (side, Arc::clone(way));
            }
        }
        (&self.ours, Arc::clone(node))
    }
}

impl<T: Tree> Tree for MergeOutcome<'_, T> {
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        let known = self.names.get(&self.number(dir.slot));
        match known.and_then(|names| names.get(name)) {
            Some(there) => Ok(there.and_then(|number| MergeOutcome::child(self, number))),
            None => {
                let (side, way) = self.home(dir);
                side.tree.child(&way, name)
            }
        }
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        let (side, way) = self.home(dir);
        let mut names: BTreeMap<Name, Child> = side.tree.list(&way)?.into_iter().collect();
        for (name, there) in self.names.get(&self.number(dir.slot)).into_iter().flatten() {
            names.remove(name);
            if let Some(child) = there.and_then(|number| MergeOutcome::child(self, number)) {
                names.insert(name.clone(), child);
            }
        }
        Ok(names.into_iter().collect())
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let (side, way) = self.home(node);
        let mut attr = side.tree.attr(&way)?;
        let number = self.number(node.slot);
        attr.stat.ino = node.slot.0;
        if attr.stat.kind != ckptfs_sys::Kind::Dir
            && let Some(places) = self.merged.places.get(&number)
        {
            // Names that were not compared do not change in number.
            let before = match side.is_parted(number) {
                true => 0,
                false => side.names_met(number),
            };
            let more = u32::try_from(places.len()).unwrap_or(u32::MAX);
            let less = u32::try_from(before).unwrap_or(u32::MAX);
            let known = if before == 0 { 0 } else { attr.stat.nlink };
            attr.stat.nlink = known.saturating_add(more).saturating_sub(less);
        }
        if let Some(inode) = self.inodes.get(&number) {
            attr.stat.mode = inode.mode;
            (attr.stat.uid, attr.stat.gid) = (inode.uid, inode.gid);
            attr.stat.mtime = inode.mtime.unwrap_or(attr.stat.mtime);
            if inode.content == ContentOrigin::Theirs
                && let Some(there) = self.theirs.way(number)
            {
                let theirs = self.theirs.tree.attr(there)?;
                attr.target = theirs.target;
                attr.stat.size = theirs.stat.size;
            }
            if let ContentOrigin::Text(text) = &inode.content {
                attr.stat.size = text.len() as u64;
            }
        }
        Ok(attr)
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        let inode = self.inodes.get(&self.number(node.slot));
        if let Some(xattrs) = inode.and_then(|inode| inode.xattrs.as_ref()) {
            return Ok(xattrs.clone());
        }
        let (side, way) = self.home(node);
        side.tree.xattrs(&way)
    }

    fn same_content(
        &self,
        _file: &Arc<Trail>,
        _other: &Self,
        _there: &Arc<Trail>,
    ) -> SysResult<bool> {
        // Comparing two outcomes is not supported.
        Err(Errno::EOPNOTSUPP)
    }

    fn read(&self, file: &Arc<Trail>, most: u64) -> SysResult<Option<Vec<u8>>> {
        match self.source(file) {
            MergedContent::Text(text) => Ok(Some(text.to_vec())),
            MergedContent::Theirs(way) => self.theirs.tree.read(&way, most),
            MergedContent::Ours(way) => self.ours.tree.read(&way, most),
        }
    }
}

impl<T: Tree> Tree for PlanSide<'_, '_, T> {
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        match self {
            PlanSide::Ours(outcome) => outcome.ours.tree.child(dir, name),
            PlanSide::Merged(outcome) => Tree::child(*outcome, dir, name),
        }
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        match self {
            PlanSide::Ours(outcome) => outcome.ours.tree.list(dir),
            PlanSide::Merged(outcome) => outcome.list(dir),
        }
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        match self {
            PlanSide::Ours(outcome) => outcome.ours.tree.attr(node),
            PlanSide::Merged(outcome) => outcome.attr(node),
        }
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        match self {
            PlanSide::Ours(outcome) => outcome.ours.tree.xattrs(node),
            PlanSide::Merged(outcome) => outcome.xattrs(node),
        }
    }

    fn same_content(&self, file: &Arc<Trail>, other: &Self, there: &Arc<Trail>) -> SysResult<bool> {
        match (self, other) {
            (PlanSide::Ours(one), PlanSide::Merged(_)) => match one.source(there) {
                MergedContent::Ours(way) => Ok(way.slot == file.slot),
                MergedContent::Text(_) => Ok(false),
                // It is taken from `theirs` because a comparison found a difference.
                MergedContent::Theirs(_) => Ok(false),
            },
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn read(&self, file: &Arc<Trail>, most: u64) -> SysResult<Option<Vec<u8>>> {
        match self {
            PlanSide::Ours(outcome) => outcome.ours.tree.read(file, most),
            PlanSide::Merged(outcome) => outcome.read(file, most),
        }
    }
}
