//! Runs beside a model that has every record in one map; merging, striking, reopening, damage.

use std::collections::BTreeMap;
use std::fs::{self, File};

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::tests::Bench;
use super::super::{Batch, Difference, Doubt, Index, Needs, Opening};
use super::*;
use crate::store::ids::{CheckpointId, ObjectId, ObjectOrigin};
use crate::store::record::{Checkpoint, Child, DataState, Place, Reason, Record};
use crate::sys::Kind;
use crate::sys::fuzz::config;

impl Bench {
    /// The files of the runs that are listed, the oldest first, and those that are there.
    fn runs(&self, index: &Index) -> (Vec<u64>, usize) {
        let parts = index.db.read();
        let list = parts.as_ref().unwrap().runs.list();
        let there = fs::read_dir(self.dir.path().join(".ckptfs/index/runs"))
            .unwrap()
            .count();
        (
            list.runs.iter().map(|listed| listed.run.number).collect(),
            there,
        )
    }

    fn compact(&self, index: &Index, kept: &BTreeSet<u64>) {
        let kept: Vec<CheckpointId> = kept.iter().map(|id| CheckpointId(*id)).collect();
        index
            .compact(
                &Needs {
                    kept: &kept,
                    is_gone: &|_| true,
                    upto: self.journal.position(),
                },
                &|| false,
            )
            .unwrap();
    }

    /// Writes records to the journal and applies them in one batch.
    fn take(&self, index: &Index, records: &[Record]) {
        let mut batch = Batch::after(index.catalogue().last_checkpoint().unwrap());
        for (record, at) in records.iter().zip(self.journal.append(records).unwrap()) {
            batch.add(at, record).unwrap();
        }
        index.apply(&mut batch).unwrap();
    }
}

fn entry(dir: u64, name: u8, to: u64) -> Undo {
    Undo::Entry {
        dir: Slot(dir),
        name: Name::new(&[name]),
        before: Some(Child {
            slot: Slot(100 + to),
            kind: Kind::File,
        }),
    }
}

fn data(slot: u64, size: u64) -> Undo {
    Undo::Data {
        slot: Slot(slot),
        before: DataState {
            object: None,
            size,
            provisional: true,
        },
    }
}

fn home(slot: u64, name: u8) -> Undo {
    Undo::Home {
        slot: Slot(slot),
        before: Place {
            parent: Slot(1),
            name: Name::new(&[name]),
        },
    }
}

#[derive(Clone, Debug)]
enum Step {
    Undo(Vec<Undo>),
    /// An inode is moved, and it may be that no undo record tells where to.
    Moved(u64, u8),
    /// A data record of the open epoch, or of so many before, is taken back.
    Void(u64, u64),
    /// The next epoch.
    Close,
    /// What was recorded since goes into the index.
    Apply,
    Merge,
    /// The nth checkpoint that is there is deleted.
    Delete(usize),
    /// What the deleted ones alone needed goes.
    Compact,
    Reopen,
    /// The file of the nth run is not whole.
    Tear(usize),
}

fn undo() -> impl Strategy<Value = Undo> {
    prop_oneof![
        (2..5_u64, b'a'..b'f', 0..9_u64).prop_map(|(dir, name, to)| entry(dir, name, to)),
        (10..16_u64, 0..1000_u64).prop_map(|(slot, size)| data(slot, size)),
        (10..16_u64, b'a'..=b'z').prop_map(|(slot, name)| home(slot, name)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => vec(undo(), 1..6).prop_map(Step::Undo),
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

/// What every key held before it first changed in each epoch.
#[derive(Default)]
struct Model {
    records: BTreeMap<(Key, Epoch), Undo>,
    places: BTreeMap<u64, Place>,
    /// Inodes without a record that was read when runs were put together: where they are may be
    /// forgotten.
    forgotten: BTreeSet<u64>,
    /// Inodes that were moved in the open epoch, or have a record of their home.
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
    /// Takes a record; `false`: it cannot be made. Of an inode's home one is made in an epoch,
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

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let bench = Bench::new();
    let (mut index, _) = bench.index();
    // A tree is never without an index: what is torn later is told from what never was.
    let mut model = Model::default();
    let (mut epoch, mut pending) = (1u64, Vec::new());
    // Before this epoch nothing is taken back any more.
    let (mut kept, mut floor) = (BTreeSet::new(), 0);
    for step in steps {
        match step {
            Step::Undo(undo) => {
                let undo = undo
                    .iter()
                    .filter(|undo| model.take(undo, Epoch(epoch)))
                    .cloned()
                    .collect();
                pending.push(Record::Undo {
                    epoch: Epoch(epoch),
                    undo,
                });
            }
            Step::Moved(slot, name) => {
                let place = Place {
                    parent: Slot(1),
                    name: Name::new(&[*name]),
                };
                model.settled.insert(*slot);
                model.place(Slot(*slot), &place);
                pending.push(Record::Moved {
                    places: vec![(Slot(*slot), place)],
                });
            }
            Step::Void(slot, back) => {
                let of = Epoch(epoch.saturating_sub(*back).max(1).max(floor));
                model.records.remove(&(Key::Data(Slot(*slot)), of));
                pending.push(Record::Void {
                    epoch: of,
                    slot: Slot(*slot),
                });
            }
            Step::Close => {
                let (id, note) = (CheckpointId(epoch), String::new());
                pending.push(Record::Checkpoint(Checkpoint {
                    id,
                    tags: vec![],
                    note,
                    created_ns: 1,
                    atomic: true,
                    dirty: 0,
                    reason: Reason::Asked,
                }));
                kept.insert(epoch);
                epoch += 1;
                model.settled.clear();
            }
            Step::Delete(nth) => {
                let Some(id) = kept.iter().nth(nth % kept.len().max(1)).copied() else {
                    continue;
                };
                kept.remove(&id);
                pending.push(Record::Deleted {
                    id: CheckpointId(id),
                });
            }
            Step::Compact => {
                bench.take(&index, &std::mem::take(&mut pending));
                bench.compact(&index, &kept);
                model.compacted(&kept);
                floor = epoch;
            }
            Step::Apply => bench.take(&index, &std::mem::take(&mut pending)),
            Step::Merge => index.merge(&|| false).unwrap(),
            Step::Reopen | Step::Tear(_) => {
                bench.take(&index, &std::mem::take(&mut pending));
                index.flush_durable().unwrap();
                let (listed, _) = bench.runs(&index);
                drop(index);
                if let (Step::Tear(nth), false) = (step, listed.is_empty()) {
                    let path = bench
                        .dir
                        .path()
                        .join(format!(".ckptfs/index/runs/{}", listed[nth % listed.len()]));
                    let length = fs::metadata(&path).unwrap().len();
                    File::options()
                        .write(true)
                        .open(&path)
                        .unwrap()
                        .set_len(length * (*nth as u64 % 7) / 7)
                        .unwrap();
                }
                let opening;
                (index, opening) = bench.index();
                match (opening, step) {
                    (Opening::Ready, _) => {}
                    (Opening::Rebuild(Doubt::Damaged), Step::Tear(_)) => {
                        index.rebuild(&bench.journal, None).unwrap()
                    }
                    (other, _) => panic!("{other:?}"),
                }
            }
        }
    }
    bench.take(&index, &pending);
    let ids: Vec<u64> = if floor == 0 {
        (0..=epoch).collect()
    } else {
        kept.iter().copied().collect()
    };
    end(&bench, &index, &mut model, &kept, &ids)
}

/// At the end of a run: what is asked about is in `ids`.
fn end(
    bench: &Bench,
    index: &Index,
    model: &mut Model,
    kept: &BTreeSet<u64>,
    ids: &[u64],
) -> Result<(), TestCaseError> {
    let same = |model: &Model, ids: &[u64]| {
        model.compare(index, ids)?;
        prop_assert_eq!(
            index.compare(&bench.journal).unwrap(),
            Difference::default()
        );
        Ok(())
    };
    same(model, ids)?;
    index.merge(&|| false).unwrap();
    same(model, ids)?;
    let grown = index.dump().unwrap();
    index.rebuild(&bench.journal, None).unwrap();
    let whole = index.dump().unwrap();
    // What nobody reads may be another record of that epoch.
    prop_assert!(ids.first() != Some(&0) || grown == whole);
    prop_assert!(
        grown
            .iter()
            .all(|(key, _)| whole.binary_search_by(|(known, _)| known.cmp(key)).is_ok())
    );
    bench.compact(index, kept);
    model.compacted(kept);
    same(model, &kept.iter().copied().collect::<Vec<_>>())?;
    index.rebuild_in_memory(&bench.journal, None).unwrap();
    model.compare(index, ids)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn runs_say_what_a_map_of_every_record_says(steps in vec(step(), 0..60)) {
        run(&steps)?;
    }
}

/// Few files, whatever the history; and none that is not listed after a flush.
#[test]
fn runs_are_merged_and_what_they_replace_is_removed() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    for epoch in 1..=300 {
        bench.take(
            &index,
            &[Record::Undo {
                epoch: Epoch(epoch),
                undo: vec![data(10 + epoch % 7, epoch), entry(2, b'a', 0)],
            }],
        );
        index.merge(&|| false).unwrap();
    }
    let (listed, there) = bench.runs(&index);
    // 300 = 1 * 4^4 + 0 * 4^3 + 2 * 4^2 + 3 * 4 + 0
    assert_eq!(listed.len(), 1 + 2 + 3);
    assert!(there > listed.len());
    index.flush_durable().unwrap();
    assert_eq!(bench.runs(&index).1, listed.len());
    assert_eq!(
        index
            .first_after(&Key::Data(Slot(10)), CheckpointId(290))
            .unwrap(),
        Some((Epoch(294), data(10, 294)))
    );
}

/// A merge that is told to end leaves everything as it was.
#[test]
fn a_merge_can_be_stopped() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    for epoch in 1..=4 {
        let undo = (0..5000).map(|slot| data(10 + slot, epoch)).collect();
        bench.take(
            &index,
            &[Record::Undo {
                epoch: Epoch(epoch),
                undo,
            }],
        );
    }
    let before = (bench.runs(&index), index.dump().unwrap());
    index.merge(&|| true).unwrap();
    index
        .compact(
            &Needs {
                kept: &[],
                is_gone: &|_| true,
                upto: bench.journal.position(),
            },
            &|| true,
        )
        .unwrap();
    assert!(before == (bench.runs(&index), index.dump().unwrap()));
    index.merge(&|| false).unwrap();
    assert_eq!(bench.runs(&index).0.len(), 1);
    assert!(before.1 == index.dump().unwrap());
}

/// Where in a file it is makes no difference: it is found, nothing else is said, and nothing
/// panics.
#[test]
fn a_changed_byte_is_found_when_it_is_read() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    let undo: Vec<_> = (0..200)
        .flat_map(|n| [data(10 + n, n), entry(2 + n % 3, n as u8 | 0x80, n)])
        .collect();
    bench.take(
        &index,
        &[Record::Undo {
            epoch: Epoch(1),
            undo,
        }],
    );
    index.flush_durable().unwrap();
    let right = index.dump().unwrap();
    let (listed, _) = bench.runs(&index);
    drop(index);
    let path = bench
        .dir
        .path()
        .join(format!(".ckptfs/index/runs/{}", listed[0]));
    let whole = fs::read(&path).unwrap();
    let mut found = 0;
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        match Run::open(1, Bytes::Memory(Arc::new(bytes))).and_then(|run| run.check()) {
            Ok(()) => panic!("byte {at}"),
            Err(StoreError::IndexDamaged | StoreError::Io { .. }) => found += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(found, whole.len());
    // In a block, which nobody reads at the opening of an index that was closed well.
    let mut bytes = whole;
    bytes[100] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (index, opening) = bench.index();
    assert_eq!(opening, Opening::Ready);
    assert!(matches!(index.dump(), Err(StoreError::IndexDamaged)));
    assert!((0..200).any(|n| matches!(
        index.first_after(&Key::Data(Slot(10 + n)), CheckpointId(0)),
        Err(StoreError::IndexDamaged)
    )));
    index.rebuild(&bench.journal, None).unwrap();
    assert!(right == index.dump().unwrap());
}

/// While a merge is made, others go on: what they take back stays so, and of an index that is
/// another by then nothing is replaced.
#[test]
fn what_happens_during_a_merge_counts() {
    for rebuilt in [false, true] {
        let bench = Bench::new();
        let (index, _) = bench.index();
        let epoch = |epoch: u64| {
            let note = String::new();
            let closed = Checkpoint {
                id: CheckpointId(epoch),
                tags: vec![],
                note,
                created_ns: 1,
                atomic: true,
                dirty: 0,
                reason: Reason::Asked,
            };
            bench.take(
                &index,
                &[
                    Record::Undo {
                        epoch: Epoch(epoch),
                        undo: vec![data(10, epoch)],
                    },
                    Record::Checkpoint(closed),
                ],
            );
        };
        (1..=4).for_each(epoch);
        let merge = index
            .with_parts("merge", |parts| parts.runs.merge(&|| false))
            .unwrap()
            .expect("four are due");
        bench.take(
            &index,
            &[Record::Void {
                epoch: Epoch(2),
                slot: Slot(10),
            }],
        );
        if rebuilt {
            index.rebuild(&bench.journal, None).unwrap();
        }
        // Files of these numbers are another's by now, if it was made anew.
        (5..=11).for_each(epoch);
        let before = (bench.runs(&index).0, index.dump().unwrap());
        assert!(
            !index
                .with_parts("list", |parts| super::super::put_merged(parts, merge))
                .unwrap()
        );
        assert_eq!(rebuilt, bench.runs(&index).0 == before.0);
        bench.runs(&index).0.iter().for_each(|number| {
            assert!(
                bench
                    .dir
                    .path()
                    .join(format!(".ckptfs/index/runs/{number}"))
                    .exists(),
                "{number}"
            )
        });
        assert!(before.1 == index.dump().unwrap());
        assert_eq!(
            index
                .first_after(&Key::Data(Slot(10)), CheckpointId(1))
                .unwrap(),
            Some((Epoch(3), data(10, 3)))
        );
        index.merge(&|| false).unwrap();
        assert!(
            before.1 == index.dump().unwrap() && index.compare(&bench.journal).unwrap().is_none()
        );
        index.flush_durable().unwrap();
        drop(index);
        assert_eq!(bench.index().1, Opening::Ready);
    }
}

/// A thousand checkpoints, of which ten are kept: what is left is what these read, and is as large
/// as if there had never been others.
#[test]
fn what_only_deleted_checkpoints_needed_is_given_back() {
    let at = |slot| Undo::Home {
        slot: Slot(slot),
        before: Place {
            parent: Slot(1),
            name: Name::new(&[b'n'; 30]),
        },
    };
    let bytes = |wanted: &dyn Fn(u64) -> bool| {
        let bench = Bench::new();
        let (index, _) = bench.index();
        let mut kept = BTreeSet::new();
        let mut epoch = 1;
        for number in 0..1000 {
            let undo = (0..60)
                .flat_map(|n| {
                    [
                        data(10 + (number * 7 + n) % 600, number),
                        at(10 + (number * 7 + n) % 600),
                    ]
                })
                .collect();
            let closed = CheckpointId(epoch);
            bench.take(
                &index,
                &[Record::Undo {
                    epoch: Epoch(epoch),
                    undo,
                }],
            );
            // Where there never was another, the epoch goes on.
            if wanted(number) {
                let note = String::new();
                let closed = Checkpoint {
                    id: closed,
                    tags: vec![],
                    note,
                    created_ns: 1,
                    atomic: true,
                    dirty: 0,
                    reason: Reason::Asked,
                };
                bench.take(&index, &[Record::Checkpoint(closed)]);
                kept.extend(Some(epoch).filter(|_| number % 100 == 50));
                epoch += 1;
            }
            index.merge(&|| false).unwrap();
        }
        let before = index.dump().unwrap().len();
        let gone: Vec<Record> = (1..epoch)
            .filter(|id| !kept.contains(id))
            .map(|id| Record::Deleted {
                id: CheckpointId(id),
            })
            .collect();
        bench.take(&index, &gone);
        bench.compact(&index, &kept);
        assert!(index.compare(&bench.journal).unwrap().is_none());
        index.flush_durable().unwrap();
        let (listed, there) = bench.runs(&index);
        assert_eq!(listed.len(), there);
        let size = |number: &u64| {
            fs::metadata(
                bench
                    .dir
                    .path()
                    .join(format!(".ckptfs/index/runs/{number}")),
            )
            .unwrap()
            .len()
        };
        let in_runs = index
            .dump()
            .unwrap()
            .into_iter()
            .filter(|(key, _)| keys::split_epoch(key).is_some());
        let held: usize = in_runs.map(|(key, value)| key.len() + value.len()).sum();
        (listed.iter().map(size).sum::<u64>(), held, before)
    };
    let (all, all_held, of_all) = bytes(&|_| true);
    let (few, few_held, _) = bytes(&|number| number % 100 == 50);
    assert!(of_all > 100_000);
    assert!(
        all_held <= few_held + few_held / 20,
        "{all_held} bytes are left, and {few_held} are needed"
    );
    // The numbers of more epochs stay, which compress less: a byte or so for each of the 6,000
    // records.
    assert!(
        all <= few + few / 20 + 6_000,
        "{all} bytes of files are left, and {few} are needed"
    );
}

/// As long as its object is there, a version that nobody reads is on record: what is to remove it
/// asks for that.
#[test]
fn a_version_that_is_there_stays_on_record() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    let object = |epoch: u64| ObjectId {
        epoch: Epoch(epoch),
        slot: Slot(10),
        serial: 0,
        origin: ObjectOrigin::Cloned,
    };
    for epoch in 1..=40 {
        let before = DataState {
            object: Some(object(epoch)),
            size: 1,
            provisional: false,
        };
        bench.take(
            &index,
            &[Record::Undo {
                epoch: Epoch(epoch),
                undo: vec![Undo::Data {
                    slot: Slot(10),
                    before,
                }],
            }],
        );
    }
    let upto = bench.journal.position();
    let found = || {
        let mut found = Vec::new();
        index.each_capture(|epoch, _| found.push(epoch.0)).unwrap();
        found
    };
    index
        .compact(
            &Needs {
                kept: &[CheckpointId(7), CheckpointId(20)],
                is_gone: &|object| object.epoch.0 != 30,
                upto,
            },
            &|| false,
        )
        .unwrap();
    assert_eq!(found(), [8, 21, 30]);
    // Behind the place nothing is looked at, and little of little is left where it is.
    bench.take(
        &index,
        &[Record::Undo {
            epoch: Epoch(41),
            undo: vec![data(11, 1)],
        }],
    );
    index
        .compact(
            &Needs {
                kept: &[],
                is_gone: &|_| true,
                upto,
            },
            &|| false,
        )
        .unwrap();
    assert_eq!(found(), [41]);
    index
        .compact(
            &Needs {
                kept: &[CheckpointId(40)],
                is_gone: &|_| true,
                upto: bench.journal.position(),
            },
            &|| false,
        )
        .unwrap();
    assert_eq!(found(), [41]);
}
