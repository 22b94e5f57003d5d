//! Inodes that earlier merges recorded as one although their numbers differ.

use std::collections::HashMap;

use ckptfs_store::ids::Slot;
use ckptfs_store::layout::merges::InodeBirth;

/// Equivalence classes of inodes: the inode that a merge created from another is the same inode, in
/// both trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InodeClasses {
    classes: Vec<Vec<InodeBirth>>,
    /// Number -> the inodes that have or had it, with the class of each.
    of: HashMap<Slot, Vec<(InodeBirth, usize)>>,
}

impl InodeClasses {
    /// Builds the classes from pairs.
    pub fn new(pairs: impl IntoIterator<Item = [InodeBirth; 2]>) -> InodeClasses {
        let mut same = InodeClasses::default();
        for [one, other] in pairs {
            let (kept, gone) = (same.class(one), same.class(other));
            if kept == gone {
                continue;
            }
            let moved = same
                .classes
                .get_mut(gone)
                .map(std::mem::take)
                .unwrap_or_default();
            for birth in &moved {
                let known = same.of.get_mut(&birth.0).into_iter().flatten();
                for (_, class) in known.filter(|(known, _)| known == birth) {
                    *class = kept;
                }
            }
            if let Some(class) = same.classes.get_mut(kept) {
                class.extend(moved);
            }
        }
        same
    }

    fn class(&mut self, birth: InodeBirth) -> usize {
        let known = self.of.entry(birth.0).or_default();
        if let Some((_, class)) = known.iter().find(|(known, _)| *known == birth) {
            return *class;
        }
        let class = self.classes.len();
        known.push((birth, class));
        self.classes.push(vec![birth]);
        class
    }

    /// Returns the class of every inode that has or had this number.
    pub fn of_number(&self, slot: Slot) -> impl Iterator<Item = &[InodeBirth]> {
        let known = self.of.get(&slot).into_iter().flatten();
        known.filter_map(|(_, class)| self.classes.get(*class).map(Vec::as_slice))
    }

    /// Returns the class of this inode, including itself; empty if it is in no pair.
    pub fn of(&self, birth: InodeBirth) -> &[InodeBirth] {
        let known = self.of.get(&birth.0).into_iter().flatten();
        let class = known
            .filter(|(known, _)| *known == birth)
            .find_map(|(_, class)| self.classes.get(*class));
        class.map_or(&[], Vec::as_slice)
    }

    /// Reports whether any pair has an inode with this number.
    pub fn knows(&self, slot: Slot) -> bool {
        self.of.contains_key(&slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ckptfs_sys::Time;

    #[test]
    fn what_is_one_with_another_is_one_with_all_that_are_one_with_it() {
        let birth = |slot, sec| (Slot(slot), Some(Time { sec, nsec: 0 }));
        let same = InodeClasses::new([
            [birth(1, 0), birth(2, 0)],
            [birth(3, 0), birth(4, 0)],
            // The number 1 was reused.
            [birth(1, 5), birth(6, 0)],
            [birth(4, 0), birth(2, 0)],
        ]);
        let mut one: Vec<u64> = same
            .of(birth(3, 0))
            .iter()
            .map(|(slot, _)| slot.0)
            .collect();
        one.sort_unstable();
        assert_eq!(one, [1, 2, 3, 4]);
        assert_eq!(same.of(birth(1, 5)).len(), 2);
        assert!(same.of(birth(1, 9)).is_empty() && same.knows(Slot(1)) && !same.knows(Slot(9)));
        assert_eq!(same.of_number(Slot(1)).count(), 2);
    }
}
