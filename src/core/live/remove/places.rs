//! Places of inodes below directories that were born in the open epoch.

use std::collections::HashSet;

use super::Removal;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::Place;

impl Removal {
    /// Adds the places of born directories from `dir` upwards, so that an inode of a checkpoint
    /// below them can be found.
    pub(in crate::live) fn keep_way(&self, dir: Slot, places: &mut Vec<(Slot, Place)>) {
        let (mut at, mut passed) = (dir, HashSet::new());
        while at != Slot::ROOT
            && at != Slot::STAGING
            && self.timeline.epochs.is_born(at)
            && passed.insert(at)
        {
            let Some(place) = self.inodes.likeliest_place(at) else {
                return;
            };
            let up = place.parent;
            self.keep_place(at, place, places);
            at = up;
        }
    }

    pub(in crate::live) fn keep_place(
        &self,
        slot: Slot,
        place: Place,
        places: &mut Vec<(Slot, Place)>,
    ) {
        if self.timeline.lookup.place(slot).as_ref() != Some(&place) {
            places.push((slot, place));
        }
    }
}
