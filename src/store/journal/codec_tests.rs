//! Round trips of every record, and rejection of invalid bytes.

use super::*;
use crate::tests::made;

fn time(sec: i64, nsec: u32) -> Time {
    Time { sec, nsec }
}

fn stat(kind: Kind) -> Stat {
    Stat {
        dev: u64::MAX,
        ino: 1 << 40,
        kind,
        mode: 0o7777,
        nlink: u32::MAX,
        uid: 0,
        gid: 65_534,
        rdev: 0x0103,
        size: 1 << 50,
        blocks: 128,
        blksize: 4096,
        atime: time(i64::MIN, 999_999_999),
        mtime: time(-1, 0),
        ctime: time(i64::MAX, 1),
        btime: (kind != Kind::Fifo).then_some(time(0, 0)),
        protection: Protection::None,
    }
}

fn place(name: &[u8]) -> Place {
    Place {
        parent: Slot(u64::MAX),
        name: Name::new(name),
    }
}

fn object(origin: ObjectOrigin) -> ObjectId {
    ObjectId {
        epoch: Epoch(7),
        slot: Slot(300),
        serial: u32::MAX,
        origin,
    }
}

fn checkpoint(reason: Reason) -> Checkpoint {
    Checkpoint {
        id: CheckpointId(u64::MAX),
        tags: vec!["a".into(), "größe".into()],
        note: "before the risky step".into(),
        created_ns: -5,
        atomic: true,
        dirty: 128,
        reason,
    }
}

fn operation(deed: OperationEffect, undoes: Option<u64>) -> Operation {
    let by = Actor {
        uid: 0,
        gid: u32::MAX,
        pid: 1,
        process: "sh".into(),
    };
    Operation {
        number: u64::MAX,
        at_ns: i64::MIN,
        by,
        undoes,
        deed,
    }
}

const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Dir,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDev,
    Kind::BlockDev,
];

fn undos() -> Vec<Undo> {
    let mut undos = Vec::new();
    for kind in KINDS {
        undos.push(Undo::Entry {
            dir: Slot::ROOT,
            name: Name::new(b"\xff\x01\n"),
            before: Some(Child {
                slot: Slot(u64::MAX),
                kind,
            }),
        });
        let target = (kind == Kind::Symlink).then(|| b"../x".to_vec());
        undos.push(Undo::Attr {
            slot: Slot(127),
            before: AttrState {
                stat: stat(kind),
                target,
            },
        });
    }
    undos.push(Undo::Entry {
        dir: Slot(128),
        name: Name::new(&[b'n'; NAME_MAX]),
        before: None,
    });
    undos.push(Undo::Xattrs {
        slot: Slot(2),
        before: vec![],
    });
    undos.push(Undo::Xattrs {
        slot: Slot(2),
        before: vec![
            (b"user.a".to_vec(), vec![]),
            (b"user.b".to_vec(), vec![0; 65_536]),
        ],
    });
    for (object, provisional) in [
        (Some(object(ObjectOrigin::Cloned)), true),
        (Some(object(ObjectOrigin::Moved)), false),
        (None, false),
    ] {
        undos.push(Undo::Data {
            slot: Slot(2),
            before: DataState {
                object,
                size: 1 << 33,
                provisional,
            },
        });
    }
    undos.push(Undo::Home {
        slot: Slot(2),
        before: place(b"..."),
    });
    undos
}

fn comparing(apart: AbsenceEpoch, left_ns: i64) -> Comparing {
    Comparing {
        baseline: crate::Address {
            segment: 1,
            offset: u32::MAX,
        },
        left_ns,
        apart,
    }
}

fn process() -> Process {
    Process {
        pid: 4711,
        start: u64::MAX,
        uid: u32::MAX,
        parent: 1,
        session: 2,
        name: "größe".into(),
        cgroup: "/user.slice".into(),
    }
}

fn touches() -> Vec<ProcessChange> {
    let (by, slot, name) = (u32::MAX, Slot(u64::MAX), Name::new(b"n"));
    let names =
        [NameTouch::Removed, NameTouch::Made, NameTouch::Moved].map(|how| ProcessChange::Name {
            by,
            dir: slot,
            name: name.clone(),
            how,
        });
    let nodes = [
        ProcessChange::Data { by, slot },
        ProcessChange::Attr { by, slot },
        ProcessChange::Made { by, slot },
        ProcessChange::Gone { slot },
        ProcessChange::Left { by, slot },
    ];
    names.into_iter().chain(nodes).collect()
}

/// Returns at least one of every variant of every type in a record.
fn records() -> Vec<Record> {
    [changes(), checkpoints(), operations(), others()].concat()
}

fn changes() -> Vec<Record> {
    vec![
        Record::Undo {
            epoch: Epoch(0),
            undo: vec![],
        },
        Record::Undo {
            epoch: Epoch(u64::MAX),
            undo: undos(),
        },
        Record::Void {
            epoch: Epoch(3),
            slot: Slot(4),
        },
        Record::Moved { places: vec![] },
        Record::Hashes {
            epoch: Epoch(7),
            objects: vec![],
            whole: true,
        },
        Record::Moved {
            places: vec![(Slot(9), place(b"x")), (Slot(10), place(b"y"))],
        },
    ]
}

fn checkpoints() -> Vec<Record> {
    vec![
        Record::Checkpoint(checkpoint(Reason::Asked)),
        Record::Checkpoint(checkpoint(Reason::Guard {
            restored: CheckpointId(1),
        })),
        Record::Checkpoint(checkpoint(Reason::Auto {
            trigger: Trigger::Interval,
        })),
        Record::Checkpoint(checkpoint(Reason::Auto {
            trigger: Trigger::Unmount,
        })),
        Record::Checkpoint(checkpoint(Reason::Auto {
            trigger: Trigger::Absence,
        })),
        Record::Comparing(None),
        Record::Told {
            from_ns: i64::MIN,
            to_ns: 1,
        },
        Record::Comparing(Some(comparing(AbsenceEpoch::No, 0))),
        Record::Comparing(Some(comparing(AbsenceEpoch::Unclosed, i64::MIN))),
        Record::Comparing(Some(comparing(AbsenceEpoch::Closed, i64::MAX))),
        Record::Tags {
            id: CheckpointId(1),
            tags: vec!["t".repeat(TAG_MAX)],
        },
        Record::Deleted {
            id: CheckpointId(1),
        },
        Record::Pinned {
            id: CheckpointId(u64::MAX),
            reason: Some("for the audit".into()),
        },
        Record::Pinned {
            id: CheckpointId(0),
            reason: None,
        },
        Record::Hidden {
            id: CheckpointId(1),
            hidden: true,
        },
        Record::Hidden {
            id: CheckpointId(128),
            hidden: false,
        },
    ]
}

fn operations() -> Vec<Record> {
    vec![
        Record::Operation(operation(
            OperationEffect::Made {
                id: CheckpointId(1),
            },
            None,
        )),
        Record::Operation(operation(
            OperationEffect::Restored {
                target: CheckpointId(1),
                guard: CheckpointId(2),
                paths: vec![b"\xff/a".to_vec()],
                only: false,
            },
            Some(u64::MAX),
        )),
        Record::Operation(operation(
            OperationEffect::Restored {
                target: CheckpointId(1),
                guard: CheckpointId(2),
                paths: vec![vec![]],
                only: true,
            },
            None,
        )),
        Record::Operation(operation(
            OperationEffect::Deleted {
                id: CheckpointId(200),
                freed: true,
            },
            None,
        )),
        Record::Operation(operation(
            OperationEffect::Revived {
                id: CheckpointId(0),
            },
            Some(1),
        )),
        Record::Operation(operation(
            OperationEffect::Tagged {
                changes: vec![TagChange {
                    id: CheckpointId(1),
                    lost: vec!["a".into()],
                    got: vec![],
                }],
            },
            None,
        )),
        Record::Operation(operation(
            OperationEffect::Pinned {
                id: CheckpointId(1),
                before: None,
                after: Some("why".into()),
            },
            Some(3),
        )),
    ]
}

fn others() -> Vec<Record> {
    let replacing = |whiteout| Record::Replacing {
        slot: Slot(5),
        place: place(b"z"),
        object: object(ObjectOrigin::Moved),
        whiteout,
    };
    vec![
        replacing(false),
        replacing(true),
        Record::RestoreBegin {
            target: CheckpointId(1),
            guard: CheckpointId(2),
            paths: vec![b"a/b".to_vec(), vec![]],
        },
        Record::RestoreEnd,
        Record::Mounted {
            at_ns: i64::MIN,
            stopped_ns: Some(-1),
        },
        Record::Mounted {
            at_ns: 7,
            stopped_ns: None,
        },
        Record::Unmounted { at_ns: i64::MAX },
        Record::By {
            at_ns: -7,
            actor: Actor {
                uid: 0,
                gid: u32::MAX,
                pid: 4711,
                process: "größe".into(),
            },
        },
        Record::Dropped {
            epoch: Epoch(7),
            paths: vec!["target".into(), "*.tmp".into()],
            objects: dropped(),
        },
        Record::Touched {
            processes: vec![(0, Process::default()), (u32::MAX, process())],
            touches: touches(),
        },
        Record::OpenAt {
            id: CheckpointId(7),
            open: vec![(b"a\xff".to_vec(), process())],
            more: u64::MAX,
        },
        Record::RestoreOnly {
            paths: vec![b"a/b".to_vec(), vec![]],
        },
        Record::Hashes {
            epoch: Epoch(7),
            objects: [ObjectOrigin::Cloned, ObjectOrigin::Moved]
                .map(|origin| ObjectHash {
                    object: object(origin),
                    size: 1 << 40,
                    hash: [0xa5; 32],
                })
                .into(),
            whole: false,
        },
    ]
}

fn encoded(record: &Record) -> (u16, Vec<u8>) {
    let mut bytes = Vec::new();
    let kind = encode(record, &mut bytes).unwrap();
    (kind, bytes)
}

#[test]
fn every_record_comes_back_as_it_was() {
    let mut kinds = std::collections::BTreeSet::new();
    for record in records() {
        let (kind, bytes) = encoded(&record);
        assert_eq!(decode(kind, &bytes), Ok(record));
        kinds.insert(kind);
    }
    assert!(kinds.into_iter().eq(1..=KIND_MAX), "every kind is tested");
}

#[test]
fn a_truncated_record_is_an_error() {
    for record in records() {
        let (kind, bytes) = encoded(&record);
        // Large records are cut at both ends and some places between: cutting is slow.
        for len in
            (0..bytes.len()).filter(|len| *len < 2000 || len % 997 == 0 || bytes.len() - len < 100)
        {
            assert!(
                decode(kind, &bytes[..len]).is_err(),
                "{record:?} cut to {len} bytes"
            );
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(decode(kind, &longer), Err(CodecError::Trailing));
    }
}

#[test]
fn flipped_bytes_decode_to_something_canonical_or_fail() {
    for record in records() {
        let (kind, bytes) = encoded(&record);
        for at in (0..bytes.len()).filter(|at| *at < 2000) {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                for kind in [kind, kind % KIND_MAX + 1] {
                    if let Ok(other) = decode(kind, &changed) {
                        assert_eq!(
                            encoded(&other),
                            (kind, changed.clone()),
                            "one encoding for one record"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_count_that_lies_takes_no_memory() {
    // A list of 2^40 places, in six bytes.
    assert_eq!(
        decode(3, &[0x80, 0x80, 0x80, 0x80, 0x80, 0x20]),
        Err(CodecError::Limit)
    );
    // 4 Mi places without any bytes for them.
    assert_eq!(decode(3, &[0x80, 0x80, 0x80, 0x02]), Err(CodecError::Short));
}

#[test]
fn numbers_have_one_spelling() {
    assert_eq!(decode(6, &[0x80, 0x00]), Err(CodecError::Range));
    assert_eq!(
        decode(
            6,
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]
        ),
        Err(CodecError::Range)
    );
    let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    assert_eq!(
        decode(6, &most),
        Ok(Record::Deleted {
            id: CheckpointId(u64::MAX)
        })
    );
}

#[test]
fn names_that_climb_out_are_refused_both_ways() {
    for bad in [
        &b""[..],
        b".",
        b"..",
        b"a/b",
        b"/",
        b"a\0b",
        &[b'n'; NAME_MAX + 1],
    ] {
        let record = Record::Moved {
            places: vec![(Slot(9), place(bad))],
        };
        assert_eq!(
            encode(&record, &mut Vec::new()),
            Err(CodecError::Name),
            "{bad:?}"
        );
        let mut bytes = vec![1, 9, 1];
        Bytes::<PATH_BYTES_MAX>::put(bad, &mut bytes).unwrap();
        assert!(
            matches!(decode(3, &bytes), Err(CodecError::Name | CodecError::Limit)),
            "{bad:?}"
        );
    }
}

#[test]
fn limits_hold_at_n_and_not_at_n_plus_one() {
    let with = |tags: usize, tag: usize, note: usize| {
        let checkpoint = Checkpoint {
            tags: vec!["t".repeat(tag); tags],
            note: "n".repeat(note),
            ..checkpoint(Reason::Asked)
        };
        encode(&Record::Checkpoint(checkpoint), &mut Vec::new())
    };
    assert!(with(TAGS_MAX, TAG_MAX, NOTE_MAX).is_ok());
    for beyond in [
        with(TAGS_MAX + 1, 1, 1),
        with(1, TAG_MAX + 1, 1),
        with(1, 1, NOTE_MAX + 1),
    ] {
        assert_eq!(beyond, Err(CodecError::Limit));
    }
    let nothing = Undo::Xattrs {
        slot: Slot(1),
        before: vec![],
    };
    let items = |count| made::undo(1, vec![nothing.clone(); count]);
    assert!(encode(&items(UNDO_ITEMS_MAX), &mut Vec::new()).is_ok());
    assert_eq!(
        encode(&items(UNDO_ITEMS_MAX + 1), &mut Vec::new()),
        Err(CodecError::Limit)
    );
    // One byte each for count, slot, name and tag, and the length of the value; the value gets the
    // rest of the payload.
    let value = |len| Undo::Xattrs {
        slot: Slot(1),
        before: vec![(b"n".to_vec(), vec![0; len])],
    };
    let sized = |len| made::undo(1, vec![value(len)]);
    let other = encoded(&sized(PAYLOAD_MAX - 100)).1.len() - (PAYLOAD_MAX - 100);
    assert!(encode(&sized(PAYLOAD_MAX - other), &mut Vec::new()).is_ok());
    assert_eq!(
        encode(&sized(PAYLOAD_MAX - other + 1), &mut Vec::new()),
        Err(CodecError::Limit)
    );
}

#[test]
fn a_hash_is_of_an_object_of_the_epoch_that_the_record_names() {
    let epoch = Epoch(8);
    let hashed = ObjectHash {
        object: object(ObjectOrigin::Cloned),
        size: 1,
        hash: [0; 32],
    };
    for record in [
        Record::Dropped {
            epoch,
            paths: vec![],
            objects: dropped(),
        },
        Record::Hashes {
            epoch,
            objects: vec![hashed],
            whole: true,
        },
    ] {
        assert_eq!(encode(&record, &mut Vec::new()), Err(CodecError::Range));
    }
}

#[test]
fn a_time_that_cannot_be_read_back_is_not_written() {
    let mut wrong = stat(Kind::File);
    wrong.mtime.nsec = 1_000_000_000;
    let undo = vec![Undo::Attr {
        slot: Slot(1),
        before: AttrState {
            stat: wrong,
            target: None,
        },
    }];
    assert_eq!(
        encode(&made::undo(1, undo), &mut Vec::new()),
        Err(CodecError::Range)
    );
}

fn dropped() -> Vec<Dropped> {
    let of = |origin| Dropped {
        object: object(origin),
        size: 1 << 40,
        first: CheckpointId(1),
        last: CheckpointId(6),
    };
    [ObjectOrigin::Cloned, ObjectOrigin::Moved].map(of).into()
}
