//! Removal of records after deletions: random histories, comparing the tables before and after it,
//! after a mount, and with a rebuilt index.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::append::now_ns;
use super::attribution::Author;
use super::operations::Walk;
use super::timeline::Timeline;
use ckptfs_api::{Actor, CheckpointId, Epoch, Reason};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::operation::{Operation, OperationEffect, TagChange};
use ckptfs_store::record::{Checkpoint, CheckpointState, Place, Record, Undo};
use ckptfs_store::{RetentionNeeds, Store};
use ckptfs_testkit::config;

fn place(parent: u64, name: &[u8]) -> Place {
    Place {
        parent: Slot(parent),
        name: Name::new(name),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Make(u8),
    Change(u64),
    Tag(usize),
    Pin(usize),
    Hide(usize),
    Revive(usize),
    Restore(usize, bool),
    Undo,
    Redo,
    Forgo(usize),
    /// Deletes all except some checkpoints, as `gc` does. Packing of the journal stops at the given
    /// stop check.
    Gc(usize, u32),
    Mount,
    Rebuild,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u8>().prop_map(Step::Make),
        4 => (500..520_u64).prop_map(Step::Change),
        2 => any::<usize>().prop_map(Step::Tag),
        1 => any::<usize>().prop_map(Step::Pin),
        2 => any::<usize>().prop_map(Step::Hide),
        2 => any::<usize>().prop_map(Step::Revive),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(of, all)| Step::Restore(of, all)),
        4 => Just(Step::Undo),
        2 => Just(Step::Redo),
        1 => any::<usize>().prop_map(Step::Forgo),
        2 => (1..8_usize, prop_oneof![Just(u32::MAX), 0..12_u32]).prop_map(|(kept, stop)| Step::Gc(kept, stop)),
        1 => Just(Step::Mount),
        1 => Just(Step::Rebuild),
    ]
}

fn open(dir: &Path) -> Timeline {
    let (store, _) = Store::open(File::open(dir).unwrap(), true).unwrap();
    let (timeline, aftermath) = Timeline::open(Arc::new(store)).unwrap();
    assert_eq!(aftermath.restoring, None, "no restore was cut short");
    timeline
}

/// Everything that can be queried. Operations are limited to those on existing checkpoints.
#[derive(Clone, Debug, PartialEq)]
struct Look {
    checkpoints: Vec<CheckpointState>,
    hidden: Vec<CheckpointState>,
    base: Option<CheckpointId>,
    epoch: Epoch,
    next: u64,
    absences: usize,
    operations: Vec<(Operation, Option<u64>, bool)>,
    undo: Vec<u64>,
    redo: Vec<u64>,
}

fn look(timeline: &Timeline) -> Look {
    let next = timeline.operations.operation(
        &by(),
        None,
        OperationEffect::Made {
            id: CheckpointId(1),
        },
    );
    let told = timeline.operations.operations(None, usize::MAX).unwrap();
    let absences = timeline.absences.count();
    let operations: Vec<_> = told
        .into_iter()
        .map(|told| (told.operation, told.undone_by, told.in_effect))
        .collect();
    Look {
        checkpoints: timeline.catalogue.checkpoints(),
        hidden: timeline.catalogue.hidden(),
        base: timeline.base(),
        epoch: timeline.epochs.epoch(),
        next: next.number,
        absences,
        operations,
        undo: timeline.operations.walk(Walk::Undo(usize::MAX)),
        redo: timeline.operations.walk(Walk::Redo(usize::MAX)),
    }
}

impl Look {
    /// Removes the operations that `other` lacks; none of them may refer to an existing checkpoint.
    fn less(mut self, other: &Look) -> Look {
        let there: BTreeSet<CheckpointId> = self
            .checkpoints
            .iter()
            .chain(&self.hidden)
            .map(|kept| kept.id)
            .collect();
        let stay: BTreeSet<u64> = other
            .operations
            .iter()
            .map(|(operation, ..)| operation.number)
            .collect();
        for (operation, ..) in self
            .operations
            .iter()
            .filter(|(operation, ..)| !stay.contains(&operation.number))
        {
            assert!(
                operation.deed.about().iter().all(|id| !there.contains(id)),
                "{operation:?} was forgotten, and {there:?} are there"
            );
        }
        self.operations
            .retain(|(operation, ..)| stay.contains(&operation.number));
        [&mut self.undo, &mut self.redo]
            .into_iter()
            .for_each(|stack| stack.retain(|number| stay.contains(number)));
        self.absences = other.absences;
        self
    }
}

fn by() -> Actor {
    Actor {
        uid: 7,
        gid: 7,
        pid: 9,
        process: "test".into(),
    }
}

struct Bench {
    dir: tempfile::TempDir,
    timeline: Option<Timeline>,
}

impl Bench {
    fn timeline(&self) -> &Timeline {
        self.timeline.as_ref().unwrap()
    }

    fn pick(&self, of: usize) -> Option<CheckpointState> {
        let all = self.timeline().catalogue.checkpoints();
        (!all.is_empty()).then(|| all[of % all.len()].clone())
    }

    fn make(&self, reason: Reason) -> CheckpointId {
        let timeline = self.timeline();
        let id = timeline.epochs.epoch().checkpoint();
        let checkpoint = Checkpoint {
            id,
            tags: Vec::new(),
            note: String::new(),
            created_ns: now_ns(),
            atomic: true,
            dirty: 0,
            reason,
        };
        timeline
            .close_epoch(Some(&by()), checkpoint, Vec::new(), &[])
            .unwrap();
        id
    }

    fn restore(&self, target: CheckpointId, all: bool, undoes: Option<u64>) {
        let paths = if all {
            Vec::new()
        } else {
            vec![b"path".to_vec()]
        };
        let guard = self.make(Reason::Guard { restored: target });
        if !all {
            self.timeline()
                .journal
                .append(&[Record::RestoreOnly {
                    paths: paths.clone(),
                }])
                .unwrap();
        }
        self.timeline()
            .operations
            .begin_restore(Some((&by(), undoes)), target, guard, &paths, !all)
            .unwrap();
        self.timeline().journal.tell(Record::RestoreEnd);
    }

    /// Undoes or redoes an operation; one that cannot be undone stays.
    fn invert(&self, number: u64) {
        let timeline = self.timeline();
        let Some(told) = timeline
            .operations
            .operations(Some(number + 1), 1)
            .unwrap()
            .pop()
            .filter(|told| told.operation.number == number)
        else {
            return;
        };
        let undoes = Some(number);
        match told.operation.deed {
            OperationEffect::Made { id } | OperationEffect::Revived { id }
                if timeline.catalogue.has_checkpoint(id) =>
            {
                self.operate(
                    undoes,
                    OperationEffect::Deleted { id, freed: false },
                    vec![Record::Hidden { id, hidden: true }],
                );
            }
            OperationEffect::Deleted { id, .. } => {
                if let Some(hidden) = timeline.catalogue.hidden_checkpoint(id) {
                    self.operate(
                        undoes,
                        OperationEffect::Revived { id },
                        timeline.operations.reviving(&hidden),
                    );
                }
            }
            OperationEffect::Restored { guard, paths, .. }
                if timeline.catalogue.has_checkpoint(guard) =>
            {
                self.restore(guard, paths.is_empty(), undoes)
            }
            OperationEffect::Pinned { id, before, after }
                if timeline.catalogue.has_checkpoint(id) =>
            {
                let deed = OperationEffect::Pinned {
                    id,
                    before: after,
                    after: before.clone(),
                };
                self.operate(undoes, deed, vec![Record::Pinned { id, reason: before }]);
            }
            OperationEffect::Tagged { changes } => {
                let Some(kept) = changes
                    .first()
                    .and_then(|change| timeline.catalogue.checkpoint(change.id))
                else {
                    return;
                };
                self.retag(&kept, &changes[0].lost, &changes[0].got, undoes);
            }
            _ => {}
        }
    }

    fn operate(&self, undoes: Option<u64>, deed: OperationEffect, records: Vec<Record>) {
        let operations = &self.timeline().operations;
        operations.operate(&by(), undoes, deed, records).unwrap();
    }

    /// Changes a name: renames an inode, or a name in a renamed directory.
    fn change(&self, slot: u64) {
        let before = place(1, slot.to_string().as_bytes());
        let entry = Undo::Entry {
            dir: Slot::ROOT,
            name: before.name.clone(),
            before: None,
        };
        let undo = vec![
            entry,
            Undo::Home {
                slot: Slot(slot),
                before,
            },
        ];
        let moved = Record::Moved {
            places: vec![(Slot(slot + slot % 3), place(1, b"elsewhere"))],
        };
        let epochs = &self.timeline().epochs;
        epochs
            .record(&Author::default(), undo, vec![moved])
            .unwrap();
    }

    fn retag(&self, kept: &CheckpointState, got: &[String], lost: &[String], undoes: Option<u64>) {
        let mut tags: Vec<String> = kept
            .tags
            .iter()
            .filter(|tag| !lost.contains(tag))
            .chain(got)
            .cloned()
            .collect();
        tags.sort();
        tags.dedup();
        let deed = OperationEffect::Tagged {
            changes: vec![TagChange {
                id: kept.id,
                lost: lost.to_vec(),
                got: got.to_vec(),
            }],
        };
        self.operate(undoes, deed, vec![Record::Tags { id: kept.id, tags }]);
    }

    fn take(&mut self, step: &Step) {
        let timeline = self.timeline();
        match step {
            Step::Make(count) => (0..=count % 3).for_each(|_| _ = self.make(Reason::Asked)),
            Step::Change(slot) => self.change(*slot),
            Step::Tag(of) => {
                let Some(kept) = self.pick(*of) else { return };
                self.retag(&kept, &[format!("t{}", of % 5)], &[], None);
            }
            Step::Pin(of) => {
                let Some(kept) = self.pick(*of) else { return };
                let (id, after) = (kept.id, kept.pinned.is_none().then(String::new));
                let deed = OperationEffect::Pinned {
                    id,
                    before: kept.pinned,
                    after: after.clone(),
                };
                self.operate(None, deed, vec![Record::Pinned { id, reason: after }]);
            }
            Step::Hide(of) => {
                let Some(CheckpointState {
                    checkpoint: Checkpoint { id, .. },
                    ..
                }) = self.pick(*of)
                else {
                    return;
                };
                self.operate(
                    None,
                    OperationEffect::Deleted { id, freed: false },
                    vec![Record::Hidden { id, hidden: true }],
                );
            }
            Step::Revive(of) => {
                let hidden = timeline.catalogue.hidden();
                let Some(kept) = hidden.get(of % hidden.len().max(1)) else {
                    return;
                };
                self.operate(
                    None,
                    OperationEffect::Revived { id: kept.id },
                    timeline.operations.reviving(kept),
                );
            }
            Step::Restore(of, all) => {
                let Some(target) = self.pick(*of) else { return };
                self.restore(target.id, *all, None);
            }
            Step::Undo => timeline
                .operations
                .walk(Walk::Undo(1))
                .into_iter()
                .for_each(|number| self.invert(number)),
            Step::Redo => timeline
                .operations
                .walk(Walk::Redo(1))
                .into_iter()
                .for_each(|number| self.invert(number)),
            Step::Forgo(of) => {
                let Some(kept) = self.pick(*of) else { return };
                timeline.operations.free(&by(), kept.id).unwrap();
            }
            Step::Gc(kept, stop) => self.gc(*kept, *stop),
            Step::Mount => self.mount(false),
            Step::Rebuild => self.mount(true),
        }
    }

    fn gc(&self, kept: usize, stop: u32) {
        let timeline = self.timeline();
        let all = timeline.catalogue.retained();
        let goes = |id: CheckpointId| {
            timeline
                .catalogue
                .checkpoint(id)
                .or_else(|| timeline.catalogue.hidden_checkpoint(id))
                .is_some_and(|kept| kept.pinned.is_none())
        };
        let gone: Vec<CheckpointId> = all
            .iter()
            .rev()
            .skip(kept)
            .map(|(id, _)| *id)
            .filter(|id| goes(*id))
            .collect();
        gone.iter()
            .for_each(|id| timeline.operations.free(&by(), *id).unwrap());
        timeline.indexer.index_closed().unwrap();
        timeline.store().journal.close_segment(0).unwrap();
        timeline.store().journal.sync().unwrap();
        let before = look(timeline);
        let kept: Vec<CheckpointId> = timeline
            .catalogue
            .retained()
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        let needs = RetentionNeeds {
            kept: &kept,
            is_gone: &|_| true,
            upto: timeline.store().journal.position(),
        };
        timeline.store().index.compact(&needs, &|| false).unwrap();
        let asked = std::cell::Cell::new(0);
        let stops = || asked.replace(asked.get() + 1) >= stop;
        timeline
            .store()
            .repack(&needs, &stops, |forgotten| {
                timeline.indexer.forget(forgotten)
            })
            .unwrap();
        let after = look(timeline);
        assert_eq!(before.less(&after), after);
        self.compare();
        if stop == u32::MAX {
            // Except the newest, and the last one in the index.
            let oldest = kept.first().copied().unwrap_or(CheckpointId(u64::MAX));
            let is_old =
                |record: &Record| matches!(record, Record::Checkpoint(made) if made.id < oldest);
            let journal = &timeline.store().journal;
            let left: Vec<Record> = journal
                .scan(journal.start(), None)
                .map(|entry| entry.unwrap().1)
                .collect();
            let places = left
                .iter()
                .filter(|record| matches!(record, Record::Moved { .. }))
                .count();
            let left = left.iter().filter(|record| is_old(record)).count();
            assert!(
                left <= 2 + places,
                "{left} before {oldest}, {places} records of places"
            );
        }
    }

    fn compare(&self) {
        let store = self.timeline().store();
        let difference = store.index.compare(&store.journal).unwrap();
        assert!(difference.is_none(), "{difference:?}");
    }

    /// `anew`: with an index rebuilt from the journal.
    fn mount(&mut self, anew: bool) {
        let before = look(self.timeline());
        let stopped_ns = now_ns();
        self.timeline = None;
        if anew {
            fs::remove_dir_all(self.dir.path().join(".ckptfs/index")).unwrap();
        }
        let timeline = open(self.dir.path());
        let after = look(&timeline);
        // Unpacked segments may still contain removed records.
        assert_eq!(after.less(&before), before);
        let at_ns = now_ns();
        timeline
            .journal
            .append(&[Record::Mounted {
                at_ns,
                stopped_ns: Some(stopped_ns),
            }])
            .unwrap();
        timeline.absences.begin_service(at_ns, Some(stopped_ns));
        self.timeline = Some(timeline);
        self.compare();
    }
}

fn run(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let timeline = Some(open(dir.path()));
    let mut bench = Bench { dir, timeline };
    for step in steps {
        bench.take(step);
    }
    bench.gc(2, u32::MAX);
    bench.mount(false);
    bench.mount(true);
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: config().cases / 8, ..config() })]

    #[test]
    fn what_is_left_is_what_it_was(steps in vec(step(), 0..60)) {
        run(&steps);
    }
}
