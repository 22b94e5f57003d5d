//! Selection of the records that stay when the journal is packed. Of changes to the tree these are
//! the records in the index, which omits those that no checkpoint reads. Of checkpoints, operations
//! and mounts they are the records that a request can still reach ([`super::expiry`]).

use std::collections::{HashMap, HashSet};

use super::Store;
use super::error::StoreResult;
use super::expiry::{ExpiredItems, ExpiryScan};
use super::ids::{ObjectId, Slot};
use super::index::{Batch, Index, RetentionNeeds};
use super::journal::{Address, Journal, PackDecision};
use super::layers::Layers;
use super::record::{ObjectHash, Record, Undo};
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_sys as sys;

/// A segment being written with more bytes than this is closed, to be packed after a deletion.
const CLOSED_BYTES: u32 = 256 << 10;

impl Store {
    /// Packs the segments closed since the last call, until `stop` returns true. All records stay.
    /// Slow: for a helper thread.
    ///
    /// Errors: those of reading and writing the journal; segments packed before stay packed.
    pub fn pack(&self, stop: &dyn Fn() -> bool) -> StoreResult<()> {
        if closed_bytes() < CLOSED_BYTES {
            self.journal.close_segment(closed_bytes())?;
        }
        for (number, is_packed) in self.journal.closed()? {
            if is_packed {
                continue;
            }
            if stop() {
                break;
            }
            if let Some(packed) = self
                .journal
                .pack(number, &mut |_, _| Ok(PackDecision::Keep))?
            {
                self.journal.put_packed(&packed)?;
            }
        }
        Ok(())
    }

    /// Packs closed segments, including packed ones, without records that are not needed. Requires
    /// [`Index::compact`] with the same `needs` before. Forgotten items are removed from the index
    /// first and then passed to `forget`. Slow: for a helper thread.
    ///
    /// Errors: as [`Store::pack`], and those of the index.
    pub fn repack(
        &self,
        needs: &RetentionNeeds<'_>,
        stop: &dyn Fn() -> bool,
        forget: impl FnOnce(&ExpiredItems),
    ) -> StoreResult<()> {
        self.journal.close_segment(closed_bytes())?;
        let Some(mut judge) = PackFilter::new(self, needs, stop)? else {
            return Ok(());
        };
        // On disk before a record is removed, so that every index entry has its record in the
        // journal. A deletion not yet indexed is not needed any more.
        self.index.forget(&judge.forgotten)?;
        forget(&judge.forgotten);
        // In order: records about a checkpoint are removed after its own record, so that no
        // checkpoint remains without its deletion.
        for (number, _) in self.journal.closed()? {
            if stop() {
                break;
            }
            let packed = self
                .journal
                .pack(number, &mut |at, record| judge.judge(at, record))?;
            let gone = std::mem::take(&mut judge.gone);
            if let Some(packed) = packed {
                // Durable before the pack: every index entry has its record in the journal, even
                // after a kill.
                if !gone.is_empty() {
                    self.index.apply(&mut Batch::forget_hashes(&gone))?;
                    self.index.flush_durable()?;
                }
                self.journal.put_packed(&packed)?;
            }
        }
        Ok(())
    }
}

/// Tests let everything be packed.
fn closed_bytes() -> u32 {
    if sys::host::left_out("pack-size") {
        CLOSED_BYTES / 256
    } else {
        CLOSED_BYTES
    }
}

/// Decides for each record, in journal order, whether it is needed.
struct PackFilter<'a> {
    index: &'a Index,
    layers: &'a Layers,
    needs: &'a RetentionNeeds<'a>,
    /// Everything from here on stays: it is not indexed yet, or not on disk.
    upto: Address,
    /// The open epoch.
    epoch: Epoch,
    told: PackScan,
    forgotten: ExpiredItems,
    /// Existing objects of the epoch queried last.
    left: (Epoch, Vec<ObjectId>),
    /// Hash records to remove.
    gone: Vec<(Epoch, Address)>,
}

/// Facts from the journal before and after the address up to which records are removed.
#[derive(Default)]
struct PackScan {
    /// The last place of each inode before: frame, and position in it. After a power cut the tree
    /// may be in that state, despite later records.
    places: HashMap<Slot, (Address, usize)>,
    /// Records voided before, and whether one of them stays.
    voids: HashMap<(Epoch, Slot), bool>,
    /// Records voided after.
    later: HashSet<(Epoch, Slot)>,
}

impl PackScan {
    fn take(&mut self, at: Address, record: &Record, is_before: bool) {
        match record {
            Record::Void { epoch, slot } if is_before => {
                self.voids.insert((*epoch, *slot), false);
            }
            Record::Void { epoch, slot } => drop(self.later.insert((*epoch, *slot))),
            Record::Moved { places } if is_before => {
                self.places.extend(
                    places
                        .iter()
                        .enumerate()
                        .map(|(number, (slot, _))| (*slot, (at, number))),
                );
            }
            Record::Undo { undo, .. } if is_before => {
                for (number, item) in undo.iter().enumerate() {
                    if let Undo::Home { slot, .. } = item {
                        self.places.insert(*slot, (at, number));
                    }
                }
            }
            _ => {}
        }
    }
}

impl<'a> PackFilter<'a> {
    /// Scans the journal; `None` if `stop` returns true.
    fn new(
        store: &'a Store,
        needs: &'a RetentionNeeds<'a>,
        stop: &dyn Fn() -> bool,
    ) -> StoreResult<Option<PackFilter<'a>>> {
        let (index, journal) = (&store.index, &store.journal);
        let applied = index
            .last_applied()?
            .unwrap_or((Address::START, Address::START));
        let upto = needs.upto.min(applied.1);
        let (mut told, mut catalogue) = (PackScan::default(), ExpiryScan::default());
        for (number, entry) in journal.scan(journal.start(), None).enumerate() {
            let (at, record) = entry?;
            told.take(at, &record, at < upto);
            catalogue.take(at, &record);
            if number % 4096 == 0 && stop() {
                return Ok(None);
            }
        }
        let ends = catalogue.ends();
        // An index in memory has an outdated one on disk, which the next mount updates: it needs
        // every deletion.
        let forgotten = if index.is_in_memory() {
            ExpiredItems::default()
        } else {
            catalogue.forgotten(needs.upto, applied)
        };
        let left = (Epoch(0), Vec::new());
        let (layers, epoch) = (&store.layers, Epoch(1));
        let mut judge = PackFilter {
            index,
            layers,
            needs,
            upto,
            epoch,
            told,
            forgotten,
            left,
            gone: Vec::new(),
        };
        Ok(judge.keep_ends(journal, &ends, stop)?.then_some(judge))
    }

    fn judge(&mut self, at: Address, record: Record) -> StoreResult<PackDecision> {
        self.read(&record);
        if self.forgotten.records.contains(&at) {
            return Ok(PackDecision::LeaveOut);
        }
        if at >= self.upto {
            return Ok(PackDecision::Keep);
        }
        Ok(match record {
            Record::Undo { epoch, undo } => less(
                undo,
                |number, item| self.needs_undo((at, number), epoch, item),
                |undo| Record::Undo { epoch, undo },
            )?,
            Record::Moved { places } => less(
                places,
                |number, (slot, _)| self.needs_place((at, number), *slot),
                |places| Record::Moved { places },
            )?,
            Record::Void { epoch, slot } => keep_if(
                self.told
                    .voids
                    .get(&(epoch, slot))
                    .is_some_and(|stays| *stays),
            ),
            Record::Hashes {
                epoch,
                objects,
                whole,
            } => self.sealed(at, epoch, objects, whole)?,
            // Changes are attributed to processes between kept checkpoints.
            Record::Touched { .. } => keep_if(
                self.needs
                    .kept
                    .first()
                    .is_some_and(|oldest| oldest.epoch() < self.epoch),
            ),
            Record::OpenAt { id, .. } => keep_if(self.is_kept(id)),
            // The crash was repaired and the comparison ended long ago.
            Record::Replacing { .. } | Record::Comparing(_) => PackDecision::LeaveOut,
            Record::Checkpoint(_)
            | Record::Tags { .. }
            | Record::Deleted { .. }
            | Record::RestoreBegin { .. }
            | Record::RestoreOnly { .. }
            | Record::RestoreEnd
            | Record::Mounted { .. }
            | Record::Unmounted { .. }
            | Record::Told { .. }
            | Record::By { .. }
            | Record::Pinned { .. }
            | Record::Hidden { .. }
            | Record::Operation(_)
            | Record::Dropped { .. } => PackDecision::Keep,
        })
    }

    /// Updates the open epoch.
    fn read(&mut self, record: &Record) {
        match record {
            Record::Checkpoint(checkpoint) => self.epoch = checkpoint.id.epoch().next(),
            Record::Undo { epoch, .. } => self.epoch = *epoch,
            _ => {}
        }
    }

    /// The index assigns places to epochs. If a place outside undo records stays, so do the records
    /// of the checkpoint before its epoch, and of its deletion.
    fn keep_ends(
        &mut self,
        journal: &Journal,
        ends: &HashMap<CheckpointId, Vec<Address>>,
        stop: &dyn Fn() -> bool,
    ) -> StoreResult<bool> {
        for (number, entry) in journal.scan(journal.start(), Some(self.upto)).enumerate() {
            let (at, record) = entry?;
            self.read(&record);
            let last = self.epoch.0.saturating_sub(1);
            if self
                .needs
                .kept
                .first()
                .is_some_and(|oldest| oldest.0 <= last)
                || number % 4096 == 0 && stop()
            {
                break;
            }
            let stays = match &record {
                Record::Moved { places } => {
                    let mut slots = (0..)
                        .zip(places)
                        .map(|(number, (slot, _))| self.needs_place((at, number), *slot));
                    slots
                        .find(|needs| !matches!(needs, Ok(false)))
                        .unwrap_or(Ok(false))?
                }
                _ => false,
            };
            if stays {
                for at in ends.get(&CheckpointId(last)).into_iter().flatten() {
                    self.forgotten.records.remove(at);
                }
            }
        }
        self.epoch = Epoch(1);
        Ok(!stop())
    }

    fn is_kept(&self, id: CheckpointId) -> bool {
        self.needs.kept.binary_search(&id).is_ok()
    }

    /// Returns whether this is the last place of an inode whose place is in the index.
    fn is_place(&self, told: (Address, usize), slot: Slot) -> StoreResult<bool> {
        Ok(self.told.places.get(&slot) == Some(&told) && self.index.place(slot)?.is_some())
    }

    /// Returns whether the index has a place outside undo records here, or this is the last place.
    fn needs_place(&self, told: (Address, usize), slot: Slot) -> StoreResult<bool> {
        Ok(self.index.has_place(slot, self.epoch)? || self.is_place(told, slot)?)
    }

    fn needs_undo(
        &mut self,
        told: (Address, usize),
        epoch: Epoch,
        item: &Undo,
    ) -> StoreResult<bool> {
        let stays = match item {
            Undo::Home { slot, .. } if self.is_place(told, *slot)? => true,
            // The record that voids it may not be on disk.
            Undo::Data { slot, .. } if self.told.later.contains(&(epoch, *slot)) => true,
            _ => self.index.has_record(&item.key(), epoch)?,
        };
        if let (true, Undo::Data { slot, .. }) = (stays, item)
            && let Some(void) = self.told.voids.get_mut(&(epoch, *slot))
        {
            *void = true;
        }
        Ok(stays)
    }

    /// Keeps the hashes of existing objects.
    fn sealed(
        &mut self,
        at: Address,
        epoch: Epoch,
        objects: Vec<ObjectHash>,
        whole: bool,
    ) -> StoreResult<PackDecision> {
        if self.left.0 != epoch {
            self.left = (epoch, self.layers.list(epoch)?);
        }
        let left = &self.left.1;
        let verdict = less(
            objects,
            |_, sealed| Ok(left.binary_search(&sealed.object).is_ok()),
            |objects| Record::Hashes {
                epoch,
                objects,
                whole,
            },
        )?;
        if verdict == PackDecision::LeaveOut {
            self.gone.push((epoch, at));
        }
        Ok(verdict)
    }
}

fn keep_if(stays: bool) -> PackDecision {
    if stays {
        PackDecision::Keep
    } else {
        PackDecision::LeaveOut
    }
}

/// Filters a list, and decides about its record.
fn less<T>(
    mut items: Vec<T>,
    mut stays: impl FnMut(usize, &T) -> StoreResult<bool>,
    record: impl FnOnce(Vec<T>) -> Record,
) -> StoreResult<PackDecision> {
    let count = items.len();
    let mut failed = Ok(());
    let mut numbers = 0..;
    items.retain(|item| {
        stays(numbers.next().unwrap_or_default(), item).unwrap_or_else(|error| {
            failed = Err(error);
            true
        })
    });
    failed?;
    Ok(match items.len() {
        left if left == count && count > 0 => PackDecision::Keep,
        0 => PackDecision::LeaveOut,
        _ => PackDecision::Less(record(items)),
    })
}

#[cfg(test)]
#[path = "packing_tests.rs"]
mod tests;
