//! One of the three states: its inodes by common number, and their places.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::super::{Tree, has_attrs};
use super::inode_classes::InodeClasses;
use super::{AGAIN, ANOTHER, Names};
use crate::history::present::Trail;
use ckptfs_api::CheckpointId;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Errno, Kind, SysResult};

/// An entry that a walk visited: directory, name, inode, trail.
type Step = (Slot, Name, Child, Arc<Trail>);

/// One of the three states of a merge.
///
/// **Common numbers.** An inode of the base has its number in all three states, as does an inode
/// that an earlier merge recorded as one with it. A newer inode has its own number, with two
/// exceptions. A file put in place of a vanished one has that file's number. This happens when an
/// editor writes a new file and renames it, or when a merge or its undo recreates a file. It also
/// applies if the old file had been renamed to that name before, as far as history shows. A
/// directory that both sides created at one place has one number.
pub struct MergeState<'a, T> {
    pub(super) tree: &'a T,
    /// Common number -> the places of the inode.
    pub(super) places: HashMap<Slot, BTreeSet<Place>>,
    /// Common number -> the inode in this state, and its trail.
    pub(super) met: HashMap<Slot, (Child, Arc<Trail>)>,
    at: HashMap<Place, Child>,
    /// Number in this state -> common number, where they differ.
    numbers: HashMap<Slot, Slot>,
    /// Common number of a hard-linked file -> how many of its names belong to files parted from it.
    parted: HashMap<Slot, usize>,
}

/// The context of a side's walk.
pub(super) struct WalkContext<'k, 'a, T> {
    pub(super) along: Option<&'k Names>,
    /// The state since which names were recorded, if the base is a later one.
    pub(super) origin: Option<&'k MergeState<'a, T>>,
    pub(super) base: &'k MergeState<'a, T>,
    pub(super) same: Option<&'k InodeClasses>,
}

impl<T> Clone for WalkContext<'_, '_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for WalkContext<'_, '_, T> {}

/// Walks a state along some names, parents before children. A new directory is listed completely,
/// because its names are not recorded.
fn walk<T: Tree>(
    tree: &T,
    along: Option<&Names>,
    is_new: impl Fn(Child, &Arc<Trail>) -> SysResult<bool>,
) -> SysResult<Vec<Step>> {
    let mut steps = Vec::new();
    let (mut open, mut entered) = (VecDeque::from([(Trail::root(), false)]), HashSet::new());
    while let Some((dir, new)) = open.pop_front() {
        if !entered.insert(dir.slot) {
            return Err(Errno::EIO);
        }
        let found: Vec<(Name, Child)> = match along {
            Some(along) if !new => {
                let mut found = Vec::new();
                for name in along.get(&dir.slot).into_iter().flatten() {
                    found.extend(tree.child(&dir, name)?.map(|child| (name.clone(), child)));
                }
                found
            }
            _ => tree.list(&dir)?,
        };
        for (name, child) in found {
            let trail = dir.step(&name, child.slot);
            if child.kind == Kind::Dir {
                open.push_back((Arc::clone(&trail), is_new(child, &trail)?));
            }
            steps.push((dir.slot, name, child, trail));
        }
    }
    Ok(steps)
}

impl<'a, T: Tree> MergeState<'a, T> {
    fn empty(tree: &'a T) -> MergeState<'a, T> {
        let root = Child {
            slot: Slot::ROOT,
            kind: Kind::Dir,
        };
        MergeState {
            tree,
            places: HashMap::new(),
            met: HashMap::from([(Slot::ROOT, (root, Trail::root()))]),
            at: HashMap::new(),
            numbers: HashMap::new(),
            parted: HashMap::new(),
        }
    }

    /// Walks the base.
    ///
    /// # Errors
    /// Those of reading it; EIO: a directory is in two places.
    pub(super) fn base(
        tree: &'a T,
        along: Option<&Names>,
        origin: Option<&MergeState<'_, T>>,
    ) -> SysResult<MergeState<'a, T>> {
        let mut side = MergeState::empty(tree);
        let is_new = |child: Child, way: &Arc<Trail>| match origin {
            Some(origin) => Ok(!origin.holds(child.slot, tree, (child, way))?),
            None => Ok(false),
        };
        for step in walk(tree, along, is_new)? {
            let number = step.2.slot;
            side.add(step, number);
        }
        Ok(side)
    }

    /// Reports whether an inode of another state is the one with this common number here. Because
    /// numbers are reused, the birth times must also match.
    fn holds(&self, number: Slot, tree: &T, (child, way): (Child, &Arc<Trail>)) -> SysResult<bool> {
        let Some((known, there)) = self.met.get(&number) else {
            return Ok(false);
        };
        if known.slot != child.slot || known.kind != child.kind {
            return Ok(false);
        }
        let births = (
            tree.attr(way)?.stat.btime,
            self.tree.attr(there)?.stat.btime,
        );
        Ok(!matches!(births, (Some(here), Some(there)) if here != there))
    }

    /// Returns the inode of the base that a file of another state replaced after a rename to its
    /// name: an inode that the name led to earlier, and that is not in `here`.
    fn replaced_by(
        &self,
        (tree, since): (&T, CheckpointId),
        (dir, name, child, _): &Step,
        (here, same): (&HashSet<Slot>, Option<&InodeClasses>),
    ) -> SysResult<Option<Slot>> {
        if child.kind == Kind::Dir {
            return Ok(None);
        }
        let former = tree.former(*dir, name, since)?.into_iter();
        let one_with = |old: Child| {
            let noted = same
                .into_iter()
                .flat_map(move |same| same.of_number(old.slot));
            let noted = noted.flatten().map(|(slot, _)| *slot);
            [old.slot].into_iter().chain(noted)
        };
        Ok(former
            .filter(|old| old.kind == child.kind)
            .flat_map(one_with)
            .find(|slot| self.has(*slot) && !here.contains(slot)))
    }

    /// Returns the common number of an inode of another state, by its own number or by recorded
    /// pairs; `None` if the inode is new.
    fn number_of(
        &self,
        tree: &T,
        (child, way): (Child, &Arc<Trail>),
        same: Option<&InodeClasses>,
    ) -> SysResult<Option<Slot>> {
        if self.holds(child.slot, tree, (child, way))? {
            return Ok(Some(child.slot));
        }
        let Some(same) = same.filter(|same| same.knows(child.slot)) else {
            return Ok(None);
        };
        let btime = tree.attr(way)?.stat.btime;
        for (slot, btime) in same.of((child.slot, btime)) {
            let Some((known, there)) = self.met.get(slot) else {
                continue;
            };
            if known.kind == child.kind && self.tree.attr(there)?.stat.btime == *btime {
                return Ok(Some(*slot));
            }
        }
        Ok(None)
    }

    /// Walks `ours` or `theirs`; `other` is the side walked before.
    ///
    /// # Errors
    /// As [`MergeState::base`].
    pub(super) fn of(
        tree: &'a T,
        known: WalkContext<'_, '_, T>,
        other: Option<&MergeState<'_, T>>,
        since: Option<CheckpointId>,
    ) -> SysResult<MergeState<'a, T>> {
        let mut side = MergeState::empty(tree);
        let base = known.base;
        let is_new = |child: Child, way: &Arc<Trail>| {
            let before = known.origin.unwrap_or(base);
            Ok(!before.holds(child.slot, tree, (child, way))?)
        };
        let steps = walk(tree, known.along, is_new)?;
        // Common number -> number here. An inode's own number takes precedence over recorded pairs.
        let mut here: HashMap<Slot, Slot> = HashMap::new();
        for (_, _, child, way) in &steps {
            if base.holds(child.slot, tree, (*child, way))? {
                here.insert(child.slot, child.slot);
            }
        }
        for (_, _, child, way) in &steps {
            let number = base.number_of(tree, (*child, way), known.same)?;
            if let Some(number) = number
                && *here.entry(number).or_insert(child.slot) == child.slot
            {
                side.numbers.insert(child.slot, number);
            }
        }
        let here: HashSet<Slot> = here.into_keys().collect();
        let mut taken = HashSet::new();
        // Directories first, because places refer to their numbers. Any name of a hard-linked file
        // may show which file it replaces.
        let (dirs, rest): (Vec<&Step>, Vec<&Step>) =
            steps.iter().partition(|step| step.2.kind == Kind::Dir);
        for (steps, last) in [(&dirs, true), (&rest, false), (&rest, true)] {
            for step in steps {
                let child = step.2;
                if side.numbers.contains_key(&child.slot) {
                    continue;
                }
                let same = side.stands_for(known, other, step, (&here, since))?;
                let number = match same.filter(|number| taken.insert(*number)) {
                    Some(number) => number,
                    None if last => side.new_number(base, other, (child, &step.3))?,
                    None => continue,
                };
                side.numbers.insert(child.slot, number);
            }
        }
        for step in steps {
            let number = side.number(step.2.slot);
            side.add(step, number);
        }
        Ok(side)
    }

    /// Returns the common number of the inode that a new one replaces; see [`MergeState`].
    fn stands_for(
        &self,
        known: WalkContext<'_, '_, T>,
        other: Option<&MergeState<'_, T>>,
        step: &Step,
        (here, since): (&HashSet<Slot>, Option<CheckpointId>),
    ) -> SysResult<Option<Slot>> {
        let ((dir, name, child, _), base) = (step, known.base);
        let place = Place {
            parent: self.number(*dir),
            name: name.clone(),
        };
        let before = base
            .child_at(&place)
            .filter(|old| old.kind == child.kind && !here.contains(&old.slot));
        let made = || {
            other
                .and_then(|other| other.number_at(&place))
                .filter(|(number, there)| {
                    there.kind == Kind::Dir && child.kind == Kind::Dir && !base.has(*number)
                })
                .map(|(number, _)| number)
        };
        match (before.map(|old| old.slot).or_else(made), since) {
            (None, Some(since)) => base.replaced_by((self.tree, since), step, (here, known.same)),
            (found, _) => Ok(found),
        }
    }

    /// Returns an unused common number for a new inode.
    fn new_number(
        &self,
        base: &MergeState<'_, T>,
        other: Option<&MergeState<'_, T>>,
        (child, way): (Child, &Arc<Trail>),
    ) -> SysResult<Slot> {
        let mut number = child.slot;
        if base.has(number) {
            number.0 |= ANOTHER;
        }
        if let Some(other) = other
            && other.has(number)
            && !other.holds(number, self.tree, (child, way))?
        {
            number.0 |= ANOTHER | AGAIN;
        }
        Ok(number)
    }

    fn add(&mut self, (dir, name, child, trail): Step, number: Slot) {
        let place = Place {
            parent: self.number(dir),
            name,
        };
        self.at.insert(place.clone(), child);
        self.places.entry(number).or_default().insert(place);
        if let Entry::Vacant(entry) = self.met.entry(number) {
            entry.insert((child, trail));
        }
    }

    /// Adds a second common number for an inode.
    pub(super) fn add_beside(&mut self, number: Slot, beside: Slot) {
        if let Some((child, way)) = self.met.get(&number) {
            let met = (*child, Arc::clone(way));
            self.met.insert(beside, met);
        }
    }

    /// Creates a file with this common number from some names of a file of the base, which lead to
    /// `to` here; see [`part_links`].
    pub(super) fn part(&mut self, file: Slot, to: Slot, number: Slot, places: &BTreeSet<Place>) {
        if to == number {
            return;
        }
        if to != file {
            if let Some(met) = self.met.remove(&to) {
                self.numbers.insert(met.0.slot, number);
                self.met.insert(number, met);
            }
            let all = self.places.remove(&to).unwrap_or_default();
            self.places.insert(number, all);
            return;
        }
        let way = places.first().and_then(|place| {
            let child = self.child_at(place)?;
            let dir = self.way(place.parent)?;
            Some((child, dir.step(&place.name, child.slot)))
        });
        self.met.extend(way.map(|way| (number, way)));
        self.places.insert(number, places.clone());
        *self.parted.entry(file).or_default() += places.len();
        if let Some(left) = self.places.get_mut(&file) {
            left.retain(|place| !places.contains(place));
        }
    }

    /// Reports whether an inode is one of several parted from a file that is one inode here.
    pub(super) fn is_parted(&self, number: Slot) -> bool {
        self.own_number(number)
            .is_some_and(|own| self.number(own) != number)
    }

    /// Returns the number of compared names of an inode, including those of files parted from it.
    pub(super) fn names_met(&self, number: Slot) -> usize {
        let parted = self.parted.get(&number).copied().unwrap_or(0);
        self.places.get(&number).map_or(0, BTreeSet::len) + parted
    }

    /// Returns the common number of an inode of this state.
    pub(super) fn number(&self, slot: Slot) -> Slot {
        self.numbers.get(&slot).copied().unwrap_or(slot)
    }

    pub(super) fn has(&self, number: Slot) -> bool {
        self.met.contains_key(&number)
    }

    fn child_at(&self, place: &Place) -> Option<Child> {
        self.at.get(place).copied()
    }

    pub(super) fn number_at(&self, place: &Place) -> Option<(Slot, Child)> {
        self.child_at(place)
            .map(|child| (self.number(child.slot), child))
    }

    /// Returns every compared place with an inode.
    pub(super) fn all_places(&self) -> impl Iterator<Item = &Place> {
        self.at.keys()
    }

    pub(super) fn places_of(&self, number: Slot) -> BTreeSet<Place> {
        self.places.get(&number).cloned().unwrap_or_default()
    }

    /// Returns the number of an inode in this state.
    pub(super) fn own_number(&self, number: Slot) -> Option<Slot> {
        self.met.get(&number).map(|(child, _)| child.slot)
    }

    pub(super) fn kind(&self, number: Slot) -> Option<Kind> {
        self.met.get(&number).map(|(child, _)| child.kind)
    }

    pub(super) fn way(&self, number: Slot) -> Option<&Arc<Trail>> {
        self.met.get(&number).map(|(_, way)| way)
    }

    /// Reports whether an inode has the same content, or symbolic link target, in another state.
    ///
    /// # Errors
    /// Those of reading both.
    pub(super) fn same_content(&self, number: Slot, other: &MergeState<'_, T>) -> SysResult<bool> {
        let (Some((child, here)), Some(there)) = (self.met.get(&number), other.way(number)) else {
            return Ok(false);
        };
        match child.kind {
            Kind::File => self.tree.same_content(here, other.tree, there),
            Kind::Symlink => Ok(self.tree.attr(here)?.target == other.tree.attr(there)?.target),
            _ => Ok(true),
        }
    }

    /// Reports whether an inode is equal in another state, except for times.
    ///
    /// # Errors
    /// Those of reading both.
    pub(super) fn same_inode(&self, number: Slot, other: &MergeState<'_, T>) -> SysResult<bool> {
        let (Some(here), Some(there)) = (self.way(number), other.way(number)) else {
            return Ok(false);
        };
        Ok(self.same_content(number, other)?
            && has_attrs((self.tree, here), (other.tree, there), false)?)
    }
}

/// The common numbers of the inodes that a name leads to in `ours` and in `theirs`.
type Pair = [Slot; 2];

/// Parts hard links that a side has parted: some names of a file of the base lead to another file
/// there, for example because an editor renamed a new file over one of the names.
///
/// The names of such a file fall into classes by the pair of inodes that they lead to in `ours` and
/// `theirs`. The class that leads to the file itself in both stays that file. Each other class
/// becomes a separate file in all three states; in a state that has not parted it, it shares an
/// inode with the others. Content and attributes are then merged separately, and links parted by
/// one side are parted in the outcome. A name that a side removed, moved, or gave to an inode of
/// the base parts nothing.
pub(super) fn part_links<T: Tree>(
    base: &mut MergeState<'_, T>,
    ours: &mut MergeState<'_, T>,
    theirs: &mut MergeState<'_, T>,
) {
    let linked = base.places.iter().filter(|(_, places)| places.len() > 1);
    let linked: Vec<(Slot, BTreeSet<Place>)> = linked
        .filter(|(slot, _)| base.kind(**slot) == Some(Kind::File))
        .map(|(slot, places)| (*slot, places.clone()))
        .collect();
    for (file, places) in linked {
        let mut classes: BTreeMap<Pair, BTreeSet<Place>> = BTreeMap::new();
        for place in places {
            let lead = [&*ours, &*theirs].map(|side| leads_to(base, side, file, &place));
            if let [Some(here), Some(there)] = lead {
                classes.entry([here, there]).or_default().insert(place);
            }
        }
        let mut times: HashMap<Slot, usize> = HashMap::new();
        let of_sides = classes.keys().flat_map(|pair| BTreeSet::from(*pair));
        of_sides.for_each(|slot| *times.entry(slot).or_default() += 1);
        // A new hard link of one side that the other side parted differently is not parted.
        let is_whole = |slot: &Slot| *slot == file || times.get(slot) == Some(&1);
        classes
            .retain(|pair, _| pair.iter().any(|slot| *slot != file) && pair.iter().all(is_whole));
        for ([here, there], places) in classes {
            let number = if here == file { there } else { here };
            base.part(file, file, number, &places);
            ours.part(file, here, number, &places);
            theirs.part(file, there, number, &places);
        }
    }
}

/// Returns the inode that a name of a base file leads to: the file itself, or a new file.
fn leads_to<T: Tree>(
    base: &MergeState<'_, T>,
    side: &MergeState<'_, T>,
    file: Slot,
    place: &Place,
) -> Option<Slot> {
    let (number, child) = side.number_at(place)?;
    let is_new = child.kind == Kind::File && !base.has(number);
    (number == file || is_new).then_some(number)
}
