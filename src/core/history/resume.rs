//! Opening of a timeline: checkpoints from the index, everything later from the journal's tail.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::absence::{self, Absence};
use super::append::fault;
use super::checkpoints::CheckpointTable;
use super::content::HashRecords;
use super::dropped::DroppedRecords;
use super::epochs::Tables;
use super::operations::OperationOrder;
use super::timeline::{RecoveryState, ReplayedState, Timeline, UncertainRename};
use ckptfs_api::{Actor, Epoch};
use ckptfs_store::ids::{ObjectId, ObjectOrigin, Slot};
use ckptfs_store::operation::Operation;
use ckptfs_store::record::{CheckpointState, DataState, Dropped, Place, Record, Undo};
use ckptfs_store::{Address, Batch, Store, StoreResult, is_of_checkpoints};
use ckptfs_sys::SysResult;

impl Timeline {
    /// Opens the history in `store`. The cost depends on the changes since the last indexed epoch,
    /// not on the size of the history.
    ///
    /// The caller completes the work described by [`RecoveryState`] before it serves anything.
    ///
    /// # Errors
    /// `JournalDamaged`, `BadRecord`; those of the index.
    pub fn open(store: Arc<Store>) -> StoreResult<(Timeline, RecoveryState)> {
        let checkpoints = store.index.catalogue().checkpoints()?;
        let applied = store.index.applied()?;
        // A rebuilt index contains records of the open epoch as well. They are needed in memory, so
        // the scan begins at the start of that epoch.
        let from = checkpoints
            .last()
            .map_or(Address::START, |(_, address)| *address)
            .min(applied);
        let mut memory = indexed(&store)?;
        // The record of the last mount may lie before `from`. Only the record of a clean shutdown,
        // which is the last one, proves that the end was clean.
        let mut aftermath = RecoveryState {
            unclean: store.journal.position() > store.journal.start(),
            ..RecoveryState::default()
        };
        for (kept, address) in checkpoints {
            aftermath.recorded_ns = aftermath.recorded_ns.max(Some(kept.created_ns));
            put_checkpoint(&mut memory, kept, address);
        }
        let witness = store.journal.witness();
        let lost = witness < store.journal.position();
        let places = lost.then(HashMap::new);
        let mut replay = Replay {
            memory,
            aftermath,
            witness,
            applied,
            unsure: HashMap::new(),
            places,
            by: None,
            only: None,
        };
        if lost {
            replay.look_back(&store, from)?;
        }
        for frame in store.journal.scan(from, None) {
            let (address, record) = frame?;
            // A restore in progress is finished even if the index contains its records.
            let indexed = address < applied
                && is_of_checkpoints(&record)
                && !matches!(record, Record::RestoreBegin { .. });
            replay.aftermath.recorded_ns = replay.aftermath.recorded_ns.max(time_of(&record));
            match &record {
                Record::Checkpoint(_) => (replay.only, replay.aftermath.comparing) = (None, None),
                Record::Unmounted { .. } => replay.aftermath.comparing = None,
                Record::Comparing(comparing) => replay.aftermath.comparing = *comparing,
                _ => {}
            }
            if !indexed {
                replay.take(address, record);
            }
        }
        replay.strike_unmade(&store)?;
        replay.add_places(&store);
        let Replay {
            memory, aftermath, ..
        } = replay;
        if !memory.tables.struck().is_empty() {
            store.apply(&mut Batch::voids(memory.tables.struck()))?;
        }
        Ok((Timeline::new(store, memory), aftermath))
    }

    /// Voids the record of a version that was never captured because its file did not change, in
    /// any epoch. Must be called before the tree is served.
    ///
    /// # Errors
    /// EIO, ENOSPC of the journal or the index.
    pub fn strike_unmade(&self, object: ObjectId) -> SysResult<()> {
        let (epoch, slot) = (object.epoch, object.slot);
        self.journal.append(&[Record::Void { epoch, slot }])?;
        let closed = self.epochs.write().void(epoch, slot);
        if closed {
            self.store()
                .apply(&mut Batch::voids([&(epoch, slot)]))
                .map_err(fault)
        } else {
            Ok(())
        }
    }
}

/// Loads the in-memory state that the index has, except the checkpoints.
fn indexed(store: &Store) -> StoreResult<ReplayedState> {
    let mut order = OperationOrder::default();
    for (number, at, undoes) in store.index.catalogue().operations()? {
        order.note(number, at, undoes);
    }
    let absences = store
        .index
        .catalogue()
        .absences()?
        .into_iter()
        .map(|(from_ns, to_ns, told)| Absence {
            from_ns,
            to_ns,
            told,
        })
        .collect();
    let mut dropped = DroppedRecords::default();
    for (epoch, at, first, last) in store.index.catalogue().dropped()? {
        dropped.put(epoch, at, (first, last));
    }
    Ok(ReplayedState {
        tables: Tables::new(
            store
                .index
                .catalogue()
                .last_checkpoint()?
                .map_or(Epoch(1), |id| id.epoch().next()),
        ),
        checkpoints: CheckpointTable::of(store.index.catalogue().lineage()?),
        order,
        absences: absence::AbsenceTable {
            absences,
            ..absence::AbsenceTable::default()
        },
        hashed: HashRecords::default(),
        dropped,
    })
}

fn put_checkpoint(memory: &mut ReplayedState, kept: CheckpointState, address: Address) {
    memory.absences.clock.read(kept.id, kept.created_ns);
    memory.checkpoints.put(kept, address);
}

/// Returns the latest time in a record.
fn time_of(record: &Record) -> Option<i64> {
    match record {
        Record::Checkpoint(checkpoint) => Some(checkpoint.created_ns),
        Record::By { at_ns, .. } => Some(*at_ns),
        Record::Undo { undo, .. } => {
            let changed = undo.iter().filter_map(|item| match item {
                Undo::Attr { before, .. } => Some(before.stat.ctime),
                _ => None,
            });
            changed.max().map(|ctime| ctime.nanoseconds())
        }
        _ => None,
    }
}

/// A version that may never have been created.
#[derive(Clone, Copy)]
struct UncertainVersion {
    object: ObjectId,
    /// Size of the captured content, if known.
    size: Option<u64>,
}

struct Replay {
    memory: ReplayedState,
    aftermath: RecoveryState,
    /// Frames from here on describe changes that were not made: see
    /// [`ckptfs_store::journal::Journal::witness`].
    witness: Address,
    /// Data records whose objects may never have been created.
    unsure: HashMap<(Epoch, Slot), UncertainVersion>,
    /// End of the part of the journal that the index has.
    applied: Address,
    /// Actor who requested the next record.
    by: Option<Actor>,
    /// After a power cut: earlier places of inodes, in order. Records beyond the witness can revert
    /// more than one rename.
    places: Option<HashMap<Slot, Vec<Place>>>,
    /// Names of the restore about to begin.
    only: Option<Vec<Vec<u8>>>,
}

impl Replay {
    /// After a power cut, indexed changes may also not have been made, or only half. Notes those
    /// from the last checkpoint before the witness on.
    fn look_back(&mut self, store: &Store, upto: Address) -> StoreResult<()> {
        let before = self
            .memory
            .checkpoints
            .all()
            .map(|(_, address)| *address)
            .filter(|address| *address < self.witness)
            .max();
        let begin = before.unwrap_or_else(|| store.journal.start());
        if begin >= upto {
            return Ok(());
        }
        for frame in store.journal.scan(begin, Some(upto)) {
            let (address, record) = frame?;
            self.note_places(&record);
            let beyond = address >= self.witness;
            match record {
                Record::Undo { epoch, undo } => {
                    self.undone(beyond);
                    self.note_unsure(epoch, &undo, beyond);
                }
                Record::Void { epoch, slot } => self.note_void(epoch, slot),
                Record::Dropped { objects, .. } => self.note_dropped(&objects),
                Record::Moved { places } => places
                    .into_iter()
                    .for_each(|(slot, place)| self.note_moved(slot, place, None)),
                Record::Checkpoint(_) | Record::Unmounted { .. } => self.undone(beyond),
                Record::Replacing { .. }
                | Record::RestoreBegin { .. }
                | Record::RestoreEnd
                | Record::RestoreOnly { .. } => self.take_step(record, beyond),
                _ => {}
            }
        }
        Ok(())
    }

    fn note_places(&mut self, record: &Record) {
        let Some(places) = &mut self.places else {
            return;
        };
        let mut note = |slot: Slot, place: &Place| {
            let known = places.entry(slot).or_default();
            if known.last() != Some(place) {
                known.push(place.clone());
            }
        };
        match record {
            Record::Moved { places } => places.iter().for_each(|(slot, place)| note(*slot, place)),
            Record::Undo { undo, .. } => {
                for item in undo {
                    if let Undo::Home { slot, before } = item {
                        note(*slot, before);
                    }
                }
            }
            _ => {}
        }
    }

    fn note_moved(&mut self, slot: Slot, place: Place, before: Option<Place>) {
        let moved = self
            .aftermath
            .moved
            .entry(slot)
            .or_insert_with(|| UncertainRename {
                to: place.clone(),
                before: before.into_iter().collect(),
            });
        moved.to = place;
    }

    /// An inode renamed beyond the witness may be at any of its places.
    fn add_places(&mut self, store: &Store) {
        let Some(mut places) = self.places.take() else {
            return;
        };
        for (slot, moved) in &mut self.aftermath.moved {
            // An unreadable index is reported elsewhere.
            let indexed = store.index.place(*slot).ok().flatten();
            let known = places.remove(slot).unwrap_or_default();
            let mut before: Vec<Place> = indexed
                .into_iter()
                .chain(known)
                .chain(moved.before.drain(..))
                .collect();
            before.retain(|place| *place != moved.to);
            moved.before = before;
        }
    }

    fn take(&mut self, address: Address, record: Record) {
        let beyond = address >= self.witness;
        let by = self.by.take();
        self.note_places(&record);
        match record {
            Record::Undo { epoch, undo } => self.undo(epoch, undo, beyond),
            Record::Void { epoch, slot } => self.void(epoch, slot, address >= self.applied),
            Record::Moved { places } => {
                for (slot, place) in places {
                    let before = self.memory.tables.open().place(slot).cloned();
                    self.memory.tables.open_mut().put_place(slot, place.clone());
                    self.note_moved(slot, place, before);
                }
            }
            Record::Checkpoint(checkpoint) => {
                self.undone(beyond);
                self.memory.tables.close(checkpoint.id);
                put_checkpoint(
                    &mut self.memory,
                    CheckpointState::new(checkpoint, by),
                    address,
                );
            }
            Record::Tags { .. }
            | Record::Deleted { .. }
            | Record::Pinned { .. }
            | Record::Hidden { .. } => self.memory.checkpoints.apply(record),
            Record::Replacing { .. }
            | Record::RestoreBegin { .. }
            | Record::RestoreEnd
            | Record::RestoreOnly { .. } => self.take_step(record, beyond),
            Record::Mounted { at_ns, stopped_ns } => self.mounted(at_ns, stopped_ns),
            Record::Unmounted { at_ns } => self.unmounted(at_ns, beyond),
            Record::Dropped { epoch, objects, .. } => {
                self.note_dropped(&objects);
                self.memory.dropped.note(epoch, address, &objects);
            }
            Record::Hashes {
                epoch,
                objects,
                whole,
            } => self.memory.hashed.note(epoch, address, &objects, whole),
            Record::Operation(Operation { number, undoes, .. }) => {
                self.memory.order.note(number, address, undoes)
            }
            Record::By { actor, .. } => self.by = Some(actor),
            Record::Told { to_ns, .. } => self.memory.absences.tell(to_ns),
            Record::Touched { .. } | Record::OpenAt { .. } | Record::Comparing(_) => {}
        }
    }

    /// A step of a multi-step operation. Beyond the witness the step did not happen: names were not
    /// exchanged, or a restore did not begin or end.
    fn take_step(&mut self, record: Record, beyond: bool) {
        match record {
            _ if beyond => {}
            Record::Replacing {
                slot,
                place,
                object,
                whiteout,
            } => self
                .aftermath
                .replacing
                .push((slot, place, object, whiteout)),
            Record::RestoreOnly { paths } => self.only.get_or_insert_default().extend(paths),
            Record::RestoreBegin { .. } => self.begin_restore(record),
            Record::RestoreEnd => self.aftermath.restoring = None,
            _ => {}
        }
    }

    fn undo(&mut self, epoch: Epoch, undo: Vec<Undo>, beyond: bool) {
        self.undone(beyond);
        self.note_unsure(epoch, &undo, beyond);
        if epoch == self.memory.tables.open().epoch {
            undo.into_iter()
                .for_each(|item| self.memory.tables.open_mut().add(item));
        }
    }

    /// The rename failed: the inode to be replaced is at its old name or at the other name, and
    /// stays there.
    fn note_void(&mut self, epoch: Epoch, slot: Slot) {
        self.aftermath
            .replacing
            .retain(|(replaced, ..)| *replaced != slot);
        self.unsure.remove(&(epoch, slot));
    }

    /// `unknown`: the index does not contain the record yet.
    fn void(&mut self, epoch: Epoch, slot: Slot, unknown: bool) {
        self.note_void(epoch, slot);
        if epoch == self.memory.tables.open().epoch || unknown {
            self.memory.tables.void(epoch, slot);
        }
    }

    fn begin_restore(&mut self, record: Record) {
        if let Record::RestoreBegin {
            target,
            guard,
            paths,
        } = &record
        {
            self.aftermath.restoring = Some((*target, *guard, paths.clone()));
            self.aftermath.restoring_only = self.only.take();
        }
        self.memory.checkpoints.apply(record);
    }

    fn mounted(&mut self, at_ns: i64, stopped_ns: Option<i64>) {
        let absence = stopped_ns.map(|from_ns| Absence {
            from_ns,
            to_ns: at_ns,
            told: false,
        });
        let is_known = |absence: &Absence| {
            self.memory
                .absences
                .absences
                .iter()
                .any(|known| (known.from_ns, known.to_ns) == (absence.from_ns, absence.to_ns))
        };
        let absence = absence.filter(|absence| !is_known(absence));
        self.memory.absences.absences.extend(absence);
        self.aftermath.unclean = true;
        self.aftermath.stopped_ns = None;
    }

    /// Beyond the witness the shutdown was clean, but the power was cut before the tree reached the
    /// disk, so recovery is needed.
    fn unmounted(&mut self, at_ns: i64, beyond: bool) {
        self.undone(beyond);
        self.aftermath.unclean = beyond;
        self.aftermath.stopped_ns = Some(at_ns);
    }

    /// A later record proves that earlier operations are complete, unless it is beyond the witness.
    fn undone(&mut self, beyond: bool) {
        if !beyond {
            self.aftermath.replacing.clear();
            self.aftermath.moved.clear();
        }
    }

    /// Beyond the witness nothing was done. Before it, a capture was made, because it precedes its
    /// record. A move follows its record and may not have been made, even in a closed epoch, whose
    /// checkpoint may be gone.
    fn note_unsure(&mut self, epoch: Epoch, undo: &[Undo], beyond: bool) {
        for item in undo {
            let Undo::Data {
                slot,
                before:
                    DataState {
                        object: Some(object),
                        size,
                        ..
                    },
            } = item
            else {
                continue;
            };
            let moved = object.origin == ObjectOrigin::Moved;
            if beyond || (self.places.is_some() && moved) {
                let size = (!moved).then_some(*size);
                self.unsure
                    .entry((epoch, *slot))
                    .or_insert(UncertainVersion {
                        object: *object,
                        size,
                    });
            }
        }
    }

    /// A version dropped by a tier is missing for that reason.
    fn note_dropped(&mut self, objects: &[Dropped]) {
        for Dropped { object, .. } in objects {
            self.unsure.remove(&(object.epoch, object.slot));
        }
    }

    /// Voids records that reached the disk before a power cut while their objects did not. Their
    /// changes did not reach it either, so the files are unchanged.
    fn strike_unmade(&mut self, store: &Store) -> StoreResult<()> {
        // A half-done rename is finished later.
        let replacing: HashSet<ObjectId> = self
            .aftermath
            .replacing
            .iter()
            .map(|(_, _, object, _)| *object)
            .collect();
        let unsure = std::mem::take(&mut self.unsure);
        for ((epoch, slot), UncertainVersion { object, size }) in unsure
            .into_iter()
            .filter(|(_, unsure)| !replacing.contains(&unsure.object))
        {
            // btrfs writes the names in a new directory together with anything synced there: an
            // empty file has a name without its data.
            match store.layers.stat(object)? {
                Some(found) if size.is_none_or(|size| size == found.size) => {
                    self.aftermath
                        .moved_away
                        .extend(size.is_none().then_some(object));
                    continue;
                }
                _ => {}
            }
            tracing::info!(
                epoch = epoch.0,
                slot = slot.0,
                "a version was recorded, but not kept before the power was cut: its file has not changed"
            );
            store.append(&[Record::Void { epoch, slot }])?;
            self.memory.tables.void(epoch, slot);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
