//! The catalogue of checkpoints: queries that do not depend on their content.

use std::sync::Arc;

use super::append::Appender;
use super::checkpoints::{CheckpointMap, CheckpointTable};
use super::dropped::DroppedVersions;
use super::select::{self, SelectError, select, select_whole};
use super::state::TreeState;
use ckptfs_api::CheckpointId;
use ckptfs_store::Address;
use ckptfs_store::record::{CheckpointState, Record};
use ckptfs_sys::SysResult;
use ckptfs_sys::lock::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// All checkpoints with their tags and pins, in memory.
pub struct Catalogue {
    journal: Arc<Appender>,
    dropped: Arc<DroppedVersions>,
    checkpoints: RwLock<CheckpointTable>,
}

impl Catalogue {
    pub(super) fn new(
        journal: Arc<Appender>,
        dropped: Arc<DroppedVersions>,
        checkpoints: CheckpointTable,
    ) -> Catalogue {
        Catalogue {
            journal,
            dropped,
            checkpoints: RwLock::ranked(Rank::Catalogue, checkpoints),
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, CheckpointTable> {
        self.checkpoints.read()
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, CheckpointTable> {
        self.checkpoints.write()
    }

    /// Returns a checkpoint as callers see it, with its nearest visible ancestor as the parent.
    fn shown(&self, checkpoints: &CheckpointTable, kept: &CheckpointState) -> CheckpointState {
        CheckpointState {
            parent: checkpoints.parent(kept.id),
            has_dropped: self.dropped.shows(kept.id),
            ..kept.clone()
        }
    }

    /// Returns all visible checkpoints, oldest first.
    pub fn checkpoints(&self) -> Vec<CheckpointState> {
        let checkpoints = self.read();
        checkpoints
            .seen()
            .values()
            .map(|(kept, _)| self.shown(&checkpoints, kept))
            .collect()
    }

    /// Returns all hidden checkpoints, oldest first. They were deleted or undone and can be
    /// unhidden. Their versions take space until they are freed.
    pub fn hidden(&self) -> Vec<CheckpointState> {
        let checkpoints = self.read();
        checkpoints
            .hidden()
            .values()
            .map(|(kept, _)| self.shown(&checkpoints, kept))
            .collect()
    }

    /// Returns all checkpoints whose versions are in the store, including hidden ones, in no order.
    /// One lock covers the whole read, so a checkpoint that is hidden or unhidden concurrently is
    /// never missing.
    pub fn stored(&self) -> Vec<CheckpointState> {
        let checkpoints = self.read();
        checkpoints
            .all()
            .map(|(kept, _)| self.shown(&checkpoints, kept))
            .collect()
    }

    /// Returns the ids of all checkpoints whose versions are in the store, including hidden ones,
    /// oldest first.
    pub fn stored_ids(&self) -> Vec<CheckpointId> {
        self.retained().into_iter().map(|(id, _)| id).collect()
    }

    /// Iterates over checkpoints not known to be complete on disk, oldest first.
    pub fn unsynced(&self) -> impl Iterator<Item = CheckpointState> + use<> {
        let synced_ns = self.journal.store().layout.synced_ns().unwrap_or(i64::MIN);
        let checkpoints = self.read();
        let newest_first = checkpoints
            .seen()
            .values()
            .rev()
            .map(|(checkpoint, _)| checkpoint);
        let mut unsynced: Vec<CheckpointState> = newest_first
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

    /// Returns the ids of all visible checkpoints, oldest first.
    pub fn checkpoint_ids(&self) -> Vec<CheckpointId> {
        self.read().seen().keys().copied().collect()
    }

    /// Returns all checkpoints whose versions are in the store, with their creation time
    /// (nanoseconds since 1970), oldest first.
    pub fn retained(&self) -> Vec<(CheckpointId, i64)> {
        let mut ids: Vec<_> = self
            .read()
            .all()
            .map(|(kept, _)| (kept.id, kept.created_ns))
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Returns up to `limit` visible checkpoints that satisfy `wanted`, newest first.
    pub fn newest(
        &self,
        limit: usize,
        wanted: impl Fn(&CheckpointState) -> bool,
    ) -> Vec<CheckpointState> {
        self.newest_before(None, limit, wanted)
    }

    /// As [`Catalogue::newest`], for checkpoints older than `before`.
    pub fn newest_before(
        &self,
        before: Option<CheckpointId>,
        limit: usize,
        wanted: impl Fn(&CheckpointState) -> bool,
    ) -> Vec<CheckpointState> {
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

    /// Returns the number of visible checkpoints.
    pub fn checkpoint_count(&self) -> usize {
        self.read().seen().len()
    }

    /// Returns a visible checkpoint.
    pub fn checkpoint(&self, id: CheckpointId) -> Option<CheckpointState> {
        let checkpoints = self.read();
        checkpoints
            .get(id)
            .map(|kept| self.shown(&checkpoints, kept))
    }

    /// Returns a hidden checkpoint.
    pub fn hidden_checkpoint(&self, id: CheckpointId) -> Option<CheckpointState> {
        let checkpoints = self.read();
        checkpoints
            .hidden()
            .get(&id)
            .map(|(kept, _)| self.shown(&checkpoints, kept))
    }

    /// Whether a visible checkpoint has this id.
    pub fn has_checkpoint(&self, id: CheckpointId) -> bool {
        self.read().seen().contains_key(&id)
    }

    /// Whether the versions of a checkpoint are in the store: it is visible or hidden.
    pub fn is_stored(&self, id: CheckpointId) -> bool {
        self.read().has(id)
    }

    /// Returns the journal address where the records after a checkpoint begin.
    pub(super) fn address(&self, id: CheckpointId) -> Option<Address> {
        self.read().address(id)
    }

    /// Whether a checkpoint is tagged as incomplete: its versions may not have reached the disk.
    pub(super) fn is_incomplete(&self, id: CheckpointId) -> bool {
        self.read()
            .get(id)
            .is_some_and(|checkpoint| checkpoint.is_incomplete())
    }

    /// Whether a checkpoint, existing or next, includes the changes made directly before `epoch`:
    /// no restore since then went back to an earlier state.
    pub fn comes_by(&self, id: CheckpointId, epoch: CheckpointId) -> bool {
        self.read().comes_by(id, epoch)
    }

    /// Returns the creation time of a stored checkpoint, in nanoseconds since 1970.
    pub fn stored_ns(&self, id: CheckpointId) -> Option<i64> {
        let checkpoints = self.read();
        let stored = checkpoints
            .get(id)
            .or_else(|| checkpoints.hidden().get(&id).map(|(kept, _)| kept));
        stored.map(|kept| kept.created_ns)
    }

    /// Returns the creation time of a visible checkpoint, in nanoseconds since 1970.
    pub(super) fn created_ns(&self, id: CheckpointId) -> Option<i64> {
        self.read().get(id).map(|kept| kept.created_ns)
    }

    /// Returns the newest requested checkpoint, otherwise the newest automatic one.
    pub fn latest(&self) -> Option<CheckpointId> {
        self.read().latest()
    }

    /// Returns the newest visible checkpoint of any kind.
    pub fn last(&self) -> Option<CheckpointId> {
        self.read().seen().last_key_value().map(|(id, _)| *id)
    }

    /// Returns the newest stored checkpoint, visible or hidden.
    pub fn newest_stored(&self) -> Option<CheckpointId> {
        let checkpoints = self.read();
        let last = |known: &CheckpointMap| known.last_key_value().map(|(id, _)| *id);
        last(checkpoints.seen()).max(last(checkpoints.hidden()))
    }

    /// Returns the checkpoint with this tag.
    pub fn tagged(&self, tag: &str) -> Option<CheckpointId> {
        self.read().tags().get(tag)
    }

    /// Returns all tags, sorted.
    pub fn tags(&self) -> Vec<(String, CheckpointId)> {
        self.read()
            .tags()
            .all()
            .map(|(tag, id)| (tag.clone(), id))
            .collect()
    }

    /// Sets the tags of a checkpoint without an operation. On return this survives `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing changed.
    pub fn set_tags(&self, id: CheckpointId, tags: Vec<String>) -> SysResult<()> {
        self.note(Record::Tags { id, tags })
    }

    /// Hides or unhides a checkpoint without an operation. On return this survives `kill -9`.
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

    /// Resolves a name given by the user to a state; see [`select`](mod@super::select).
    ///
    /// # Errors
    /// As [`select()`].
    pub fn select(&self, name: &str) -> Result<TreeState, SelectError> {
        self.selected(name, select)
    }

    /// As [`Catalogue::select`], without matching of tag prefixes.
    ///
    /// # Errors
    /// As [`select_whole`].
    pub fn select_whole(&self, name: &str) -> Result<TreeState, SelectError> {
        self.selected(name, select_whole)
    }

    fn selected(
        &self,
        name: &str,
        select: fn(&str, &[select::SelectCandidate<'_>]) -> Result<TreeState, SelectError>,
    ) -> Result<TreeState, SelectError> {
        let checkpoints = self.read();
        // Fast path for `latest`, tags and ids.
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
            return Ok(TreeState::At(id));
        }
        let known: Vec<select::SelectCandidate<'_>> = checkpoints
            .seen()
            .values()
            .map(|(kept, _)| select::SelectCandidate {
                id: kept.id,
                tags: &kept.tags,
                state_ns: kept.state_ns(),
                reason: &kept.reason,
            })
            .collect();
        select(name, &known)
    }
}
