//! What `.snapshots` asks of the [`Catalogue`]: its names, a part at a time, and what mkdir(2) made
//! there.

use std::ops::Bound;

use super::catalogue::Catalogue;
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

impl Catalogue {
    /// At most so many tags with places after this one, in their order.
    pub fn tags_after(&self, place: u64, count: usize) -> Vec<Tagged> {
        let checkpoints = self.read();
        let is_directory = |id: CheckpointId, tag: &str| {
            checkpoints
                .get(id)
                .is_some_and(|kept| kept.reason.is_directory(tag))
        };
        let found = checkpoints.tags().after(place).take(count);
        found
            .map(|(place, tag, id)| Tagged {
                place,
                tag: tag.clone(),
                id,
                is_directory: is_directory(id, tag),
            })
            .collect()
    }

    /// At most so many numbers of checkpoints after this one, in their order.
    pub fn ids_after(&self, id: CheckpointId, count: usize) -> Vec<CheckpointId> {
        let checkpoints = self.read();
        checkpoints
            .seen()
            .range((Bound::Excluded(id), Bound::Unbounded))
            .take(count)
            .map(|(id, _)| *id)
            .collect()
    }

    /// The newest checkpoint of the tree as it was in this second since 1970.
    pub fn of_second(&self, second: i64) -> Option<CheckpointId> {
        self.read().of_second(second)
    }

    /// At most so many seconds after this one, in their order, that there are checkpoints of and
    /// that have a name which is no tag, each with the newest.
    pub fn seconds_after(
        &self,
        second: i64,
        name: impl Fn(i64) -> Option<String>,
        count: usize,
    ) -> Vec<(i64, String, CheckpointId)> {
        let checkpoints = self.read();
        let is_free = |name: &String| checkpoints.tags().get(name).is_none();
        let seconds = checkpoints.seconds_after(second);
        let named = seconds.filter_map(|(at, id)| Some((at, name(at).filter(is_free)?, id)));
        named.take(count).collect()
    }

    /// Whether mkdir(2) made a checkpoint under this name, and it has it still.
    pub fn is_directory(&self, id: CheckpointId, tag: &str) -> bool {
        let checkpoints = self.read();
        checkpoints.tags().get(tag) == Some(id)
            && checkpoints
                .get(id)
                .is_some_and(|kept| kept.reason.is_directory(tag))
    }

    /// What mkdir(2) has made, by the user that asked: see [`MadeByMkdir`].
    pub fn made_by_mkdir(&self, uid: u32) -> MadeByMkdir {
        let checkpoints = self.read();
        let mut found = MadeByMkdir::default();
        let made = |reason: &Reason| matches!(reason, Reason::Directory { .. });
        for (kept, _) in checkpoints
            .seen()
            .values()
            .filter(|(kept, _)| made(&kept.reason))
        {
            found.all += 1;
            found.theirs += usize::from(kept.by.as_ref().is_some_and(|by| by.uid == uid));
        }
        for (kept, _) in checkpoints
            .hidden()
            .values()
            .filter(|(kept, _)| made(&kept.reason))
        {
            let theirs = kept.by.as_ref().is_some_and(|by| by.uid == uid);
            found.hidden += 1;
            found.hidden_theirs += usize::from(theirs);
            let oldest = if theirs {
                &mut found.oldest_hidden_theirs
            } else {
                &mut found.oldest_hidden
            };
            if kept.pinned.is_none() {
                oldest.get_or_insert(kept.id);
            }
        }
        found
    }
}
