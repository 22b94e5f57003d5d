//! The checkpoints that something is kept for, as they are in memory.

use std::collections::{BTreeMap, BTreeSet};

use super::tags::Tags;
use crate::store::Address;
use crate::store::ids::CheckpointId;
use crate::store::lineage::Lineage;
use crate::store::record::{Kept, Reason, Record, is_tag};

/// Checkpoints by their number, each with where its record is in the journal.
pub(super) type Known = BTreeMap<CheckpointId, (Kept, Address)>;

/// The checkpoints, their tags, and where they come from.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// Those that can be seen.
    seen: Known,
    /// Those that nobody sees and that need what they need all the same: they were deleted or
    /// undone.
    hidden: Known,
    /// Where they come from.
    lineage: Lineage,
    tags: Tags,
    /// Those that can be seen, by the second since 1970 that each shows.
    seconds: BTreeSet<(i64, CheckpointId)>,
    /// How often the last one went.
    emptied: u64,
}

/// The second since 1970 that a checkpoint shows.
fn second(kept: &Kept) -> i64 {
    kept.state_ns().div_euclid(1_000_000_000)
}

impl Checkpoints {
    /// None, which come from one another like this.
    pub(super) fn of(lineage: Lineage) -> Checkpoints {
        Checkpoints {
            lineage,
            ..Checkpoints::default()
        }
    }

    /// Those that can be seen.
    pub(super) fn seen(&self) -> &Known {
        &self.seen
    }

    /// Those that were deleted or undone.
    pub(super) fn hidden(&self) -> &Known {
        &self.hidden
    }

    pub(super) fn tags(&self) -> &Tags {
        &self.tags
    }

    /// How often the last one went, so that changes made no record.
    pub(super) fn emptied(&self) -> u64 {
        self.emptied
    }

    /// Without checkpoints nothing has a past: nobody could ask for what was kept, and nothing
    /// would ever remove it.
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty() && self.hidden.is_empty()
    }

    /// One that can be seen.
    pub(super) fn get(&self, id: CheckpointId) -> Option<&Kept> {
        self.seen.get(&id).map(|(kept, _)| kept)
    }

    /// Whether there is such a checkpoint, hidden or not.
    pub(super) fn has(&self, id: CheckpointId) -> bool {
        self.seen.contains_key(&id) || self.hidden.contains_key(&id)
    }

    /// Where in the journal the records after a checkpoint begin.
    pub(super) fn address(&self, id: CheckpointId) -> Option<Address> {
        self.seen
            .get(&id)
            .or_else(|| self.hidden.get(&id))
            .map(|(_, address)| *address)
    }

    /// All, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &(Kept, Address)> {
        self.seen.values().chain(self.hidden.values())
    }

    /// The newest that somebody asked for; the newest that the daemon made by itself, if nobody
    /// asked for any.
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

    /// The newest that somebody asked for and that the one with this number, which is yet to be
    /// made, comes from.
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

    /// The nearest that can be seen of those that it comes from.
    pub(super) fn parent(&self, id: CheckpointId) -> Option<CheckpointId> {
        self.lineage.parent(id, |id| {
            self.seen.range(..=id).next_back().map(|(id, _)| *id)
        })
    }

    /// The newest of those that show a second since 1970.
    pub(super) fn of_second(&self, second: i64) -> Option<CheckpointId> {
        let all = (second, CheckpointId(0))..=(second, CheckpointId(u64::MAX));
        self.seconds.range(all).next_back().map(|(_, id)| *id)
    }

    /// The seconds after one that are shown, each with the newest checkpoint that shows it.
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

    /// It has these tags and this time no more.
    fn unname(&mut self, kept: &Kept) {
        self.tags.take(kept.id, &kept.tags);
        self.seconds.remove(&(second(kept), kept.id));
    }

    pub(super) fn put(&mut self, kept: Kept, address: Address) {
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

    /// Does what a record says was done to checkpoints.
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
            self.put(Kept { hidden, ..kept }, address);
        }
    }

    /// Nobody can ask any more where these come from.
    pub(super) fn forget(&mut self, lineage: &BTreeSet<CheckpointId>) {
        self.lineage.forget(lineage);
    }
}
