//! Queries of `.snapshots` to the [`Catalogue`]: paged names, and checkpoints created by mkdir(2).

use std::ops::Bound;

use super::catalogue::Catalogue;
use ckptfs_api::{CheckpointId, Reason};

/// A tag as a name in `.snapshots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Its offset in the listing, which is stable while other tags are added and removed.
    pub place: u64,
    /// The tag.
    pub tag: String,
    /// Its checkpoint.
    pub id: CheckpointId,
    /// mkdir(2) created the checkpoint with this name.
    pub is_directory: bool,
}

/// Number of stored checkpoints created by mkdir(2) in `.snapshots`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadeByMkdir {
    /// Visible ones of one user.
    pub theirs: usize,
    /// Visible ones of all users.
    pub all: usize,
    /// Hidden ones of one user.
    pub hidden_theirs: usize,
    /// Hidden ones of all users.
    pub hidden: usize,
    /// The user's oldest hidden one that is not pinned.
    pub oldest_hidden_theirs: Option<CheckpointId>,
    /// The oldest hidden one of other users that is not pinned.
    pub oldest_hidden: Option<CheckpointId>,
}

impl Catalogue {
    /// Returns up to `count` tags with offsets after `place`, in order.
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

    /// Returns up to `count` ids of checkpoints after `id`, in order.
    pub fn ids_after(&self, id: CheckpointId, count: usize) -> Vec<CheckpointId> {
        let checkpoints = self.read();
        checkpoints
            .seen()
            .range((Bound::Excluded(id), Bound::Unbounded))
            .take(count)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Returns the newest checkpoint with a displayed time in this second since 1970.
    pub fn of_second(&self, second: i64) -> Option<CheckpointId> {
        self.read().of_second(second)
    }

    /// Returns up to `count` seconds after `second` that have checkpoints, in order, each with its
    /// name and newest checkpoint. Seconds without a name, or whose name is a tag, are skipped.
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

    /// Whether mkdir(2) created a checkpoint with this name, and the name still refers to it.
    pub fn is_directory(&self, id: CheckpointId, tag: &str) -> bool {
        let checkpoints = self.read();
        checkpoints.tags().get(tag) == Some(id)
            && checkpoints
                .get(id)
                .is_some_and(|kept| kept.reason.is_directory(tag))
    }

    /// Counts the checkpoints created by mkdir(2), for one user and in total.
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
