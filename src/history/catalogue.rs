//! Which checkpoints there are: what can be asked of them without looking at what they hold.

use std::sync::Arc;

use super::append::Appender;
use super::checkpoints::{Checkpoints, Known};
use super::dropped::DroppedVersions;
use super::select::{self, Unselected, select, select_whole};
use super::state::State;
use crate::store::Address;
use crate::store::ids::CheckpointId;
use crate::store::record::{Kept, Record};
use crate::sys::SysResult;
use crate::sys::lock::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Every checkpoint, with its tags and pins. What is asked of it is answered from memory.
pub struct Catalogue {
    journal: Arc<Appender>,
    dropped: Arc<DroppedVersions>,
    checkpoints: RwLock<Checkpoints>,
}

impl Catalogue {
    pub(super) fn new(
        journal: Arc<Appender>,
        dropped: Arc<DroppedVersions>,
        checkpoints: Checkpoints,
    ) -> Catalogue {
        Catalogue {
            journal,
            dropped,
            checkpoints: RwLock::ranked(Rank::Catalogue, checkpoints),
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Checkpoints> {
        self.checkpoints.read()
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Checkpoints> {
        self.checkpoints.write()
    }

    /// A checkpoint for others, with the nearest that they see as its parent.
    fn shown(&self, checkpoints: &Checkpoints, kept: &Kept) -> Kept {
        Kept {
            parent: checkpoints.parent(kept.id),
            has_dropped: self.dropped.shows(kept.id),
            ..kept.clone()
        }
    }

    /// Every checkpoint kept, oldest first.
    pub fn checkpoints(&self) -> Vec<Kept> {
        let checkpoints = self.read();
        checkpoints
            .seen()
            .values()
            .map(|(kept, _)| self.shown(&checkpoints, kept))
            .collect()
    }

    /// Every checkpoint that was deleted or undone and can be brought back, oldest first. What it
    /// needs takes space until it is freed.
    pub fn hidden(&self) -> Vec<Kept> {
        let checkpoints = self.read();
        checkpoints
            .hidden()
            .values()
            .map(|(kept, _)| self.shown(&checkpoints, kept))
            .collect()
    }

    /// Every checkpoint whose versions are in the store, hidden ones too, in no order. All are read
    /// under one lock, so a checkpoint that changes between hidden and shown is never missing.
    pub fn stored(&self) -> Vec<Kept> {
        let checkpoints = self.read();
        checkpoints
            .all()
            .map(|(kept, _)| self.shown(&checkpoints, kept))
            .collect()
    }

    /// The numbers of all checkpoints whose versions are in the store, hidden ones too, oldest
    /// first.
    pub fn stored_ids(&self) -> Vec<CheckpointId> {
        self.retained().into_iter().map(|(id, _)| id).collect()
    }

    /// The checkpoints that are not known to be on disk with all that they need, oldest first.
    pub fn unsynced(&self) -> impl Iterator<Item = Kept> + use<> {
        let synced_ns = self.journal.store().layout.synced_ns().unwrap_or(i64::MIN);
        let checkpoints = self.read();
        let newest_first = checkpoints
            .seen()
            .values()
            .rev()
            .map(|(checkpoint, _)| checkpoint);
        let mut unsynced: Vec<Kept> = newest_first
            .take_while(|checkpoint| checkpoint.created_ns > synced_ns)
            .cloned()
            .collect();
        unsynced.extend(
            checkpoints
                .hidden()
                .values()
                .map(|(kept, _)| kept)
                .filter(|kept| kept.created_ns > synced_ns)
                .cloned(),
        );
        unsynced.sort_by_key(|kept| kept.id);
        unsynced.into_iter()
    }

    /// The number of every checkpoint kept, oldest first.
    pub fn checkpoint_ids(&self) -> Vec<CheckpointId> {
        self.read().seen().keys().copied().collect()
    }

    /// Every checkpoint that something is kept for, and when it was made (nanoseconds since 1970),
    /// oldest first.
    pub fn retained(&self) -> Vec<(CheckpointId, i64)> {
        let mut ids: Vec<_> = self
            .read()
            .all()
            .map(|(kept, _)| (kept.id, kept.created_ns))
            .collect();
        ids.sort_unstable();
        ids
    }

    /// At most `limit` checkpoints that are wanted, newest first.
    pub fn newest(&self, limit: usize, wanted: impl Fn(&Kept) -> bool) -> Vec<Kept> {
        self.newest_before(None, limit, wanted)
    }

    /// As [`Catalogue::newest`], of those before `before`.
    pub fn newest_before(
        &self,
        before: Option<CheckpointId>,
        limit: usize,
        wanted: impl Fn(&Kept) -> bool,
    ) -> Vec<Kept> {
        let checkpoints = self.read();
        let kept = checkpoints
            .seen()
            .range(..before.unwrap_or(CheckpointId(u64::MAX)))
            .rev()
            .map(|(_, (kept, _))| kept);
        kept.filter(|kept| wanted(kept))
            .take(limit)
            .map(|kept| self.shown(&checkpoints, kept))
            .collect()
    }

    /// Number of checkpoints kept.
    pub fn checkpoint_count(&self) -> usize {
        self.read().seen().len()
    }

    /// One checkpoint.
    pub fn checkpoint(&self, id: CheckpointId) -> Option<Kept> {
        let checkpoints = self.read();
        checkpoints
            .get(id)
            .map(|kept| self.shown(&checkpoints, kept))
    }

    /// One checkpoint that is hidden.
    pub fn hidden_checkpoint(&self, id: CheckpointId) -> Option<Kept> {
        let checkpoints = self.read();
        checkpoints
            .hidden()
            .get(&id)
            .map(|(kept, _)| self.shown(&checkpoints, kept))
    }

    /// Whether a checkpoint is kept.
    pub fn has_checkpoint(&self, id: CheckpointId) -> bool {
        self.read().seen().contains_key(&id)
    }

    /// Whether what a checkpoint needs is in the store: it is kept, or hidden.
    pub fn is_stored(&self, id: CheckpointId) -> bool {
        self.read().has(id)
    }

    /// Where in the journal the records after a checkpoint begin.
    pub(super) fn address(&self, id: CheckpointId) -> Option<Address> {
        self.read().address(id)
    }

    /// Whether a checkpoint is named as not whole: what it needs may not have come to the disk.
    pub(super) fn is_incomplete(&self, id: CheckpointId) -> bool {
        self.read()
            .get(id)
            .is_some_and(|checkpoint| checkpoint.is_incomplete())
    }

    /// Whether a checkpoint, or the next one, has what was done right before `epoch` was made, or
    /// is to be made: nothing was restored since that was before.
    pub fn comes_by(&self, id: CheckpointId, epoch: CheckpointId) -> bool {
        self.read().comes_by(id, epoch)
    }

    /// When a checkpoint that is stored was made, nanoseconds since 1970.
    pub fn stored_ns(&self, id: CheckpointId) -> Option<i64> {
        let checkpoints = self.read();
        let stored = checkpoints
            .get(id)
            .or_else(|| checkpoints.hidden().get(&id).map(|(kept, _)| kept));
        stored.map(|kept| kept.created_ns)
    }

    /// When a checkpoint that is kept was made, nanoseconds since 1970.
    pub(super) fn created_ns(&self, id: CheckpointId) -> Option<i64> {
        self.read().get(id).map(|kept| kept.created_ns)
    }

    /// The newest checkpoint that somebody asked for; the newest that the daemon made by itself, if
    /// nobody asked for any.
    pub fn latest(&self) -> Option<CheckpointId> {
        self.read().latest()
    }

    /// The newest checkpoint, whoever made it.
    pub fn last(&self) -> Option<CheckpointId> {
        self.read().seen().last_key_value().map(|(id, _)| *id)
    }

    /// The newest checkpoint whose versions are in the store, hidden or not.
    pub fn newest_stored(&self) -> Option<CheckpointId> {
        let checkpoints = self.read();
        let last = |known: &Known| known.last_key_value().map(|(id, _)| *id);
        last(checkpoints.seen()).max(last(checkpoints.hidden()))
    }

    /// The checkpoint with this tag.
    pub fn tagged(&self, tag: &str) -> Option<CheckpointId> {
        self.read().tags().get(tag)
    }

    /// Every tag, sorted.
    pub fn tags(&self) -> Vec<(String, CheckpointId)> {
        self.read()
            .tags()
            .all()
            .map(|(tag, id)| (tag.clone(), id))
            .collect()
    }

    /// Gives a checkpoint these tags. Nobody asked for it. When it returns that survives `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing changed.
    pub fn set_tags(&self, id: CheckpointId, tags: Vec<String>) -> SysResult<()> {
        self.note(Record::Tags { id, tags })
    }

    /// Hides a checkpoint, or shows it again, on nobody's request and as no operation. When it
    /// returns that survives `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing changed.
    pub fn set_hidden(&self, id: CheckpointId, hidden: bool) -> SysResult<()> {
        self.note(Record::Hidden { id, hidden })
    }

    fn note(&self, record: Record) -> SysResult<()> {
        self.journal.append(std::slice::from_ref(&record))?;
        self.write().apply(record);
        Ok(())
    }

    /// The state that a person means; see [`select`](mod@super::select).
    ///
    /// # Errors
    /// As [`select()`].
    pub fn select(&self, name: &str) -> Result<State, Unselected> {
        self.selected(name, select)
    }

    /// As [`Catalogue::select`], where the beginning of a tag is not enough.
    ///
    /// # Errors
    /// As [`select_whole`].
    pub fn select_whole(&self, name: &str) -> Result<State, Unselected> {
        self.selected(name, select_whole)
    }

    fn selected(
        &self,
        name: &str,
        select: fn(&str, &[select::Known<'_>]) -> Result<State, Unselected>,
    ) -> Result<State, Unselected> {
        let checkpoints = self.read();
        // What most ask for is found without looking at each.
        let found = match name {
            "latest" => checkpoints.latest(),
            tag => {
                let numbered = || {
                    tag.parse()
                        .map(CheckpointId)
                        .ok()
                        .filter(|id| checkpoints.seen().contains_key(id))
                };
                checkpoints.tags().get(tag).or_else(numbered)
            }
        };
        if let Some(id) = found {
            return Ok(State::At(id));
        }
        let known: Vec<select::Known<'_>> = checkpoints
            .seen()
            .values()
            .map(|(kept, _)| select::Known {
                id: kept.id,
                tags: &kept.tags,
                state_ns: kept.state_ns(),
                reason: &kept.reason,
            })
            .collect();
        select(name, &known)
    }
}
