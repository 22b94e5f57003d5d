//! Tags: their checkpoints, and their order in `.snapshots`.
//!
//! The cost of each operation is independent of the number of tags, which any user with permission
//! to make checkpoints can increase.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ckptfs_api::CheckpointId;

/// Returns the offset of a tag, from 1 to 2^60. Two tags collide with a probability of 2^-60.
fn place(tag: &str) -> u64 {
    let mut low = [0_u8; 8];
    low.copy_from_slice(
        blake3::hash(tag.as_bytes())
            .as_bytes()
            .get(..8)
            .unwrap_or(&[0; 8]),
    );
    (u64::from_le_bytes(low) >> 4) + 1
}

/// All tags.
#[derive(Debug, Default)]
pub(super) struct Tags {
    on: BTreeMap<String, CheckpointId>,
    places: BTreeSet<(u64, String)>,
}

impl Tags {
    /// Returns the checkpoint of a tag.
    pub(super) fn get(&self, tag: &str) -> Option<CheckpointId> {
        self.on.get(tag).copied()
    }

    /// Iterates over all tags, sorted.
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, CheckpointId)> {
        self.on.iter().map(|(tag, id)| (tag, *id))
    }

    /// Sets tags on a checkpoint, and removes them from others.
    pub(super) fn give(&mut self, id: CheckpointId, tags: &[String]) {
        for tag in tags {
            if self.on.insert(tag.clone(), id).is_none() {
                self.places.insert((place(tag), tag.clone()));
            }
        }
    }

    /// Removes tags from a checkpoint, except those that another one has.
    pub(super) fn take(&mut self, id: CheckpointId, tags: &[String]) {
        for tag in tags {
            if self.get(tag) == Some(id) {
                self.on.remove(tag);
                self.places.remove(&(place(tag), tag.clone()));
            }
        }
    }

    /// Iterates over the tags with offsets after `place`, in order, each with its offset.
    pub(super) fn after(&self, place: u64) -> impl Iterator<Item = (u64, &String, CheckpointId)> {
        let places = self.places.range((
            Bound::Included((place.saturating_add(1), String::new())),
            Bound::Unbounded,
        ));
        places.filter_map(|(place, tag)| Some((*place, tag, self.get(tag)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_keep_their_places_while_others_come_and_go() {
        let (mut tags, id) = (Tags::default(), CheckpointId);
        let name = |number: u64| format!("t{number}");
        for number in 0..1000 {
            tags.give(id(number), &[name(number)]);
        }
        let order = |tags: &Tags, from| {
            tags.after(from)
                .map(|(place, tag, _)| (place, tag.clone()))
                .collect::<Vec<_>>()
        };
        let all = order(&tags, 0);
        assert!(all.len() == 1000 && all.is_sorted());
        let half = all[499].0;
        for number in (0..1000).step_by(2) {
            tags.take(id(number), &[name(number)]);
        }
        let left: Vec<_> = all
            .into_iter()
            .filter(|(at, tag)| *at > half && tags.get(tag).is_some())
            .collect();
        assert!(left.len() < 500 && order(&tags, half) == left);
        // A tag moved to another checkpoint is listed once, and cannot be removed from the previous
        // one.
        tags.give(id(7), &[name(9)]);
        tags.take(id(9), &[name(9)]);
        assert_eq!(
            (tags.get("t9"), order(&tags, 0).len(), tags.all().count()),
            (Some(id(7)), 500, 500)
        );
    }
}
