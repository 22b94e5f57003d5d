//! Tags: which checkpoint each is on, and the order in which `.snapshots` lists them.
//!
//! Each step costs what it is about, and not how many tags there are: whoever may make checkpoints decides how many that is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::timeline::Timeline;
use crate::store::ids::CheckpointId;
use crate::store::record::Reason;

/// A tag as a name of `.snapshots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Its place in the order, which stays while others come and go.
    pub place: u64,
    /// The tag.
    pub tag: String,
    /// The checkpoint that has it.
    pub id: CheckpointId,
    /// mkdir(2) made the checkpoint under this name.
    pub is_directory: bool,
}

/// The place of a tag: from 1 to 2^60, and that of no other but by a chance of 2^-60.
fn place(tag: &str) -> u64 {
    let mut low = [0_u8; 8];
    low.copy_from_slice(blake3::hash(tag.as_bytes()).as_bytes().get(..8).unwrap_or(&[0; 8]));
    (u64::from_le_bytes(low) >> 4) + 1
}

/// All tags.
#[derive(Debug, Default)]
pub(super) struct Tags {
    on: BTreeMap<String, CheckpointId>,
    places: BTreeSet<(u64, String)>,
}

impl Tags {
    /// The checkpoint that has the tag.
    pub(super) fn get(&self, tag: &str) -> Option<CheckpointId> {
        self.on.get(tag).copied()
    }

    /// Every tag, sorted.
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, CheckpointId)> {
        self.on.iter().map(|(tag, id)| (tag, *id))
    }

    /// A checkpoint has these tags, and whoever had one of them has it no more.
    pub(super) fn give(&mut self, id: CheckpointId, tags: &[String]) {
        for tag in tags {
            if self.on.insert(tag.clone(), id).is_none() {
                self.places.insert((place(tag), tag.clone()));
            }
        }
    }

    /// A checkpoint has these tags no more; those that another has stay.
    pub(super) fn take(&mut self, id: CheckpointId, tags: &[String]) {
        for tag in tags {
            if self.get(tag) == Some(id) {
                self.on.remove(tag);
                self.places.remove(&(place(tag), tag.clone()));
            }
        }
    }

    fn after(&self, place: u64) -> impl Iterator<Item = (u64, &String, CheckpointId)> {
        let places = self.places.range((Bound::Included((place.saturating_add(1), String::new())), Bound::Unbounded));
        places.filter_map(|(place, tag)| Some((*place, tag, self.get(tag)?)))
    }
}

impl Timeline {
    /// At most so many tags with places after this one, in their order.
    pub fn tags_after(&self, place: u64, count: usize) -> Vec<Tagged> {
        let inner = self.inner.read();
        let is_directory = |id: CheckpointId, tag: &str| inner.checkpoints.get(&id).is_some_and(|(kept, _)| kept.reason.is_directory(tag));
        let found = inner.tags.after(place).take(count);
        found.map(|(place, tag, id)| Tagged { place, tag: tag.clone(), id, is_directory: is_directory(id, tag) }).collect()
    }

    /// At most so many numbers of checkpoints after this one, in their order.
    pub fn ids_after(&self, id: CheckpointId, count: usize) -> Vec<CheckpointId> {
        let inner = self.inner.read();
        inner.checkpoints.range((Bound::Excluded(id), Bound::Unbounded)).take(count).map(|(id, _)| *id).collect()
    }

    /// Whether mkdir(2) made a checkpoint under this name, and it has it still.
    pub fn is_directory(&self, id: CheckpointId, tag: &str) -> bool {
        let inner = self.inner.read();
        inner.tags.get(tag) == Some(id) && inner.checkpoints.get(&id).is_some_and(|(kept, _)| kept.reason.is_directory(tag))
    }

    /// What mkdir(2) has made, by the user that asked: see [`MadeByMkdir`].
    pub fn made_by_mkdir(&self, uid: u32) -> MadeByMkdir {
        let inner = self.inner.read();
        let mut found = MadeByMkdir::default();
        let made = |reason: &Reason| matches!(reason, Reason::Directory { .. });
        for (kept, _) in inner.checkpoints.values().filter(|(kept, _)| made(&kept.reason)) {
            found.all += 1;
            found.theirs += usize::from(kept.by.as_ref().is_some_and(|by| by.uid == uid));
        }
        for (kept, _) in inner.hidden.values().filter(|(kept, _)| made(&kept.reason)) {
            let theirs = kept.by.as_ref().is_some_and(|by| by.uid == uid);
            found.hidden += 1;
            found.hidden_theirs += usize::from(theirs);
            let oldest = if theirs { &mut found.oldest_hidden_theirs } else { &mut found.oldest_hidden };
            if kept.pinned.is_none() {
                oldest.get_or_insert(kept.id);
            }
        }
        found
    }
}

/// How many checkpoints mkdir(2) in `.snapshots` has made that are in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadeByMkdir {
    /// By one user, and seen.
    pub theirs: usize,
    /// By all.
    pub all: usize,
    /// By one user, and deleted or undone.
    pub hidden_theirs: usize,
    /// By all.
    pub hidden: usize,
    /// The oldest of the first of these that is not pinned.
    pub oldest_hidden_theirs: Option<CheckpointId>,
    /// The oldest by others.
    pub oldest_hidden: Option<CheckpointId>,
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
        let order = |tags: &Tags, from| tags.after(from).map(|(place, tag, _)| (place, tag.clone())).collect::<Vec<_>>();
        let all = order(&tags, 0);
        assert!(all.len() == 1000 && all.is_sorted());
        let half = all[499].0;
        for number in (0..1000).step_by(2) {
            tags.take(id(number), &[name(number)]);
        }
        let left: Vec<_> = all.into_iter().filter(|(at, tag)| *at > half && tags.get(tag).is_some()).collect();
        assert!(left.len() < 500 && order(&tags, half) == left);
        // Moved to another checkpoint, it is there once, and the one before cannot take it away.
        tags.give(id(7), &[name(9)]);
        tags.take(id(9), &[name(9)]);
        assert_eq!((tags.get("t9"), order(&tags, 0).len(), tags.all().count()), (Some(id(7)), 500, 500));
    }
}
