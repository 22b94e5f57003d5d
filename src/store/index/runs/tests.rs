//! Merging, voiding, reopening, damage.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::tests::bench::Bench;
use super::super::{Index, IndexOpening, RetentionNeeds};
use super::*;
use crate::ids::{ObjectId, ObjectOrigin};
use crate::record::DataState;
use crate::record::{Key, Undo};
use crate::tests::made::{closed, data, deleted, entry, home, place, undo, void};
use ckptfs_api::CheckpointId;

mod model;

impl Bench {
    /// Returns the numbers of the listed runs, oldest first, and the count of files.
    pub fn runs(&self, index: &Index) -> (Vec<u64>, usize) {
        let parts = index.db.read();
        let list = parts.as_ref().unwrap().runs.list();
        let there = fs::read_dir(self.files().join("runs")).unwrap().count();
        (
            list.runs.iter().map(|listed| listed.run.number).collect(),
            there,
        )
    }
}

/// The history may be long, the files are few, and a flush removes unlisted ones.
#[test]
fn runs_are_merged_and_what_they_replace_is_removed() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    for epoch in 1..=300 {
        let records = vec![data(10 + epoch % 7, epoch), entry(2, b"a", 100)];
        bench.take(&index, &[undo(epoch, records)]);
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

/// A stopped merge leaves everything unchanged.
#[test]
fn a_merge_can_be_stopped() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    for epoch in 1..=4 {
        let records = (0..5000).map(|slot| data(10 + slot, epoch)).collect();
        bench.take(&index, &[undo(epoch, records)]);
    }
    let before = (bench.runs(&index), index.dump().unwrap());
    index.merge(&|| true).unwrap();
    index
        .compact(
            &RetentionNeeds {
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

/// A changed byte anywhere in a file is detected; no wrong value is returned, and nothing panics.
#[test]
fn a_changed_byte_is_found_when_it_is_read() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    let records = (0..200)
        .flat_map(|n| {
            [
                data(10 + n, n),
                entry(2 + n % 3, &[n as u8 | 0x80], 100 + n),
            ]
        })
        .collect();
    bench.take(&index, &[undo(1, records)]);
    index.flush_durable().unwrap();
    let right = index.dump().unwrap();
    let (listed, _) = bench.runs(&index);
    drop(index);
    let path = bench.run(listed[0]);
    let whole = fs::read(&path).unwrap();
    let mut found = 0;
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        match Run::open(1, RunSource::Memory(Arc::new(bytes))).and_then(|run| run.check()) {
            Ok(()) => panic!("byte {at}"),
            Err(StoreError::IndexDamaged | StoreError::Io { .. }) => found += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(found, whole.len());
    // Blocks are not read when a cleanly closed index is opened.
    let mut bytes = whole;
    bytes[100] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (index, opening) = bench.index();
    assert_eq!(opening, IndexOpening::Ready);
    assert!(matches!(index.dump(), Err(StoreError::IndexDamaged)));
    assert!((0..200).any(|n| matches!(
        index.first_after(&Key::Data(Slot(10 + n)), CheckpointId(0)),
        Err(StoreError::IndexDamaged)
    )));
    index.rebuild(&bench.journal, None).unwrap();
    assert!(right == index.dump().unwrap());
}

/// Records can be voided during a merge, and a merge replaces nothing in an index that was rebuilt
/// since.
#[test]
fn what_happens_during_a_merge_counts() {
    for rebuilt in [false, true] {
        let bench = Bench::new();
        let (index, _) = bench.index();
        let epoch = |epoch: u64| {
            bench.take(&index, &[undo(epoch, vec![data(10, epoch)]), closed(epoch)]);
        };
        (1..=4).for_each(epoch);
        let merge = index
            .with_parts("merge", |parts| parts.runs.merge(&|| false))
            .unwrap()
            .expect("four are due");
        bench.take(&index, &[void(2, 10)]);
        if rebuilt {
            index.rebuild(&bench.journal, None).unwrap();
        }
        // After a rebuild, files with these numbers belong to the new index.
        (5..=11).for_each(epoch);
        let before = (bench.runs(&index).0, index.dump().unwrap());
        assert!(
            !index
                .with_parts("list", |parts| super::super::put_merged(parts, merge))
                .unwrap()
        );
        assert_eq!(rebuilt, bench.runs(&index).0 == before.0);
        for number in bench.runs(&index).0 {
            assert!(bench.run(number).exists(), "{number}");
        }
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
        assert_eq!(bench.index().1, IndexOpening::Ready);
    }
}

/// Of a thousand checkpoints ten are kept: the index is as large as if the others had never
/// existed.
#[test]
fn what_only_deleted_checkpoints_needed_is_given_back() {
    let (all, all_held, of_all) = left_of_a_thousand(&|_| true);
    let (few, few_held, _) = left_of_a_thousand(&|number| number % 100 == 50);
    assert!(of_all > 100_000);
    assert!(
        all_held <= few_held + few_held / 20,
        "{all_held} bytes are left, and {few_held} are needed"
    );
    // The numbers of more epochs remain, which compress less: about a byte for each of the 6,000
    // records.
    assert!(
        all <= few + few / 20 + 6_000,
        "{all} bytes of files are left, and {few} are needed"
    );
}

/// Returns the bytes of files and of records left of a history with checkpoints at these numbers
/// after all except one in a hundred are deleted, and the number of entries before.
fn left_of_a_thousand(wanted: &dyn Fn(u64) -> bool) -> (u64, usize, usize) {
    let bench = Bench::new();
    let (index, _) = bench.index();
    let (mut kept, mut epoch) = (BTreeSet::new(), 1);
    for number in 0..1000 {
        let records = (0..60).flat_map(|n| {
            let slot = 10 + (number * 7 + n) % 600;
            [data(slot, number), home(slot, place(1, &[b'n'; 30]))]
        });
        bench.take(&index, &[undo(epoch, records.collect())]);
        // Without a checkpoint here the epoch continues.
        if wanted(number) {
            bench.take(&index, &[closed(epoch)]);
            kept.extend(Some(epoch).filter(|_| number % 100 == 50));
            epoch += 1;
        }
        index.merge(&|| false).unwrap();
    }
    let before = index.dump().unwrap().len();
    let gone = (1..epoch).filter(|id| !kept.contains(id)).map(deleted);
    bench.take(&index, &gone.collect::<Vec<_>>());
    bench.compact(&index, kept);
    assert!(index.compare(&bench.journal).unwrap().is_none());
    index.flush_durable().unwrap();
    let (listed, there) = bench.runs(&index);
    assert_eq!(listed.len(), there);
    let files = listed
        .into_iter()
        .map(|number| fs::metadata(bench.run(number)).unwrap().len());
    let in_runs = index.dump().unwrap().into_iter();
    let held = in_runs
        .filter(|(key, _)| keys::split_epoch(key).is_some())
        .map(|(key, value)| key.len() + value.len());
    (files.sum(), held.sum(), before)
}

/// A version that no checkpoint reads stays on record while its object exists, because its removal
/// needs the record.
#[test]
fn a_version_that_is_there_stays_on_record() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    for epoch in 1..=40 {
        let object = ObjectId {
            epoch: Epoch(epoch),
            slot: Slot(10),
            serial: 0,
            origin: ObjectOrigin::Cloned,
        };
        let before = DataState {
            object: Some(object),
            size: 1,
            provisional: false,
        };
        let slot = Slot(10);
        bench.take(&index, &[undo(epoch, vec![Undo::Data { slot, before }])]);
    }
    let upto = bench.journal.position();
    let found = || {
        let mut found = Vec::new();
        index.each_capture(|epoch, _| found.push(epoch.0)).unwrap();
        found
    };
    bench.compact_upto(&index, [7, 20], &|object| object.epoch.0 != 30, upto);
    assert_eq!(found(), [8, 21, 30]);
    // Records after the address are not examined, and a run with few droppable records is not
    // rewritten.
    bench.take(&index, &[undo(41, vec![data(11, 1)])]);
    bench.compact_upto(&index, [], &|_| true, upto);
    assert_eq!(found(), [41]);
    bench.compact(&index, [40]);
    assert_eq!(found(), [41]);
}

/// A reader receives all records before the returned address while batches are applied. The census
/// of `gc` missed the records of an epoch.
#[test]
fn captures_are_complete_up_to_where_the_journal_is_applied() {
    const EPOCHS: u64 = 200;
    let bench = Bench::new();
    let (index, _) = bench.index();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for epoch in 1..=EPOCHS {
                bench.take(&index, &[undo(epoch, vec![data(epoch, epoch)])]);
            }
            done.store(true, Ordering::Relaxed);
        });
        let read = || {
            while !done.load(Ordering::Relaxed) {
                let mut found = 0;
                let end = index.each_capture(|_, _| found += 1).unwrap();
                let told = bench.journal.scan(Address::START, Some(end)).count();
                assert!(found >= told, "{found} of {told}");
            }
        };
        // More threads than cores, to interrupt the writer anywhere.
        (0..6).for_each(|_| drop(scope.spawn(read)));
    });
}
