//! Selects journal records of checkpoints and operations that no request can reach any more,
//! because checkpoints were freed.
//!
//! The rules:
//! - a *checkpoint* is forgotten once it is freed, with all records about it. Records of its
//!   creation and deletion stay while an older checkpoint is kept, because they mark ends of
//!   epochs, which attribute changes to processes. Never forgotten are the newest checkpoint, so
//!   that no id is reused, one whose epoch is not indexed yet, and the one whose record the index
//!   has applied last;
//! - an *operation* is forgotten if all its checkpoints are. Exceptions are the newest (for its
//!   number), one related to an operation that stays (which it undoes, or which undoes it), and one
//!   that ended a redo line with an operation that stays;
//! - a *restore* is forgotten if it is complete and its guard is forgotten, unless the parent of
//!   the checkpoint after it still counts ([`Lineage::unneeded`]);
//! - *mounts and absences* are forgotten if they ended before the oldest kept checkpoint, with the
//!   records about them;
//! - *dropped versions* are forgotten if no kept checkpoint showed them.
//!
//! The selection is monotonic: with a longer journal all earlier results are found again, because a
//! deletion is final and nothing is added about forgotten items alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::journal::Address;
use super::lineage::Lineage;
use super::operation::UndoStacks;
use super::record::{Record, range_of};
use ckptfs_api::{CheckpointId, Epoch};

/// Items to forget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiredItems {
    /// Checkpoints.
    pub checkpoints: BTreeSet<CheckpointId>,
    /// Checkpoints whose parent is not the preceding checkpoint, and no longer counts.
    pub lineage: BTreeSet<CheckpointId>,
    /// Operations.
    pub operations: BTreeSet<u64>,
    /// Absences, by their ends.
    pub absences: BTreeSet<i64>,
    /// Records of dropped versions, by layer and address.
    pub dropped: BTreeSet<(Epoch, Address)>,
    /// All records to remove.
    pub records: HashSet<Address>,
}

/// Records of such items in a journal, read from its start.
#[derive(Default)]
pub(super) struct ExpiryScan {
    made: BTreeMap<CheckpointId, Address>,
    deleted: HashMap<CheckpointId, Address>,
    /// Records about one checkpoint, and whether each is its creation or deletion.
    about: Vec<(Address, CheckpointId, bool)>,
    restores: Vec<RestoreEntry>,
    lineage: Lineage,
    operations: Vec<OperationEntry>,
    /// Mount records, with the end of the preceding absence.
    mounts: Vec<(Address, Option<i64>)>,
    /// Records that all changes of an absence are recorded, with its end.
    told: Vec<(Address, i64)>,
    dropped: Vec<(Epoch, Address, CheckpointId, CheckpointId)>,
    /// Records of actors, and the records of what they requested.
    asked: Vec<(Address, Address)>,
    by: Option<Address>,
    only: Vec<Address>,
}

struct RestoreEntry {
    guard: CheckpointId,
    /// The checkpoint whose parent is the restored one.
    child: Option<CheckpointId>,
    records: Vec<Address>,
    /// Address of the record that ended it.
    end: Option<Address>,
}

struct OperationEntry {
    number: u64,
    at: Address,
    undoes: Option<u64>,
    about: Vec<CheckpointId>,
}

impl ExpiryScan {
    pub fn take(&mut self, at: Address, record: &Record) {
        if let Some(by) = self.by.take() {
            self.asked.push((by, at));
        }
        match record {
            Record::Checkpoint(checkpoint) => {
                self.made.insert(checkpoint.id, at);
                self.about.push((at, checkpoint.id, true));
                // A restore that never began: these records expire with time alone.
                self.mounts.extend(self.only.drain(..).map(|at| (at, None)));
            }
            Record::Deleted { id } => {
                self.deleted.entry(*id).or_insert(at);
                self.about.push((at, *id, true));
            }
            Record::Tags { id, .. }
            | Record::Pinned { id, .. }
            | Record::Hidden { id, .. }
            | Record::OpenAt { id, .. } => {
                self.about.push((at, *id, false));
            }
            Record::RestoreOnly { .. } => self.only.push(at),
            Record::RestoreBegin {
                target,
                guard,
                paths,
            } => {
                let child = self.lineage.restored(*target, *guard, paths);
                self.begin_restore(at, *guard, child);
            }
            Record::RestoreEnd => match self.restores.last_mut() {
                Some(begun) if begun.end.is_none() => begun.end = Some(at),
                // The start was forgotten.
                _ => self.mounts.push((at, None)),
            },
            Record::Operation(operation) => {
                let (number, undoes, about) =
                    (operation.number, operation.undoes, operation.deed.about());
                self.operations.push(OperationEntry {
                    number,
                    at,
                    undoes,
                    about,
                });
            }
            Record::By { .. } => self.by = Some(at),
            Record::Mounted { at_ns, stopped_ns } => {
                self.mounts.push((at, stopped_ns.map(|_| *at_ns)))
            }
            Record::Unmounted { .. } => self.mounts.push((at, None)),
            Record::Told { to_ns, .. } => self.told.push((at, *to_ns)),
            Record::Dropped { epoch, objects, .. } => {
                let (first, last) = range_of(objects);
                self.dropped.push((*epoch, at, first, last));
            }
            Record::Undo { .. }
            | Record::Void { .. }
            | Record::Moved { .. }
            | Record::Replacing { .. } => {}
            Record::Touched { .. } | Record::Hashes { .. } | Record::Comparing(_) => {}
        }
    }

    fn begin_restore(&mut self, at: Address, guard: CheckpointId, child: Option<CheckpointId>) {
        let mut records = std::mem::take(&mut self.only);
        records.push(at);
        self.restores.push(RestoreEntry {
            guard,
            child,
            records,
            end: None,
        });
    }

    /// Returns the records of each checkpoint's creation and deletion.
    pub fn ends(&self) -> HashMap<CheckpointId, Vec<Address>> {
        let mut ends: HashMap<CheckpointId, Vec<Address>> = HashMap::new();
        self.about
            .iter()
            .filter(|(.., life)| *life)
            .for_each(|(at, id, _)| ends.entry(*id).or_default().push(*at));
        ends
    }

    /// Returns the items to forget. Everything before `upto` is on disk, including deletions; the
    /// pair is start and end of the last record in the index.
    pub fn forgotten(self, upto: Address, (last, indexed): (Address, Address)) -> ExpiredItems {
        let Some(newest) = self.made.last_key_value().map(|(id, _)| *id) else {
            return ExpiredItems::default();
        };
        let is_deleted = |id: CheckpointId| self.deleted.get(&id).is_some_and(|at| *at < upto);
        let is_gone = |id: CheckpointId| match self.made.get(&id) {
            Some(at) => is_deleted(id) && id != newest && *at < indexed && *at != last,
            None => id < newest,
        };
        let kept: BTreeSet<CheckpointId> = self
            .made
            .keys()
            .copied()
            .filter(|id| !is_deleted(*id))
            .collect();
        let oldest = kept
            .first()
            .and_then(|id| self.made.get(id))
            .map_or(indexed, |at| indexed.min(*at));
        let mut found = ExpiredItems {
            lineage: self
                .lineage
                .unneeded(&kept, newest.epoch().next().checkpoint()),
            ..ExpiredItems::default()
        };
        found.operations = self.operations_to_forget(is_gone, upto);
        found.checkpoints = self
            .made
            .keys()
            .copied()
            .filter(|id| is_gone(*id))
            .collect();
        // Changes between any two kept checkpoints are attributed by epochs, whose ends stay.
        let is_end = |id: CheckpointId| kept.first().is_some_and(|oldest| *oldest < id);
        let about = self
            .about
            .iter()
            .filter(|(_, id, life)| is_gone(*id) && !(*life && is_end(*id)))
            .map(|(at, ..)| *at);
        let operations = self
            .operations
            .iter()
            .filter(|done| found.operations.contains(&done.number))
            .map(|done| done.at);
        found.records = about.chain(operations).collect();
        self.forget_restores(&mut found, is_gone, upto);
        self.forget_absences(&mut found, oldest);
        self.forget_dropped(&mut found, &kept, upto);
        found.records.retain(|at| *at < upto && *at != last);
        let asked: Vec<Address> = self
            .asked
            .iter()
            .filter(|(_, of)| found.records.contains(of))
            .map(|(by, _)| *by)
            .collect();
        found.records.extend(asked);
        found
    }

    fn forget_restores(
        &self,
        found: &mut ExpiredItems,
        is_gone: impl Fn(CheckpointId) -> bool,
        upto: Address,
    ) {
        for restore in &self.restores {
            let counts = restore
                .child
                .is_some_and(|child| !found.lineage.contains(&child));
            if let Some(end) = restore
                .end
                .filter(|end| *end < upto && !counts && is_gone(restore.guard))
            {
                found.records.extend(restore.records.iter().chain([&end]));
            }
        }
    }

    /// `oldest`: address of the oldest kept checkpoint.
    fn forget_absences(&self, found: &mut ExpiredItems, oldest: Address) {
        for (at, to_ns) in self.mounts.iter().filter(|(at, _)| *at < oldest) {
            found.records.insert(*at);
            found.absences.extend(to_ns);
        }
        // Records about an absence are forgotten with it or later.
        let known: HashSet<i64> = self
            .mounts
            .iter()
            .filter_map(|(_, to_ns)| *to_ns)
            .filter(|to_ns| !found.absences.contains(to_ns))
            .collect();
        for (at, to_ns) in self.told.iter().filter(|(_, to_ns)| !known.contains(to_ns)) {
            found.records.insert(*at);
            found.absences.insert(*to_ns);
        }
    }

    fn forget_dropped(
        &self,
        found: &mut ExpiredItems,
        kept: &BTreeSet<CheckpointId>,
        upto: Address,
    ) {
        for (epoch, at, first, last) in self.dropped.iter().filter(|(_, at, ..)| *at < upto) {
            // In an empty record the first checkpoint is after the last.
            if first > last || kept.range(first..=last).next().is_none() {
                found.records.insert(*at);
                found.dropped.insert((*epoch, *at));
            }
        }
    }

    fn operations_to_forget(
        &self,
        is_gone: impl Fn(CheckpointId) -> bool,
        upto: Address,
    ) -> BTreeSet<u64> {
        let mut goes: BTreeSet<u64> = self.operations.iter().map(|done| done.number).collect();
        goes.pop_last();
        // Operations that undid one another, directly or indirectly, are forgotten together,
        // identified by the first.
        let mut first_of: HashMap<u64, u64> = HashMap::new();
        for done in &self.operations {
            let first = done
                .undoes
                .and_then(|undone| first_of.get(&undone).copied())
                .unwrap_or(done.number);
            first_of.insert(done.number, first);
        }
        let mut stay: HashSet<u64> = HashSet::new();
        let first = |number: u64| first_of.get(&number).copied().unwrap_or(number);
        let stays = |done: &&OperationEntry| {
            !goes.contains(&done.number)
                || done.at >= upto
                || !done.about.iter().all(|id| is_gone(*id))
        };
        stay.extend(
            self.operations
                .iter()
                .filter(stays)
                .map(|done| first(done.number)),
        );
        loop {
            let (mut line, before) = (UndoStacks::default(), stay.len());
            for done in &self.operations {
                let counts = done
                    .undoes
                    .is_none_or(|undone| first_of.contains_key(&undone));
                let ended = if counts {
                    line.note(done.number, done.undoes)
                } else {
                    Vec::new()
                };
                if ended.iter().any(|number| stay.contains(&first(*number))) {
                    stay.insert(first(done.number));
                }
            }
            if stay.len() == before {
                break;
            }
        }
        goes.retain(|number| !stay.contains(&first(*number)));
        goes
    }
}
