//! Comparison of runs with a model that has every record in one map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::tests::bench::Bench;
use super::super::super::{Index, IndexDifference, IndexOpening, RebuildReason};
use crate::ids::{Name, Slot};
use crate::record::{Key, Place, Record, Undo};
use crate::tests::made::{closed, data, deleted, entry, home, moved, place, undo, void};
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_testkit::config;

#[derive(Clone, Debug)]
enum Step {
    Undo(Vec<Undo>),
    /// Moves an inode, possibly without an undo record of its place.
    Moved(u64, u8),
    /// Voids a data record of the open epoch, or of an earlier one.
    Void(u64, u64),
    /// Closes the epoch.
    Close,
    /// Applies the pending records to the index.
    Apply,
    Merge,
    /// Deletes the nth existing checkpoint.
    Delete(usize),
    /// Compacts away records that only deleted checkpoints needed.
    Compact,
    Reopen,
    /// Truncates the file of the nth run.
    Tear(usize),
}

fn undo_record() -> impl Strategy<Value = Undo> {
    prop_oneof![
        (2..5_u64, b'a'..b'f', 100..109_u64).prop_map(|(dir, name, to)| entry(dir, &[name], to)),
        (10..16_u64, 0..1000_u64).prop_map(|(slot, size)| data(slot, size)),
        (10..16_u64, b'a'..=b'z').prop_map(|(slot, name)| home(slot, place(1, &[name]))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => vec(undo_record(), 1..6).prop_map(Step::Undo),
        3 => (10..16_u64, b'a'..=b'z').prop_map(|(slot, name)| Step::Moved(slot, name)),
        3 => (10..16_u64, 0..3_u64).prop_map(|(slot, back)| Step::Void(slot, back)),
        4 => Just(Step::Close),
        5 => Just(Step::Apply),
        2 => Just(Step::Merge),
        3 => any::<usize>().prop_map(Step::Delete),
        2 => Just(Step::Compact),
        1 => Just(Step::Reopen),
        1 => any::<usize>().prop_map(Step::Tear),
    ]
}

/// The value of every key before its first change in each epoch.
#[derive(Default)]
struct Model {
    records: BTreeMap<(Key, Epoch), Undo>,
    places: BTreeMap<u64, Place>,
    /// Inodes without a needed record at a compaction: their place may be forgotten.
    forgotten: BTreeSet<u64>,
    /// Inodes that were moved in the open epoch, or have a home record.
    settled: BTreeSet<u64>,
}

impl Model {
    fn first(&self, key: &Key, first: Epoch) -> Option<(Epoch, Undo)> {
        self.records
            .range((key.clone(), first)..=(key.clone(), Epoch(u64::MAX)))
            .next()
            .map(|((_, epoch), undo)| (*epoch, undo.clone()))
    }

    fn compare(&self, index: &Index, ids: &[u64]) -> Result<(), TestCaseError> {
        let keys = (10..16).flat_map(|slot| {
            [
                Key::Data(Slot(slot)),
                Key::Home(Slot(slot)),
                Key::Attr(Slot(slot)),
            ]
        });
        let names = (2..5).flat_map(|dir| {
            (b'a'..b'f').map(move |name| Key::Entry(Slot(dir), Name::new(&[name])))
        });
        for key in keys.chain(names) {
            for &n in ids {
                prop_assert_eq!(
                    index.first_after(&key, CheckpointId(n)).unwrap(),
                    self.first(&key, Epoch(n + 1)),
                    "{:?} after {}",
                    &key,
                    n
                );
            }
        }
        for slot in 10..16 {
            let (found, place) = (index.place(Slot(slot)).unwrap(), self.places.get(&slot));
            prop_assert!(
                found.as_ref() == place || (found.is_none() && self.forgotten.contains(&slot)),
                "{} is at {:?} and not {:?}",
                slot,
                found,
                place
            );
        }
        for dir in 2..5 {
            for &n in ids {
                let mut expected = BTreeMap::new();
                for name in (b'a'..b'f').map(|name| Name::new(&[name])) {
                    expected.extend(
                        self.first(&Key::Entry(Slot(dir), name.clone()), Epoch(n + 1))
                            .map(|found| (name, found)),
                    );
                }
                prop_assert_eq!(
                    index.entries_after(Slot(dir), CheckpointId(n)).unwrap(),
                    expected,
                    "directory {} after {}",
                    dir,
                    n
                );
            }
        }
        Ok(())
    }
}

impl Model {
    /// Adds a record; `false` if it is impossible: an inode has one home record in an epoch, made
    /// before it is moved.
    fn take(&mut self, undo: &Undo, epoch: Epoch) -> bool {
        if let Undo::Home { slot, before } = undo {
            if !self.settled.insert(slot.0) {
                return false;
            }
            self.place(*slot, before);
        }
        self.records
            .entry((undo.key(), epoch))
            .or_insert_with(|| undo.clone());
        true
    }

    fn place(&mut self, slot: Slot, place: &Place) {
        self.places.insert(slot.0, place.clone());
        self.forgotten.remove(&slot.0);
    }

    fn compacted(&mut self, kept: &BTreeSet<u64>) {
        let is_read = |slot| {
            kept.iter().any(|n| {
                self.records
                    .keys()
                    .any(|(key, epoch)| epoch.0 > *n && slot_of(key) == Some(slot))
            })
        };
        let forgotten: Vec<u64> = (10..16).filter(|slot| !is_read(*slot)).collect();
        self.forgotten.extend(forgotten);
    }
}

fn slot_of(key: &Key) -> Option<u64> {
    match key {
        Key::Data(slot) | Key::Home(slot) => Some(slot.0),
        _ => None,
    }
}

/// An index, its model, and pending records.
struct World {
    bench: Bench,
    index: Option<Index>,
    model: Model,
    epoch: u64,
    pending: Vec<Record>,
    kept: BTreeSet<u64>,
    /// Records before this epoch are never voided.
    floor: u64,
}

impl World {
    fn new() -> World {
        let bench = Bench::new();
        let (index, _) = bench.index();
        World {
            bench,
            index: Some(index),
            model: Model::default(),
            epoch: 1,
            pending: Vec::new(),
            kept: BTreeSet::new(),
            floor: 0,
        }
    }

    fn index(&self) -> &Index {
        self.index.as_ref().unwrap()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Undo(records) => {
                let mut records = records.clone();
                records.retain(|undo| self.model.take(undo, Epoch(self.epoch)));
                self.pending.push(undo(self.epoch, records));
            }
            Step::Moved(slot, name) => {
                let place = place(1, &[*name]);
                self.model.settled.insert(*slot);
                self.model.place(Slot(*slot), &place);
                self.pending.push(moved(*slot, place));
            }
            Step::Void(slot, back) => {
                let of = self.epoch.saturating_sub(*back).max(1).max(self.floor);
                self.model
                    .records
                    .remove(&(Key::Data(Slot(*slot)), Epoch(of)));
                self.pending.push(void(of, *slot));
            }
            Step::Close => {
                self.pending.push(closed(self.epoch));
                self.kept.insert(self.epoch);
                self.epoch += 1;
                self.model.settled.clear();
            }
            Step::Delete(nth) => {
                let nth = nth % self.kept.len().max(1);
                if let Some(id) = self.kept.iter().nth(nth).copied() {
                    self.kept.remove(&id);
                    self.pending.push(deleted(id));
                }
            }
            Step::Compact => {
                self.apply();
                self.compact();
                self.floor = self.epoch;
            }
            Step::Apply => self.apply(),
            Step::Merge => self.index().merge(&|| false).unwrap(),
            Step::Reopen => self.reopen(None),
            Step::Tear(nth) => self.reopen(Some(*nth)),
        }
    }

    fn apply(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.bench.take(self.index(), &pending);
    }

    fn compact(&mut self) {
        self.bench.compact(self.index(), self.kept.iter().copied());
        self.model.compacted(&self.kept);
    }

    /// Reopens the index, with the file of run `torn` truncated if given.
    fn reopen(&mut self, torn: Option<usize>) {
        self.apply();
        self.index().flush_durable().unwrap();
        let (listed, _) = self.bench.runs(self.index());
        self.index = None;
        if let (Some(nth), false) = (torn, listed.is_empty()) {
            let path = self.bench.run(listed[nth % listed.len()]);
            let length = fs::metadata(&path).unwrap().len();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(length * (nth as u64 % 7) / 7).unwrap();
        }
        let (index, opening) = self.bench.index();
        match opening {
            IndexOpening::Ready => {}
            IndexOpening::Rebuild(RebuildReason::Damaged) if torn.is_some() => {
                index.rebuild(&self.bench.journal, None).unwrap()
            }
            other => panic!("{other:?}"),
        }
        self.index = Some(index);
    }

    /// Compares index and model at these checkpoints.
    fn same(&self, ids: &[u64]) -> Result<(), TestCaseError> {
        self.model.compare(self.index(), ids)?;
        let difference = self.index().compare(&self.bench.journal).unwrap();
        prop_assert_eq!(difference, IndexDifference::default());
        Ok(())
    }

    fn end(mut self) -> Result<(), TestCaseError> {
        self.apply();
        let ids: Vec<u64> = if self.floor == 0 {
            (0..=self.epoch).collect()
        } else {
            self.kept.iter().copied().collect()
        };
        self.same(&ids)?;
        self.index().merge(&|| false).unwrap();
        self.same(&ids)?;
        let grown = self.index().dump().unwrap();
        self.index().rebuild(&self.bench.journal, None).unwrap();
        let whole = self.index().dump().unwrap();
        // An entry that no checkpoint reads may be another record of that epoch.
        prop_assert!(ids.first() != Some(&0) || grown == whole);
        let is_known = |key| whole.binary_search_by(|(known, _)| known.cmp(key)).is_ok();
        prop_assert!(grown.iter().all(|(key, _)| is_known(key)));
        self.compact();
        self.same(&self.kept.iter().copied().collect::<Vec<_>>())?;
        self.index()
            .rebuild_in_memory(&self.bench.journal, None)
            .unwrap();
        self.model.compare(self.index(), &ids)
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn runs_say_what_a_map_of_every_record_says(steps in vec(step(), 0..60)) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.step(step));
        world.end()?;
    }
}
