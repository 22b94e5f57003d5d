//! Queries on checkpoints and operations.

use super::tests::bench::Bench;
use super::*;
use crate::operation::{Operation, OperationEffect};
use crate::record::{Checkpoint, CheckpointState, Record};
use crate::tests::made::deleted as delete;
use ckptfs_api::Actor;

fn checkpoint(id: u64) -> Checkpoint {
    Checkpoint {
        tags: vec![format!("tag-{id}")],
        ..crate::tests::made::checkpoint(id)
    }
}

fn closed(id: u64) -> Record {
    Record::Checkpoint(checkpoint(id))
}

#[test]
fn checkpoints_keep_tags_and_deletions_within_and_across_batches() {
    let tags = |id, tag: &str| Record::Tags {
        id: CheckpointId(id),
        tags: vec![tag.into()],
    };
    let mut records: Vec<_> = (1..=11).map(closed).collect();
    records.extend([
        tags(3, "x"),
        tags(3, "y"),
        delete(11),
        delete(2),
        tags(2, "z"),
        tags(77, "never made"),
        delete(78),
    ]);
    for size in [1, 3, 100] {
        let bench = Bench::new();
        let (index, _) = bench.index();
        let at = bench.put(&index, &records, size);
        let found = index.catalogue().checkpoints().unwrap();
        assert_eq!(
            found
                .iter()
                .map(|(checkpoint, _)| checkpoint.id.0)
                .collect::<Vec<_>>(),
            [1, 3, 4, 5, 6, 7, 8, 9, 10]
        );
        assert_eq!(
            found[1],
            (
                CheckpointState::new(
                    Checkpoint {
                        tags: vec!["y".into()],
                        ..checkpoint(3)
                    },
                    None
                ),
                at[2]
            )
        );
        assert_eq!(found[0], (CheckpointState::new(checkpoint(1), None), at[0]));
        assert_eq!(
            index.catalogue().last_checkpoint().unwrap(),
            Some(CheckpointId(11)),
            "a number is not given again"
        );
    }
}

fn actor(uid: u32) -> Actor {
    Actor {
        uid,
        gid: 0,
        pid: 7,
        process: "sh".into(),
    }
}

/// Checkpoints with actors, pins, restores and operations.
fn asked_for() -> Vec<Record> {
    let (at_ns, id) = (1, CheckpointId);
    let by = |uid| Record::By {
        at_ns,
        actor: actor(uid),
    };
    let pin = |reason: Option<&str>| Record::Pinned {
        id: id(2),
        reason: reason.map(str::to_owned),
    };
    let restore = |target, guard, paths| Record::RestoreBegin {
        target: id(target),
        guard: id(guard),
        paths,
    };
    let hide = |of, hidden| Record::Hidden { id: id(of), hidden };
    let operation = |number, undoes| {
        Record::Operation(Operation {
            number,
            at_ns,
            by: actor(0),
            undoes,
            deed: OperationEffect::Revived { id: id(1) },
        })
    };
    let pins = [pin(Some("a")), pin(None), pin(Some("b"))];
    let mut records = vec![by(5), closed(1), by(6), hide(1, true), closed(2)];
    records.extend(pins);
    records.extend([operation(1, None), closed(3), restore(1, 3, vec![])]);
    records.extend([closed(4), restore(2, 4, vec![b"p".to_vec()]), closed(5)]);
    records.extend([operation(2, Some(1)), hide(3, true), hide(3, false)]);
    records
}

/// The record before a checkpoint names its actor, even if a batch ends between the two.
#[test]
fn who_asked_pins_and_lineage_are_kept_within_and_across_batches() {
    for size in [1, 2, 5, 100] {
        let bench = Bench::new();
        let (index, _) = bench.index();
        let at = bench.put(&index, &asked_for(), size);
        let told = index.catalogue().checkpoints().unwrap();
        let told = told.into_iter().map(|(kept, _)| {
            let by = kept.by.as_ref().map(|by| by.uid);
            (kept.id.0, by, kept.pinned, kept.hidden)
        });
        let plain = |id| (id, None, None, false);
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                (1, Some(5), None, true),
                (2, None, Some("b".into()), false),
                plain(3),
                plain(4),
                plain(5)
            ]
        );
        let lineage = index.catalogue().lineage().unwrap();
        let parent = |id| {
            lineage
                .parent(CheckpointId(id), Some)
                .map(|parent| parent.0)
        };
        assert_eq!(
            [1, 2, 3, 4, 5].map(parent),
            [None, Some(1), Some(2), Some(1), Some(4)]
        );
        assert_eq!(
            index.catalogue().operations().unwrap(),
            [(1, at[8], None), (2, at[14], Some(1))]
        );
    }
}
