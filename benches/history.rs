//! History operations without a mount: journal frames, lookups of the past, the dirty set, and
//! listings of a view.
//!
//! `CKPTFS_BENCH_DIR` names the work directory and thus the filesystem; `make bench-compare
//! BASE=REV` compares two revisions.

#[path = "shared/store.rs"]
mod empty;

use std::fs::File;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

use ckptfs_api::{CheckpointId, Epoch, Reason};
use ckptfs_core::history::attribution::Author;
use ckptfs_core::history::present::{LiveTree, Trail};
use ckptfs_core::history::state::TreeState;
use ckptfs_core::history::timeline::Timeline;
use ckptfs_core::history::view::View;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Checkpoint, Child, DataState, Key, Place, Record, Undo};
use ckptfs_sys::{Errno, Kind, SysResult, Xattrs};
use empty::store;

/// Records encoded or decoded per iteration.
const FRAMES: u64 = 1000;
/// Numbers of changes since a checkpoint.
const CHANGES: [u64; 2] = [60, 10_000];
/// Names in the listed directory, and how many changed since the checkpoint.
const NAMES: u64 = 1000;
const CHANGED: u64 = 100;
/// The listed directory.
const DIR: Slot = Slot(1 << 40);

/// Returns a history without changes; no indexer thread runs.
fn timeline() -> (tempfile::TempDir, Timeline) {
    let (dir, store) = store();
    (
        dir,
        Timeline::open(Arc::new(store))
            .expect("an empty history can be opened")
            .0,
    )
}

fn name(number: u64) -> Name {
    Name::new(format!("file-{number:05}.rs").as_bytes())
}

fn file(number: u64) -> Child {
    Child {
        slot: Slot(number + 1000),
        kind: Kind::File,
    }
}

/// Returns the records of the first write to a file in an epoch.
fn written(number: u64) -> Vec<Undo> {
    let slot = file(number).slot;
    let place = Place {
        parent: Slot(number / 50 + 2),
        name: name(number),
    };
    vec![
        Undo::Data {
            slot,
            before: DataState {
                object: None,
                size: number,
                provisional: false,
            },
        },
        Undo::Home {
            slot,
            before: place,
        },
    ]
}

fn seal(timeline: &Timeline, id: u64) -> CheckpointId {
    let (id, reason) = (CheckpointId(id), Reason::Asked);
    let checkpoint = Checkpoint {
        id,
        tags: Vec::new(),
        note: String::new(),
        created_ns: 1,
        atomic: true,
        dirty: 1,
        reason,
    };
    timeline
        .close_epoch(None, checkpoint, Vec::new(), &[])
        .expect("the disk has space");
    id
}

fn frames(criterion: &mut Criterion) {
    let (_dir, store) = store();
    let records: Vec<Record> = (0..FRAMES)
        .map(|number| Record::Undo {
            epoch: Epoch(1),
            undo: written(number),
        })
        .collect();
    let from = store.journal.position();
    store.journal.append(&records).expect("the disk has space");
    let to = store.journal.position();
    let mut group = criterion.benchmark_group("journal");
    group.throughput(Throughput::Elements(FRAMES));
    group.bench_function("encode 1,000 frames (one append)", |bencher| {
        bencher.iter(|| store.journal.append(&records).expect("the disk has space"));
    });
    group.bench_function("decode 1,000 frames (scan)", |bencher| {
        bencher.iter(|| {
            let mut read = 0;
            for frame in store.journal.scan(from, Some(to)) {
                black_box(frame.expect("the frame is complete"));
                read += 1;
            }
            assert_eq!(read, FRAMES);
        });
    });
    group.finish();
}

fn dirty(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dirty set");
    for changes in CHANGES {
        let (_dir, timeline) = timeline();
        let before = seal(&timeline, 1);
        (0..changes).for_each(|number| {
            timeline
                .epochs
                .record(&Author::default(), written(number), Vec::new())
                .expect("the disk has space")
        });
        group.throughput(Throughput::Elements(changes));
        group.bench_function(format!("paths touched by {changes} changes"), |bencher| {
            bencher.iter(|| black_box(timeline.touched(before, None).expect("it can be read")));
        });
        let mut number = 0;
        group.throughput(Throughput::Elements(1));
        group.bench_function(
            format!("whether a key needs a record, {changes} have one"),
            |bencher| {
                bencher.iter(|| {
                    number = (number + 7919) % (2 * changes);
                    black_box(timeline.epochs.needs(&Key::Data(file(number).slot)))
                });
            },
        );
    }
    let (_dir, timeline) = timeline();
    seal(&timeline, 1);
    let mut number = 0;
    group.bench_function("record the first change of a file", |bencher| {
        let prepare = || {
            number += 1;
            written(number)
        };
        bencher.iter_batched(
            prepare,
            |undo| {
                timeline
                    .epochs
                    .record(&Author::default(), undo, Vec::new())
                    .expect("the disk has space")
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// A live tree of one directory that answers immediately, so that only the view is measured.
struct OneDirectory(Vec<(Name, Child)>);

impl LiveTree for OneDirectory {
    fn child(&self, _: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        Ok(self
            .0
            .binary_search_by(|(known, _)| known.cmp(name))
            .ok()
            .map(|index| self.0[index].1))
    }
    fn list(&self, _: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        Ok(self.0.clone())
    }
    fn attr(&self, _: &Arc<Trail>) -> SysResult<AttrState> {
        Err(Errno::ESTALE)
    }
    fn xattrs(&self, _: &Arc<Trail>) -> SysResult<Xattrs> {
        Ok(Vec::new())
    }
    fn open(&self, _: &Arc<Trail>) -> SysResult<File> {
        Err(Errno::ESTALE)
    }
    fn renames(&self) -> Option<u64> {
        Some(0)
    }
}

fn views(criterion: &mut Criterion) {
    let (_dir, timeline) = timeline();
    let at = seal(&timeline, 1);
    // Every tenth name was removed since.
    let removed = |number: &u64| number.is_multiple_of(NAMES / CHANGED);
    for number in (0..NAMES).filter(removed) {
        let undo = vec![Undo::Entry {
            dir: DIR,
            name: name(number),
            before: Some(file(number)),
        }];
        timeline
            .epochs
            .record(&Author::default(), undo, Vec::new())
            .expect("the disk has space");
    }
    let present = OneDirectory(
        (0..NAMES)
            .filter(|number| !removed(number))
            .map(|number| (name(number), file(number)))
            .collect(),
    );
    let view = View::new(&timeline, &present, TreeState::At(at));
    let dir = Trail::root().step(&Name::new(b"d"), DIR);
    let mut group = criterion.benchmark_group("view");
    group.throughput(Throughput::Elements(NAMES));
    group.bench_function("list 1,000 names, 100 of them removed since", |bencher| {
        bencher.iter(|| {
            let names = view.list(&dir).expect("it can be listed");
            assert_eq!(names.len() as u64, NAMES);
            names
        });
    });
    group.throughput(Throughput::Elements(1));
    let mut number = 0;
    group.bench_function("look a name up", |bencher| {
        bencher.iter(|| {
            number = (number + 7919) % NAMES;
            black_box(view.step(&dir, &name(number)).expect("it can be looked up")).is_some()
        });
    });
    group.finish();
}

criterion_group! { name = benches; config = Criterion::default().sample_size(50); targets = frames, dirty, views }
criterion_main!(benches);
