//! What the journal tells of checkpoints and operations that nobody can ask for any more, once
//! checkpoints were deleted for good.
//!
//! The rules (`docs/adr/0022-sorted-runs.md`):
//! - a *checkpoint* is gone if it was deleted for good; all that was said of it goes, but for when
//!   it was made and deleted as long as an older one is kept: there epochs end, by which is told
//!   who changed what. Never the newest, so that no number is given twice, nor one that closed an
//!   epoch that the index has not got yet, nor the one by whose record the index says how far it
//!   is;
//! - an *operation* goes if all that it is about is gone, unless it is the newest (for its number),
//!   belongs to one that stays (which it undoes, or which undoes it), or ended a line in which one
//!   stays that could have been done again;
//! - a *restore* goes if it is complete and its guard is gone, unless the checkpoint after it came
//!   from what was restored in a way that still counts ([`Lineage::unneeded`]);
//! - *mounts and absences* go that were over before the oldest checkpoint that is kept, with what
//!   is said of them;
//! - *dropped versions* go that no kept checkpoint showed.
//!
//! Whoever asks again, with more in the journal, finds all that was found before: deleted stays
//! deleted, and nothing comes to what is about it alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::ids::{CheckpointId, Epoch};
use super::journal::Address;
use super::lineage::Lineage;
use super::operation::Line;
use super::record::{Record, range_of};

/// Of what nothing is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Checkpoints.
    pub checkpoints: BTreeSet<CheckpointId>,
    /// Checkpoints that came from another than the one before, which does not count any more.
    pub lineage: BTreeSet<CheckpointId>,
    /// Operations.
    pub operations: BTreeSet<u64>,
    /// Absences, by their ends.
    pub absences: BTreeSet<i64>,
    /// Records of dropped versions, by their layers and where they are.
    pub dropped: BTreeSet<(Epoch, Address)>,
    /// All records that go.
    pub records: HashSet<Address>,
}

/// What a journal tells of such things, read from its beginning.
#[derive(Default)]
pub(super) struct Catalogue {
    made: BTreeMap<CheckpointId, Address>,
    deleted: HashMap<CheckpointId, Address>,
    /// Records of one checkpoint alone, and whether each says that it was made or deleted.
    about: Vec<(Address, CheckpointId, bool)>,
    restores: Vec<Restore>,
    lineage: Lineage,
    operations: Vec<Done>,
    /// Records of mounts, with the end of the absence before.
    mounts: Vec<(Address, Option<i64>)>,
    /// Records that all of an absence is on record, with its end.
    told: Vec<(Address, i64)>,
    dropped: Vec<(Epoch, Address, CheckpointId, CheckpointId)>,
    /// Who asked, and where what they asked for is.
    asked: Vec<(Address, Address)>,
    by: Option<Address>,
    only: Vec<Address>,
}

struct Restore {
    guard: CheckpointId,
    /// The checkpoint that comes from what was restored.
    child: Option<CheckpointId>,
    records: Vec<Address>,
    /// Where its end is, or that of none.
    end: Option<Address>,
}

struct Done {
    number: u64,
    at: Address,
    undoes: Option<u64>,
    about: Vec<CheckpointId>,
}

impl Catalogue {
    pub fn take(&mut self, at: Address, record: &Record) {
        if let Some(by) = self.by.take() {
            self.asked.push((by, at));
        }
        match record {
            Record::Checkpoint(checkpoint) => {
                self.made.insert(checkpoint.id, at);
                self.about.push((at, checkpoint.id, true));
                // A restore that was never begun: they are of a time, and of nothing else.
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
                // Its beginning is gone.
                _ => self.mounts.push((at, None)),
            },
            Record::Operation(operation) => {
                let (number, undoes, about) =
                    (operation.number, operation.undoes, operation.deed.about());
                self.operations.push(Done {
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
        self.restores.push(Restore {
            guard,
            child,
            records,
            end: None,
        });
    }

    /// The records that each checkpoint was made, and deleted.
    pub fn ends(&self) -> HashMap<CheckpointId, Vec<Address>> {
        let mut ends: HashMap<CheckpointId, Vec<Address>> = HashMap::new();
        self.about
            .iter()
            .filter(|(.., life)| *life)
            .for_each(|(at, id, _)| ends.entry(*id).or_default().push(*at));
        ends
    }

    /// What goes. `upto`: everything before this place of the journal is on the disk, deletions
    /// too; `applied`: where the record that the index has last begins and ends.
    pub fn forgotten(self, upto: Address, (last, indexed): (Address, Address)) -> Forgotten {
        let Some(newest) = self.made.last_key_value().map(|(id, _)| *id) else {
            return Forgotten::default();
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
        let mut found = Forgotten {
            lineage: self
                .lineage
                .unneeded(&kept, newest.epoch().next().checkpoint()),
            ..Forgotten::default()
        };
        found.operations = self.operations_to_forget(is_gone, upto);
        found.checkpoints = self
            .made
            .keys()
            .copied()
            .filter(|id| is_gone(*id))
            .collect();
        // Who changed what is asked between any two that are kept, and told by epochs: their ends
        // stay.
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
        found: &mut Forgotten,
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

    /// `oldest`: where the oldest checkpoint is that is kept.
    fn forget_absences(&self, found: &mut Forgotten, oldest: Address) {
        for (at, to_ns) in self.mounts.iter().filter(|(at, _)| *at < oldest) {
            found.records.insert(*at);
            found.absences.extend(to_ns);
        }
        // What is said of an absence goes with it, or after it.
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

    fn forget_dropped(&self, found: &mut Forgotten, kept: &BTreeSet<CheckpointId>, upto: Address) {
        for (epoch, at, first, last) in self.dropped.iter().filter(|(_, at, ..)| *at < upto) {
            // A record of nothing has its first after its last.
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
        // Those that undid one another, directly or not, go together: by the first of them.
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
        let stays = |done: &&Done| {
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
            let (mut line, before) = (Line::default(), stay.len());
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
