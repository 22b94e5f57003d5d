//! Contents in the index: objects by hash, and hashes of live files.

use super::contents::FileSignature;
use super::tests::bench::Bench;
use super::*;
use crate::ids::{ObjectId, ObjectOrigin};
use crate::record::{ObjectHash, Record};
use crate::tests::made::{closed, data, deleted, undo};
use ckptfs_sys::fault::{self, CallKind, FaultPlan};
use ckptfs_sys::{Errno, Time};

fn sealed(epoch: u64, slot: u64, size: u64, hash: u8) -> ObjectHash {
    let object = ObjectId {
        epoch: Epoch(epoch),
        slot: Slot(slot),
        serial: 1,
        origin: ObjectOrigin::Cloned,
    };
    ObjectHash {
        object,
        size,
        hash: [hash; 32],
    }
}

#[test]
fn a_hash_leads_to_all_that_have_it_and_what_is_gone_is_no_damage() {
    let bench = Bench::new();
    let (index, journal) = (bench.index().0, &bench.journal);
    let objects = [
        sealed(0, 10, 5, 7),
        sealed(0, 11, 6, 8),
        sealed(0, 12, 0, 7),
    ];
    let records = [
        Record::Hashes {
            epoch: Epoch(0),
            objects: objects.to_vec(),
            whole: true,
        },
        Record::Hashes {
            epoch: Epoch(1),
            objects: vec![sealed(1, 10, 5, 7)],
            whole: false,
        },
    ];
    bench.take(&index, &records);
    let of = |hash: u8| {
        let mut found = Vec::new();
        let each = index.each_content(&[hash; 32], |object, size| {
            found.push((object, size));
            true
        });
        each.unwrap();
        found
    };
    // Empty objects are not indexed.
    let both = vec![(objects[0].object, 5), (sealed(1, 10, 5, 7).object, 5)];
    assert_eq!(
        (of(7), of(8), of(9)),
        (both.clone(), vec![(objects[1].object, 6)], vec![])
    );
    let mut first = Vec::new();
    index
        .each_content(&[7; 32], |object, _| {
            first.push(object);
            false
        })
        .unwrap();
    assert_eq!(first, [objects[0].object]);
    assert!(index.compare(journal).unwrap().is_none());
    let grown = index.dump().unwrap();
    index.rebuild(journal, None).unwrap();
    assert_eq!((of(7), index.dump().unwrap()), (both.clone(), grown));
    // Compaction removes the entries of removed objects and keeps those of existing ones.
    let upto = journal.position();
    let is_gone = |object: ObjectId| object.epoch == Epoch(0);
    for epoch in 1..=40 {
        let records = [
            undo(epoch, vec![data(10, epoch)]),
            closed(epoch),
            deleted(epoch),
        ];
        bench.take(&index, &records);
    }
    assert!(!bench.compact_upto(&index, [], &is_gone, upto));
    assert!(bench.compact_upto(&index, [], &is_gone, journal.position()));
    assert_eq!(of(7), both[1..]);
    assert!(index.compare(journal).unwrap().is_none());
}

#[test]
fn a_live_file_is_known_while_it_looks_as_it_did() {
    let bench = Bench::new();
    let (index, journal) = (bench.index().0, &bench.journal);
    let time = |nsec| Time { sec: -1, nsec };
    let look = FileSignature {
        size: 4,
        mtime: time(1),
        ctime: time(2),
    };
    let before = index.dump().unwrap();
    index.note_seen(&[(Slot(5), look, [3; 32])]).unwrap();
    assert_eq!(index.seen(Slot(5), &look).unwrap(), Some([3; 32]));
    for other in [
        FileSignature { size: 5, ..look },
        FileSignature {
            mtime: time(2),
            ..look
        },
        FileSignature {
            ctime: time(3),
            ..look
        },
    ] {
        assert_eq!(index.seen(Slot(5), &other).unwrap(), None);
    }
    assert_eq!(index.seen(Slot(6), &look).unwrap(), None);
    // No record describes it: the rest of the index is unchanged, and a rebuild starts without it.
    assert_eq!(index.dump().unwrap(), before);
    assert!(index.compare(journal).unwrap().is_none());
    index.rebuild(journal, None).unwrap();
    assert_eq!(index.seen(Slot(5), &look).unwrap(), None);
}

/// Adds this many hash records and forgets all except the first.
fn with_forgotten(bench: &Bench, index: &Index, count: u64) {
    for first in (0..count).step_by(1000) {
        let records: Vec<_> = (first..first + 1000)
            .map(|_| Record::Hashes {
                epoch: Epoch(1),
                objects: vec![],
                whole: false,
            })
            .collect();
        let at = bench.take(index, &records);
        let gone: Vec<_> = at
            .into_iter()
            .skip(usize::from(first == 0))
            .map(|at| (Epoch(1), at))
            .collect();
        index.apply(&mut Batch::forget_hashes(&gone)).unwrap();
    }
    index.flush_durable().unwrap();
}

fn disk_bytes(index: &Index) -> u64 {
    index
        .with("measure", |db| Ok(db.disk().unwrap().size_on_disk()?))
        .unwrap()
}

#[test]
fn files_that_hold_little_are_written_anew() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    let look = FileSignature {
        size: 4,
        mtime: Time { sec: 1, nsec: 0 },
        ctime: Time { sec: 2, nsec: 0 },
    };
    index.note_seen(&[(Slot(5), look, [3; 32])]).unwrap();
    with_forgotten(&bench, &index, 100_000);
    let (before, held) = (disk_bytes(&index), index.dump().unwrap());
    assert!(before > super::compact::SHRINK_BYTES, "{before}");
    index.shrink().unwrap();
    assert!(
        disk_bytes(&index) < 1 << 20,
        "{} of {before}",
        disk_bytes(&index)
    );
    assert!(index.dump().unwrap() == held && index.seen(Slot(5), &look).unwrap() == Some([3; 32]));
    drop(index);
    let (index, opening) = bench.index();
    assert_eq!(opening, IndexOpening::Ready);
    assert!(index.dump().unwrap() == held);
    // A second call does nothing.
    let before = disk_bytes(&index);
    index.shrink().unwrap();
    assert_eq!(disk_bytes(&index), before);
}

/// After any failure the index has the same contents or is rebuilt.
#[test]
fn writing_it_anew_can_fail_at_every_call() {
    let bench = Bench::new();
    let (mut index, _) = bench.index();
    with_forgotten(&bench, &index, 60_000);
    let first = index.catalogue().seals(Epoch(1)).unwrap();
    assert_eq!(first.len(), 1);
    let mut failures = 0;
    for nth in 1.. {
        fault::arm_thread(FaultPlan::nth(nth, Errno::EIO));
        let shrunk = index.shrink();
        fault::disarm_thread();
        if shrunk.is_ok() {
            break;
        }
        failures += 1;
        drop(index);
        let opening;
        (index, opening) = bench.index();
        if opening != IndexOpening::Ready {
            index.rebuild(&bench.journal, None).unwrap();
        }
        assert_eq!(
            index.catalogue().seals(Epoch(1)).unwrap().first(),
            first.first()
        );
        if opening != IndexOpening::Ready {
            with_forgotten(&bench, &index, 60_000);
        }
    }
    assert!(failures > 5, "{failures}");
}

/// On a full disk the index stays unchanged and in place until space is available.
#[test]
fn without_room_runs_are_not_put_together() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    for epoch in 1..=8 {
        bench.take(&index, &[undo(epoch, vec![data(10, epoch)])]);
    }
    let (held, upto) = (index.dump().unwrap(), bench.journal.position());
    let needs = RetentionNeeds {
        kept: &[],
        is_gone: &|_| true,
        upto,
    };
    for call in [CallKind::Create, CallKind::Write, CallKind::Sync] {
        fault::arm_thread(FaultPlan::nth(1, Errno::ENOSPC).only(call).lasting());
        let merged = index.merge(&|| false);
        let compacted = index.compact(&needs, &|| false);
        assert!(fault::disarm_thread().failed >= 2, "{call:?}");
        assert_eq!(
            (merged.is_ok(), compacted.is_ok()),
            (true, true),
            "{call:?}"
        );
        assert!(index.dump().unwrap() == held && !index.is_in_memory());
    }
    index.merge(&|| false).unwrap();
    assert!(index.dump().unwrap() == held);
    index.compact(&needs, &|| false).unwrap();
    assert!(index.dump().unwrap().len() < held.len());
}
