//! Merge of the names of inodes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::Tree;
use super::side::MergeState;
use super::{BESIDE, ClashKind, Conflict, ConflictPolicy, MergeParty};
use crate::history::present::Trail;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Place;
use ckptfs_sys::{Kind, SysResult};

/// The merged places of all compared inodes.
#[derive(Default)]
pub struct MergedPlaces {
    /// Common number -> merged places; empty: the inode is removed or not added.
    pub(super) places: HashMap<Slot, BTreeSet<Place>>,
    pub(super) conflicts: Vec<Conflict>,
    /// Paths of conflicts in content that an answer resolved.
    pub(super) answered: BTreeSet<Vec<u8>>,
    /// Inodes of `theirs` added next to a conflict: the number of the latter, and their own.
    pub(super) beside: Vec<(Slot, Slot)>,
}

/// Length limit of a name, in bytes.
const NAME_MAX: usize = 255;
/// Attempts to find a free name for an added inode.
const TRIES: u32 = 100;

struct PlaceMerger<'m, 'a, T> {
    base: &'m MergeState<'a, T>,
    ours: &'m MergeState<'a, T>,
    theirs: &'m MergeState<'a, T>,
    policy: ConflictPolicy<'m>,
    merged: MergedPlaces,
    /// Inodes that keep the places of the winning side, whatever else changes.
    fixed: HashSet<Slot>,
}

/// Merges the places of all inodes in `scope`. Conflicts, and changes that would break the tree,
/// keep the places of `ours`, or of `theirs` by policy.
///
/// # Errors
/// Those of comparing inodes that one side removed.
pub(super) fn merge<T: Tree>(
    base: &MergeState<'_, T>,
    ours: &MergeState<'_, T>,
    theirs: &MergeState<'_, T>,
    policy: ConflictPolicy<'_>,
    scope: Option<&HashSet<Slot>>,
) -> SysResult<MergedPlaces> {
    let mut merging = PlaceMerger {
        base,
        ours,
        theirs,
        policy,
        merged: MergedPlaces::default(),
        fixed: HashSet::new(),
    };
    let all: BTreeSet<Slot> = [base, ours, theirs]
        .iter()
        .flat_map(|side| side.places.keys().copied())
        .collect();
    for slot in &all {
        let places = if scope.is_none_or(|scope| scope.contains(slot)) {
            merging.three_ways(*slot)?
        } else {
            ours.places_of(*slot)
        };
        merging.merged.places.insert(*slot, places);
    }
    // Each round pins some inodes to one side's places, or moves them to free names. Once all are
    // pinned, the outcome equals that side; the loop ends.
    while merging.names_clash()? | merging.directories_are_missing() | merging.has_cycles() {}
    Ok(merging.merged)
}

/// Adds the version of `theirs` next to a file if both are to be kept. Reports whether it was
/// added.
///
/// # Errors
/// Those of finding a free name.
pub(super) fn comes_beside<T: Tree>(
    [base, ours, theirs]: [&MergeState<'_, T>; 3],
    policy: ConflictPolicy<'_>,
    slot: Slot,
    merged: &mut MergedPlaces,
) -> SysResult<bool> {
    let place = merged.places.get(&slot).and_then(BTreeSet::first).cloned();
    let Some(place) = place.filter(|_| ours.kind(slot) != Some(Kind::Dir)) else {
        return Ok(false);
    };
    let mut merging = PlaceMerger {
        base,
        ours,
        theirs,
        policy,
        merged: std::mem::take(merged),
        fixed: HashSet::new(),
    };
    let free = merging.free_beside(&place);
    if let Ok(Some(free)) = &free {
        merging.put_beside(slot, BTreeSet::from([free.clone()]));
    }
    *merged = merging.merged;
    Ok(free?.is_some())
}

impl<T: Tree> PlaceMerger<'_, '_, T> {
    /// Returns the side whose version stays.
    fn winner(&self) -> &MergeState<'_, T> {
        match self.policy.winner() {
            MergeParty::Ours => self.ours,
            MergeParty::Theirs => self.theirs,
        }
    }

    fn conflict(&mut self, slot: Slot, clash: ClashKind, settled: bool) {
        let slot = Slot(slot.0 & !BESIDE);
        let way = [self.ours, self.theirs, self.base]
            .iter()
            .find_map(|side| side.way(slot));
        self.merged.conflicts.push(Conflict {
            path: way.map(|way| way.path()).unwrap_or_default(),
            clash,
            slot,
            settled: settled || self.policy.settles_all(),
        });
    }

    /// Pins an inode to the winner's places. Reports whether this changed anything.
    fn fix(&mut self, slot: Slot, clash: ClashKind, settled: bool) -> bool {
        let places = self.winner().places_of(slot);
        let moved = self.merged.places.insert(slot, places.clone()) != Some(places);
        let fixed = self.fixed.insert(slot);
        if fixed {
            self.conflict(slot, clash, settled);
        }
        fixed || moved
    }

    /// As [`PlaceMerger::fix`], during the merge of places; returns the places.
    fn stays(&mut self, slot: Slot, clash: ClashKind, settled: bool) -> BTreeSet<Place> {
        self.fix(slot, clash, settled);
        self.winner().places_of(slot)
    }

    fn keeps_both(&self) -> bool {
        matches!(self.policy, ConflictPolicy::KeepBoth(_))
    }

    /// Merges an inode that one side removed and the other moved or changed; it stays if both are
    /// to be kept.
    fn removed(&mut self, slot: Slot, by: MergeParty) -> BTreeSet<Place> {
        if by == MergeParty::Ours && self.keeps_both() {
            self.conflict(slot, ClashKind::Removed(by), true);
            return self.theirs.places_of(slot);
        }
        self.stays(slot, ClashKind::Removed(by), self.keeps_both())
    }

    /// Merges an inode that both sides moved; if both are to be kept, a file gets both places.
    fn moved(&mut self, slot: Slot, there: BTreeSet<Place>) -> BTreeSet<Place> {
        let beside =
            self.keeps_both() && !there.is_empty() && self.theirs.kind(slot) != Some(Kind::Dir);
        if beside {
            self.put_beside(slot, there);
        }
        self.stays(slot, ClashKind::Moved, beside)
    }

    fn put_beside(&mut self, slot: Slot, places: BTreeSet<Place>) {
        let beside = Slot(slot.0 | BESIDE);
        self.merged.places.insert(beside, places);
        self.merged.beside.push((slot, beside));
    }

    fn three_ways(&mut self, slot: Slot) -> SysResult<BTreeSet<Place>> {
        let [base, ours, theirs] =
            [self.base, self.ours, self.theirs].map(|side| side.places_of(slot));
        let removed = |now: &BTreeSet<Place>| now.is_empty() && !base.is_empty();
        if removed(&theirs) && !removed(&ours) {
            // Removing a file applies only to the content it had then.
            if ours != base || !self.ours.same_inode(slot, self.base)? {
                return Ok(self.removed(slot, MergeParty::Theirs));
            }
        } else if removed(&ours)
            && !removed(&theirs)
            && (theirs != base || !self.theirs.same_inode(slot, self.base)?)
        {
            return Ok(self.removed(slot, MergeParty::Ours));
        }
        if theirs == base || ours == theirs {
            return Ok(ours);
        }
        if ours == base {
            return Ok(theirs);
        }
        let came = |now: &BTreeSet<Place>| now - &base;
        let (here, there) = (came(&ours), came(&theirs));
        let left = base
            .iter()
            .any(|place| !ours.contains(place) && !theirs.contains(place));
        if left && !here.is_empty() && !there.is_empty() && here != there {
            return Ok(self.moved(slot, there));
        }
        let places = &(&ours - &(&base - &theirs)) | &there;
        // Each side removed the names that the other kept, but neither removed the file.
        if places.is_empty() && !removed(&ours) && !removed(&theirs) {
            return Ok(self.moved(slot, theirs));
        }
        Ok(places)
    }

    /// Resolves two inodes at one name: the losing side's inode is left out, or moved to a free
    /// name next to the other.
    fn names_clash(&mut self) -> SysResult<bool> {
        let mut at: BTreeMap<&Place, BTreeSet<Slot>> = BTreeMap::new();
        for (slot, places) in &self.merged.places {
            for place in places {
                at.entry(place).or_default().insert(*slot);
            }
        }
        let several: Vec<(Place, BTreeSet<Slot>)> = at
            .into_iter()
            .filter(|(_, slots)| slots.len() > 1)
            .map(|(place, slots)| (place.clone(), slots))
            .collect();
        let mut any = false;
        for (place, slots) in several {
            let mut twice = false;
            for slot in &slots {
                if !self.ours.places_of(*slot).contains(&place)
                    && self.is_made_twice(*slot, &place)?
                {
                    self.merged.places.insert(*slot, BTreeSet::new());
                    twice = true;
                }
            }
            // The remaining inode may now have the name alone; the next round checks it.
            if twice {
                any = true;
                continue;
            }
            for slot in &slots {
                if self.winner().places_of(*slot).contains(&place) {
                    continue;
                }
                any |= match self.free_beside(&place)? {
                    Some(free) if !self.fixed.contains(slot) => {
                        let places = self.merged.places.entry(*slot).or_default();
                        places.remove(&place);
                        places.insert(free);
                        if slot.0 & BESIDE == 0 {
                            self.conflict(*slot, ClashKind::Name, true);
                        }
                        true
                    }
                    _ => self.fix(*slot, ClashKind::Name, false),
                };
            }
        }
        Ok(any)
    }

    /// Returns a free place next to another, if both versions are to be kept.
    fn free_beside(&self, place: &Place) -> SysResult<Option<Place>> {
        let ConflictPolicy::KeepBoth(suffix) = self.policy else {
            return Ok(None);
        };
        let taken: HashSet<&Place> = self.merged.places.values().flatten().collect();
        for number in 1..=TRIES {
            let mut name = [place.name.as_bytes(), b".", suffix].concat();
            if number > 1 {
                name.extend_from_slice(format!(".{number}").as_bytes());
            }
            if name.len() > NAME_MAX {
                return Ok(None);
            }
            let free = Place {
                parent: place.parent,
                name: Name::new(&name),
            };
            let is_there = |side: &MergeState<'_, T>, dir: &Arc<Trail>| -> SysResult<bool> {
                Ok(side.tree.child(dir, &free.name)?.is_some())
            };
            let sides = [self.ours, self.theirs];
            let known = sides
                .iter()
                .filter_map(|side| side.way(place.parent).map(|dir| is_there(side, dir)))
                .collect::<SysResult<Vec<bool>>>()?;
            if !taken.contains(&free) && !known.contains(&true) {
                return Ok(Some(free));
            }
        }
        Ok(None)
    }

    /// Reports whether both sides created equal inodes, not directories, with the same names.
    fn is_made_twice(&self, slot: Slot, place: &Place) -> SysResult<bool> {
        let Some((number, there)) = self.ours.number_at(place) else {
            return Ok(false);
        };
        let Some((child, way)) = self.theirs.met.get(&slot) else {
            return Ok(false);
        };
        if child.kind == Kind::Dir
            || child.kind != there.kind
            || self.base.has(slot)
            || self.base.has(number)
            || self.theirs.places_of(slot) != self.ours.places_of(number)
        {
            return Ok(false);
        }
        let Some(here) = self.ours.way(number) else {
            return Ok(false);
        };
        let (ours, theirs) = (self.ours.tree, self.theirs.tree);
        let (old, new) = (ours.attr(here)?, theirs.attr(way)?);
        let same = match child.kind {
            Kind::File => ours.same_content(here, theirs, way)?,
            _ => old.target == new.target && old.stat.rdev == new.stat.rdev,
        };
        Ok(same && super::super::has_attrs((ours, here), (theirs, way), false)?)
    }

    fn is_there(&self, dir: Slot) -> bool {
        dir == Slot::ROOT
            || self
                .merged
                .places
                .get(&dir)
                .is_none_or(|places| !places.is_empty())
    }

    /// Resolves entries in removed directories. The directory stays for entries of the winner;
    /// entries of the other side are left out. If both are to be kept, it stays for either side's
    /// entries.
    fn directories_are_missing(&mut self) -> bool {
        let missing: Vec<(Slot, Place)> = self
            .merged
            .places
            .iter()
            .flat_map(|(slot, places)| places.iter().map(|place| (*slot, place.clone())))
            .filter(|(_, place)| !self.is_there(place.parent))
            .collect();
        let (winner, other) = match self.policy.winner() {
            MergeParty::Ours => (MergeParty::Ours, MergeParty::Theirs),
            MergeParty::Theirs => (MergeParty::Theirs, MergeParty::Ours),
        };
        let mut any = false;
        for (slot, place) in missing {
            let there = self.winner();
            any |= if there.places_of(slot).contains(&place) && there.has(place.parent) {
                self.fix(place.parent, ClashKind::Directory(other), self.keeps_both())
            } else if self.keeps_both()
                && self.theirs.has(place.parent)
                && !self.fixed.contains(&place.parent)
            {
                let places = self.theirs.places_of(place.parent);
                self.merged.places.insert(place.parent, places);
                self.conflict(slot, ClashKind::Directory(winner), true);
                true
            } else {
                self.fix(slot, ClashKind::Directory(winner), false)
            };
        }
        any
    }

    /// Pins directories in a cycle to the winner's places.
    fn has_cycles(&mut self) -> bool {
        let above = |slot: Slot| {
            let places = self.merged.places.get(&slot)?;
            places.first().map(|place| place.parent)
        };
        let mut fine: HashSet<Slot> = HashSet::from([Slot::ROOT]);
        let mut in_cycles = BTreeSet::new();
        for slot in self.merged.places.keys() {
            let (mut at, mut way) = (Some(*slot), Vec::new());
            while let Some(slot) = at {
                if fine.contains(&slot) {
                    break;
                }
                if let Some(begin) = way.iter().position(|passed| *passed == slot) {
                    in_cycles.extend(way[begin..].iter().copied());
                    break;
                }
                way.push(slot);
                at = above(slot);
            }
            fine.extend(way);
        }
        let mut any = false;
        for slot in in_cycles {
            any |= self.fix(slot, ClashKind::Cycle, false);
        }
        any
    }
}
