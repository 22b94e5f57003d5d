//! In-memory table of the stored checkpoints.

use std::collections::{BTreeMap, BTreeSet};

use super::tags::Tags;
use ckptfs_api::{CheckpointId, Reason};
use ckptfs_store::Address;
use ckptfs_store::lineage::Lineage;
use ckptfs_store::record::{CheckpointState, Record, is_tag};

/// Checkpoints by id, with the journal addresses of their records.
pub(super) type CheckpointMap = BTreeMap<CheckpointId, (CheckpointState, Address)>;

/// The stored checkpoints, their tags and their lineage.
#[derive(Default)]
pub(super) struct CheckpointTable {
    /// Visible checkpoints.
    seen: CheckpointMap,
    /// Hidden checkpoints: deleted or undone, but their versions are still needed.
    hidden: CheckpointMap,
    lineage: Lineage,
    tags: Tags,
    /// Visible checkpoints by the second since 1970 of their displayed time.
    seconds: BTreeSet<(i64, CheckpointId)>,
    /// Number of times that the last checkpoint was removed.
    emptied: u64,
}

/// Returns the second since 1970 of a checkpoint's displayed time.
fn second(kept: &CheckpointState) -> i64 {
    kept.state_ns().div_euclid(1_000_000_000)
}

impl CheckpointTable {
    /// Creates an empty table with a lineage.
    pub(super) fn of(lineage: Lineage) -> CheckpointTable {
        CheckpointTable {
            lineage,
            ..CheckpointTable::default()
        }
    }

    pub(super) fn seen(&self) -> &CheckpointMap {
        &self.seen
    }

    pub(super) fn hidden(&self) -> &CheckpointMap {
        &self.hidden
    }

    pub(super) fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Number of times that the last checkpoint was removed, from which time changes were not
    /// recorded.
    pub(super) fn emptied(&self) -> u64 {
        self.emptied
    }

    /// Whether no checkpoint is stored. Then no key has a past: captures could neither be queried
    /// nor removed.
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty() && self.hidden.is_empty()
    }

    /// Returns a visible checkpoint.
    pub(super) fn get(&self, id: CheckpointId) -> Option<&CheckpointState> {
        self.seen.get(&id).map(|(kept, _)| kept)
    }

    /// Whether the checkpoint is stored, visible or hidden.
    pub(super) fn has(&self, id: CheckpointId) -> bool {
        self.seen.contains_key(&id) || self.hidden.contains_key(&id)
    }

    /// Returns the journal address where the records after a checkpoint begin.
    pub(super) fn address(&self, id: CheckpointId) -> Option<Address> {
        self.seen
            .get(&id)
            .or_else(|| self.hidden.get(&id))
            .map(|(_, address)| *address)
    }

    /// Iterates over all stored checkpoints, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &(CheckpointState, Address)> {
        self.seen.values().chain(self.hidden.values())
    }

    /// Returns the newest requested checkpoint, otherwise the newest automatic one.
    pub(super) fn latest(&self) -> Option<CheckpointId> {
        let newest = |wanted: fn(&Reason) -> bool| {
            self.seen
                .values()
                .rev()
                .find(|(checkpoint, _)| wanted(&checkpoint.reason))
        };
        newest(Reason::is_asked)
            .or_else(|| newest(Reason::is_auto))
            .map(|(checkpoint, _)| checkpoint.id)
    }

    /// Returns the newest requested checkpoint that the future checkpoint `next` descends from.
    pub(super) fn base(&self, next: CheckpointId) -> Option<CheckpointId> {
        let asked = |to| {
            self.seen
                .range(..=to)
                .rev()
                .find(|(_, (kept, _))| kept.reason.is_asked())
                .map(|(id, _)| *id)
        };
        self.lineage.parent(next, asked).or_else(|| self.latest())
    }

    /// As [`Lineage::comes_by`].
    pub(super) fn comes_by(&self, id: CheckpointId, epoch: CheckpointId) -> bool {
        self.lineage.comes_by(id, epoch)
    }

    /// Returns the nearest visible ancestor.
    pub(super) fn parent(&self, id: CheckpointId) -> Option<CheckpointId> {
        self.lineage.parent(id, |id| {
            self.seen.range(..=id).next_back().map(|(id, _)| *id)
        })
    }

    /// Returns the newest visible checkpoint with a displayed time in a second since 1970.
    pub(super) fn of_second(&self, second: i64) -> Option<CheckpointId> {
        let all = (second, CheckpointId(0))..=(second, CheckpointId(u64::MAX));
        self.seconds.range(all).next_back().map(|(_, id)| *id)
    }

    /// Iterates over the displayed seconds after `second`, each with its newest checkpoint.
    pub(super) fn seconds_after(
        &self,
        second: i64,
    ) -> impl Iterator<Item = (i64, CheckpointId)> + '_ {
        let mut at = Some(second);
        std::iter::from_fn(move || {
            let from = (at?.checked_add(1)?, CheckpointId(0));
            at = self.seconds.range(from..).next().map(|(next, _)| *next);
            Some((at?, self.of_second(at?)?))
        })
    }

    /// Removes the tags and the time of a checkpoint.
    fn unname(&mut self, kept: &CheckpointState) {
        self.tags.take(kept.id, &kept.tags);
        self.seconds.remove(&(second(kept), kept.id));
    }

    pub(super) fn put(&mut self, kept: CheckpointState, address: Address) {
        if kept.hidden {
            self.hidden.insert(kept.id, (kept, address));
            return;
        }
        if let Some((before, _)) = self.seen.remove(&kept.id) {
            self.unname(&before);
        }
        self.tags.give(kept.id, &kept.tags);
        self.seconds.insert((second(&kept), kept.id));
        self.seen.insert(kept.id, (kept, address));
    }

    /// Applies a journal record that changes checkpoints.
    pub(super) fn apply(&mut self, record: Record) {
        match record {
            Record::Tags { id, tags } => self.retag(id, tags),
            Record::Pinned { id, reason } => self.pin(id, &reason),
            Record::Hidden { id, hidden } => self.hide(id, hidden),
            Record::Deleted { id } => self.remove(id),
            Record::RestoreBegin {
                target,
                guard,
                paths,
            } => drop(self.lineage.restored(target, guard, &paths)),
            _ => {}
        }
    }

    fn remove(&mut self, id: CheckpointId) {
        if let Some((kept, _)) = self.seen.remove(&id) {
            self.unname(&kept);
        }
        self.hidden.remove(&id);
        self.emptied += u64::from(self.is_empty());
    }

    fn retag(&mut self, id: CheckpointId, mut tags: Vec<String>) {
        tags.retain(|tag| is_tag(tag));
        if let Some((kept, _)) = self.hidden.get_mut(&id) {
            kept.checkpoint.tags = tags;
            return;
        }
        if let Some((kept, _)) = self.seen.get_mut(&id) {
            self.tags.take(id, &kept.tags);
            self.tags.give(id, &tags);
            kept.checkpoint.tags = tags;
        }
    }

    fn pin(&mut self, id: CheckpointId, pinned: &Option<String>) {
        for known in [&mut self.seen, &mut self.hidden] {
            if let Some((kept, _)) = known.get_mut(&id) {
                kept.pinned.clone_from(pinned);
            }
        }
    }

    fn hide(&mut self, id: CheckpointId, hidden: bool) {
        let known = if hidden {
            self.seen.remove(&id)
        } else {
            self.hidden.remove(&id)
        };
        if let Some((kept, address)) = known {
            self.unname(&kept);
            self.put(CheckpointState { hidden, ..kept }, address);
        }
    }

    /// Removes lineage that no query can refer to any more.
    pub(super) fn forget(&mut self, lineage: &BTreeSet<CheckpointId>) {
        self.lineage.forget(lineage);
    }
}
