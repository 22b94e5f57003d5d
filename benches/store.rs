//! The store without a mount: cost of a change, a checkpoint, a lookup of the past, and the
//! indexer.
//!
//! `CKPTFS_BENCH_DIR` names the work directory and thus the filesystem.

#[path = "shared/store.rs"]
mod empty;

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

use ckptfs_api::{CheckpointId, Epoch, Reason};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Checkpoint, Child, Key, Place, Record, Undo};
use ckptfs_store::{Batch, Store};
use ckptfs_sys::Kind;
use empty::store;

/// Keys in the index during lookups.
const KEYS: u64 = 100_000;

fn name(number: u64) -> Name {
    Name::new(format!("file-{number}.rs").as_bytes())
}

/// Returns the record of an unlink: the name and the inode's place.
fn unlinked(epoch: u64, number: u64) -> Record {
    let child = Child {
        slot: Slot(number + 1000),
        kind: Kind::File,
    };
    let place = Place {
        parent: Slot(number / 50 + 2),
        name: name(number),
    };
    let entry = Undo::Entry {
        dir: place.parent,
        name: place.name.clone(),
        before: Some(child),
    };
    Record::Undo {
        epoch: Epoch(epoch),
        undo: vec![
            entry,
            Undo::Home {
                slot: child.slot,
                before: place,
            },
        ],
    }
}

fn checkpoint(id: u64) -> Record {
    let (id, reason) = (CheckpointId(id), Reason::Asked);
    Record::Checkpoint(Checkpoint {
        id,
        tags: Vec::new(),
        note: String::new(),
        created_ns: 1,
        atomic: true,
        dirty: 1,
        reason,
    })
}

/// Appends the records of an epoch and returns them as a batch for the index.
fn epoch(store: &Store, epoch: u64, changes: u64) -> Batch {
    let mut batch = Batch::new();
    for number in 0..changes {
        let record = unlinked(epoch, number);
        let at = store
            .journal
            .append(std::slice::from_ref(&record))
            .expect("the disk has space");
        batch
            .add(*at.first().expect("one record has one position"), &record)
            .expect("a record fits");
    }
    batch
}

fn journal(criterion: &mut Criterion) {
    let (_dir, store) = store();
    let mut number = 0;
    criterion.bench_function("journal: append an undo record", |bencher| {
        bencher.iter(|| {
            number += 1;
            store
                .journal
                .append(&[unlinked(1, number)])
                .expect("the disk has space")
        });
    });
    criterion.bench_function("journal: append a checkpoint", |bencher| {
        bencher.iter(|| {
            store
                .journal
                .append(&[checkpoint(1)])
                .expect("the disk has space")
        });
    });
}

fn index(criterion: &mut Criterion) {
    let (_dir, store) = store();
    let mut batch = epoch(&store, 5, KEYS);
    store.index.apply(&mut batch).expect("the disk has space");
    let mut number = 0;
    let mut next = || {
        number = (number + 7919) % KEYS;
        Key::Entry(Slot(number / 50 + 2), name(number))
    };
    criterion.bench_function(
        "index: find the first record after a checkpoint",
        |bencher| {
            bencher.iter(|| {
                black_box(
                    store
                        .index
                        .first_after(&next(), CheckpointId(3))
                        .expect("it can be read"),
                )
            });
        },
    );
    criterion.bench_function("index and journal: read that record", |bencher| {
        bencher.iter(|| {
            let found = store
                .index
                .first_after(&next(), CheckpointId(3))
                .expect("it can be read")
                .expect("it exists");
            black_box(found)
        });
    });
    criterion.bench_function("index: find that a key has no record", |bencher| {
        bencher.iter(|| {
            black_box(
                store
                    .index
                    .first_after(&next(), CheckpointId(9))
                    .expect("it can be read"),
            )
        });
    });
}

fn idle(criterion: &mut Criterion) {
    let (_dir, store) = store();
    let mut number = 0;
    criterion.bench_function("index: apply an epoch of 60 changes", |bencher| {
        let prepare = || {
            number += 1;
            epoch(&store, number, 60)
        };
        bencher.iter_batched(
            prepare,
            |mut batch| store.index.apply(&mut batch).expect("the disk has space"),
            BatchSize::PerIteration,
        );
    });
}

criterion_group! { name = benches; config = Criterion::default().sample_size(30); targets = journal, index, idle }
criterion_main!(benches);
