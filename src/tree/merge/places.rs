//! Which inode is at which names, after a merge.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::super::Tree;
use super::side::Side;
use super::{Clash, Conflict, Who};
use crate::store::ids::Slot;
use crate::store::record::Place;
use crate::sys::{Kind, SysResult};

/// Where everything comes to be that was looked at.
pub struct Merged {
    /// Number in common -> its places; without any it goes, or does not come.
    pub(super) places: HashMap<Slot, BTreeSet<Place>>,
    pub(super) conflicts: Vec<Conflict>,
}

struct Merging<'m, 'a, T> {
    base: &'m Side<'a, T>,
    ours: &'m Side<'a, T>,
    theirs: &'m Side<'a, T>,
    merged: Merged,
    /// Those that stay where `ours` has them, whatever else.
    fixed: HashSet<Slot>,
}

/// Merges the places of all inodes; what clashes stays where `ours` has it, and so does what would
/// make the outcome no tree.
///
/// # Errors
/// Those of comparing what one side removed.
pub(super) fn merge<T: Tree>(
    base: &Side<'_, T>,
    ours: &Side<'_, T>,
    theirs: &Side<'_, T>,
) -> SysResult<Merged> {
    let mut merging = Merging {
        base,
        ours,
        theirs,
        merged: Merged {
            places: HashMap::new(),
            conflicts: Vec::new(),
        },
        fixed: HashSet::new(),
    };
    let all: BTreeSet<Slot> = [base, ours, theirs]
        .iter()
        .flat_map(|side| side.places.keys().copied())
        .collect();
    for slot in &all {
        let places = merging.three_ways(*slot)?;
        merging.merged.places.insert(*slot, places);
    }
    // Each round has some stay where they are; when all do, the outcome is `ours`.
    while merging.names_clash()? | merging.directories_are_missing() | merging.has_cycles() {}
    Ok(merging.merged)
}

impl<T: Tree> Merging<'_, '_, T> {
    fn conflict(&mut self, slot: Slot, clash: Clash) {
        let way = [self.ours, self.theirs, self.base]
            .iter()
            .find_map(|side| side.way(slot));
        self.merged.conflicts.push(Conflict {
            path: way.map(|way| way.path()).unwrap_or_default(),
            clash,
            slot,
        });
    }

    /// It stays where `ours` has it. Whether that is news.
    fn fix(&mut self, slot: Slot, clash: Clash) -> bool {
        let places = self.ours.places_of(slot);
        let moved = self.merged.places.insert(slot, places.clone()) != Some(places);
        let fixed = self.fixed.insert(slot);
        if fixed {
            self.conflict(slot, clash);
        }
        fixed || moved
    }

    fn three_ways(&mut self, slot: Slot) -> SysResult<BTreeSet<Place>> {
        let [base, ours, theirs] =
            [self.base, self.ours, self.theirs].map(|side| side.places_of(slot));
        let removed = |now: &BTreeSet<Place>| now.is_empty() && !base.is_empty();
        if removed(&theirs) && !removed(&ours) {
            // Whoever removes a file removes what it held then.
            if ours != base || !self.ours.same_inode(slot, self.base)? {
                self.fix(slot, Clash::Removed(Who::Theirs));
                return Ok(ours);
            }
        } else if removed(&ours)
            && !removed(&theirs)
            && (theirs != base || !self.theirs.same_inode(slot, self.base)?)
        {
            self.fix(slot, Clash::Removed(Who::Ours));
            return Ok(ours);
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
            self.fix(slot, Clash::Moved);
            return Ok(ours);
        }
        let places = &(&ours - &(&base - &theirs)) | &there;
        // Each removed the names that the other one kept: nobody removed the file.
        if places.is_empty() && !removed(&ours) && !removed(&theirs) {
            self.fix(slot, Clash::Moved);
            return Ok(ours);
        }
        Ok(places)
    }

    /// Two inodes at one name: that of `theirs` stays away.
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
            for slot in slots {
                if self.ours.places_of(slot).contains(&place) {
                    continue;
                }
                if self.is_made_twice(slot, &place)? {
                    self.merged.places.insert(slot, BTreeSet::new());
                    any = true;
                } else {
                    any |= self.fix(slot, Clash::Name);
                }
            }
        }
        Ok(any)
    }

    /// Both sides made the same file at a name, which is the only one that it has in either.
    fn is_made_twice(&self, slot: Slot, place: &Place) -> SysResult<bool> {
        let Some((number, there)) = self.ours.number_at(place) else {
            return Ok(false);
        };
        let Some((child, way)) = self.theirs.met.get(&slot) else {
            return Ok(false);
        };
        if child.kind != Kind::File
            || there.kind != Kind::File
            || self.base.has(slot)
            || self.base.has(number)
            || self.theirs.places_of(slot).len() != 1
            || self.ours.places_of(number).len() != 1
        {
            return Ok(false);
        }
        let Some(here) = self.ours.way(number) else {
            return Ok(false);
        };
        let (ours, theirs) = (self.ours.tree, self.theirs.tree);
        Ok(ours.same_content(here, theirs, way)?
            && super::super::has_attrs((ours, here), (theirs, way), false)?)
    }

    fn is_there(&self, dir: Slot) -> bool {
        dir == Slot::ROOT
            || self
                .merged
                .places
                .get(&dir)
                .is_none_or(|places| !places.is_empty())
    }

    /// What is in a directory that goes: the directory stays for what `ours` has in it, and what
    /// `theirs` has in it stays away.
    fn directories_are_missing(&mut self) -> bool {
        let missing: Vec<(Slot, Place)> = self
            .merged
            .places
            .iter()
            .flat_map(|(slot, places)| places.iter().map(|place| (*slot, place.clone())))
            .filter(|(_, place)| !self.is_there(place.parent))
            .collect();
        let mut any = false;
        for (slot, place) in missing {
            any |= if self.ours.places_of(slot).contains(&place) && self.ours.has(place.parent) {
                self.fix(place.parent, Clash::Directory(Who::Theirs))
            } else {
                self.fix(slot, Clash::Directory(Who::Ours))
            };
        }
        any
    }

    /// Directories that are in each other stay where `ours` has them.
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
            any |= self.fix(slot, Clash::Cycle);
        }
        any
    }
}
