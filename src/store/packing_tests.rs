//! Records omitted from packs, and the comparison of the index with a packed journal.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::super::ids::ObjectOrigin;
use super::super::tests::made::{closed, data, deleted, place, undo};
use super::*;
use crate::index::IndexDifference;

const EPOCHS: u64 = 30;

fn store(dir: &tempfile::TempDir) -> Store {
    Store::open(File::open(dir.path()).unwrap(), true)
        .unwrap()
        .0
}

/// Appends and applies records, and closes their segment.
fn put(store: &Store, records: &[Record]) {
    let places = store.journal.append(records).unwrap();
    let mut batch = Batch::after(store.index.catalogue().last_checkpoint().unwrap());
    for (record, at) in records.iter().zip(places) {
        batch.add(at, record).unwrap();
    }
    store.index.apply(&mut batch).unwrap();
    store.journal.close_segment(0).unwrap();
}

fn repack(store: &Store, kept: &[CheckpointId]) {
    let needs = RetentionNeeds {
        kept,
        is_gone: &|_| true,
        upto: store.journal.position(),
    };
    store.index.compact(&needs, &|| false).unwrap();
    store.repack(&needs, &|| false, |_| {}).unwrap();
}

/// Hashes of objects of an epoch, none of which exists.
fn hashes(epoch: u64) -> Record {
    let object = ObjectId {
        epoch: Epoch(epoch),
        slot: Slot(10),
        serial: 1,
        origin: ObjectOrigin::Cloned,
    };
    Record::Hashes {
        epoch: Epoch(epoch),
        objects: vec![ObjectHash {
            object,
            size: 1,
            hash: [1; 32],
        }],
        whole: true,
    }
}

/// A comparison during a gc reported "N entries are missing": it read one record before its segment
/// was packed, and a related one afterwards.
#[test]
fn a_comparison_while_segments_are_packed_finds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    for epoch in 1..=EPOCHS {
        put(
            &store,
            &[
                undo(epoch, vec![data(10, epoch), data(11, epoch)]),
                closed(epoch),
            ],
        );
    }
    let gone: Vec<Record> = (1..EPOCHS - 1).map(deleted).collect();
    put(&store, &gone);
    // The index is applied up to the last checkpoint.
    put(
        &store,
        &[undo(EPOCHS + 1, vec![data(10, 0)]), closed(EPOCHS + 1)],
    );
    let kept = [EPOCHS - 1, EPOCHS, EPOCHS + 1].map(CheckpointId);
    let is_packed = AtomicBool::new(false);
    let compared = thread::scope(|scope| {
        let comparing = scope.spawn(|| {
            let mut compared = Vec::new();
            while !is_packed.load(Ordering::SeqCst) || compared.is_empty() {
                compared.push(store.index.compare(&store.journal).unwrap());
            }
            compared
        });
        repack(&store, &kept);
        is_packed.store(true, Ordering::SeqCst);
        comparing.join().unwrap()
    });
    let wrong: Vec<_> = compared.iter().filter(|found| !found.is_none()).collect();
    assert!(wrong.is_empty(), "{wrong:?} of {}", compared.len());
    assert!(store.index.compare(&store.journal).unwrap().is_none());
}

/// After a gc and a kill a comparison reported "N should not be there": the index on disk still had
/// hashes whose records had left the journal.
#[test]
fn hashes_that_a_pack_leaves_out_stay_forgotten_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    put(&store, &[undo(1, vec![data(10, 1)]), hashes(1), closed(1)]);
    store.index.flush_durable().unwrap();
    let (index, killed) = (dir.path().join(".ckptfs/index"), dir.path().join("killed"));
    assert_eq!(store.index.catalogue().seals(Epoch(1)).unwrap().len(), 1);
    repack(&store, &[CheckpointId(1)]);
    assert_eq!(store.index.catalogue().seals(Epoch(1)).unwrap(), []);
    // A kill leaves this state on disk.
    copy_dir(&index, &killed);
    drop(store);
    fs::remove_dir_all(&index).unwrap();
    fs::rename(&killed, &index).unwrap();
    let (store, opened) = Store::open(File::open(dir.path()).unwrap(), false).unwrap();
    assert_eq!(opened.rebuilt, None);
    assert_eq!(store.index.catalogue().seals(Epoch(1)).unwrap(), []);
    assert_eq!(
        store.index.compare(&store.journal).unwrap(),
        IndexDifference::default()
    );
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A comparison reported "N are wrong" while the indexer was between two pieces of an epoch, and a
/// later epoch had another value of a key.
#[test]
fn an_epoch_that_is_half_applied_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    let moved = |epoch: u64| Record::Moved {
        places: (10..20)
            .map(|slot| (Slot(slot), place(epoch, b"f")))
            .collect(),
    };
    put(&store, &[closed(1)]);
    let records = [moved(2), closed(2), moved(3), closed(3)];
    let places = store.journal.append(&records).unwrap();
    let mut batch = Batch::after(Some(CheckpointId(1)));
    for (record, at) in records.iter().zip(places).take(2) {
        batch.add(at, record).unwrap();
    }
    for mut piece in batch.pieces(4) {
        store.index.apply(&mut piece).unwrap();
        assert_eq!(
            store.index.compare(&store.journal).unwrap(),
            IndexDifference::default()
        );
    }
}
