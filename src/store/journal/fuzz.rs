//! Properties of the journal's encoding: written data is read back, and any other bytes return an
//! error, within bounded memory.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::codec::{self, NAME_MAX, NOTE_MAX, TAG_MAX};
use super::frame::{self, FrameAt, HEADER, Header, Link};
use crate::error::CodecError;
use crate::ids::{Name, ObjectId, ObjectOrigin, Slot};
use crate::operation::{Operation, OperationEffect, TagChange};
use crate::record::{
    AbsenceEpoch, AttrState, Checkpoint, Child, Comparing, DataState, Dropped, NameTouch,
    ObjectHash, Place, Process, ProcessChange, Record, Undo,
};
use ckptfs_api::{Actor, CheckpointId, Epoch, Reason, Trigger};
use ckptfs_sys::{Kind, Protection, Stat, Time};
use ckptfs_testkit::{config, peak_of};

/// Memory per byte of payload: an undo record of three bytes is a large struct, in a list that
/// doubles as it grows.
const MEMORY_PER_BYTE: usize = 400;
/// Additional constant memory.
const MEMORY: usize = 512 << 10;

const KEY: [u8; 32] = [7; 32];

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..300_u64, Just(u64::MAX)]
}

fn kind() -> impl Strategy<Value = Kind> {
    proptest::sample::select(vec![
        Kind::File,
        Kind::Dir,
        Kind::Symlink,
        Kind::Fifo,
        Kind::Socket,
        Kind::CharDev,
        Kind::BlockDev,
    ])
}

fn name() -> impl Strategy<Value = Name> {
    let byte = || any::<u8>().prop_filter("no name", |byte| !matches!(byte, 0 | b'/'));
    let bytes = prop_oneof![vec(byte(), 1..20), vec(byte(), NAME_MAX)];
    bytes
        .prop_filter("no name", |name| name != b"." && name != b"..")
        .prop_map(|name| Name::new(&name))
}

fn text(limit: usize) -> impl Strategy<Value = String> {
    prop_oneof![
        vec(any::<char>(), 0..20).prop_map(String::from_iter),
        Just("x".repeat(limit))
    ]
}

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(sec, nsec)| Time { sec, nsec })
}

fn stat() -> impl Strategy<Value = Stat> {
    let large = (number(), number(), number(), number(), number());
    let small = (
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
    );
    (
        large,
        small,
        kind(),
        (time(), time(), time(), option::of(time())),
    )
        .prop_map(|(large, small, kind, times)| Stat {
            dev: large.0,
            ino: large.1,
            kind,
            mode: small.0,
            nlink: small.1,
            uid: small.2,
            gid: small.3,
            rdev: large.2,
            size: large.3,
            blocks: large.4,
            blksize: small.4,
            atime: times.0,
            mtime: times.1,
            ctime: times.2,
            btime: times.3,
            protection: Protection::None,
        })
}

fn object() -> impl Strategy<Value = ObjectId> {
    (number(), slot(), any::<u32>(), any::<bool>()).prop_map(|(epoch, slot, serial, moved)| {
        let origin = if moved {
            ObjectOrigin::Moved
        } else {
            ObjectOrigin::Cloned
        };
        ObjectId {
            epoch: Epoch(epoch),
            slot,
            serial,
            origin,
        }
    })
}

fn slot() -> impl Strategy<Value = Slot> {
    number().prop_map(Slot)
}

fn place() -> impl Strategy<Value = Place> {
    (slot(), name()).prop_map(|(parent, name)| Place { parent, name })
}

fn undo() -> impl Strategy<Value = Undo> {
    let xattrs = vec((vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..50)), 0..4);
    let child = (slot(), kind()).prop_map(|(slot, kind)| Child { slot, kind });
    let target = option::of(vec(any::<u8>(), 0..50));
    prop_oneof![
        (slot(), name(), option::of(child)).prop_map(|(dir, name, before)| Undo::Entry {
            dir,
            name,
            before
        }),
        (slot(), stat(), target).prop_map(|(slot, stat, target)| Undo::Attr {
            slot,
            before: AttrState { stat, target }
        }),
        (slot(), xattrs).prop_map(|(slot, before)| Undo::Xattrs { slot, before }),
        (slot(), option::of(object()), number(), any::<bool>()).prop_map(
            |(slot, object, size, provisional)| Undo::Data {
                slot,
                before: DataState {
                    object,
                    size,
                    provisional
                }
            }
        ),
        (slot(), place()).prop_map(|(slot, before)| Undo::Home { slot, before }),
    ]
}

fn tags() -> impl Strategy<Value = Vec<String>> {
    vec(text(TAG_MAX), 0..4)
}

/// Generates any checkpoint.
pub fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    let reason = prop_oneof![
        Just(Reason::Asked),
        number().prop_map(|id| Reason::Guard {
            restored: CheckpointId(id)
        }),
        any::<i64>().prop_map(|of_ns| Reason::Imported { of_ns }),
        text(TAG_MAX).prop_map(|name| Reason::Directory { name }),
        prop::sample::select(vec![
            Trigger::Tripwire,
            Trigger::Interval,
            Trigger::Quiet,
            Trigger::Unmount,
            Trigger::Absence
        ])
        .prop_map(|trigger| Reason::Auto { trigger }),
    ];
    (
        number(),
        tags(),
        text(NOTE_MAX),
        any::<i64>(),
        any::<bool>(),
        number(),
        reason,
    )
        .prop_map(
            |(id, tags, note, created_ns, atomic, dirty, reason)| Checkpoint {
                id: CheckpointId(id),
                tags,
                note,
                created_ns,
                atomic,
                dirty,
                reason,
            },
        )
}

fn sealed() -> impl Strategy<Value = Record> {
    (
        number(),
        vec((object(), number(), any::<[u8; 32]>()), 0..5),
        any::<bool>(),
    )
        .prop_map(|(epoch, objects, whole)| {
            let seal = |(object, size, hash)| ObjectHash {
                object: ObjectId {
                    epoch: Epoch(epoch),
                    ..object
                },
                size,
                hash,
            };
            Record::Hashes {
                epoch: Epoch(epoch),
                objects: objects.into_iter().map(seal).collect(),
                whole,
            }
        })
}

fn dropped() -> impl Strategy<Value = Record> {
    let objects = vec((object(), number(), number(), number()), 0..5);
    (number(), vec("[a-z*/]{0,20}", 0..3), objects).prop_map(|(epoch, paths, objects)| {
        let of = |(object, size, first, last)| Dropped {
            object: ObjectId {
                epoch: Epoch(epoch),
                ..object
            },
            size,
            first: CheckpointId(first),
            last: CheckpointId(last),
        };
        Record::Dropped {
            epoch: Epoch(epoch),
            paths,
            objects: objects.into_iter().map(of).collect(),
        }
    })
}

fn operation(by: impl Strategy<Value = Actor>) -> impl Strategy<Value = Operation> {
    let id = || number().prop_map(CheckpointId);
    let reason = || option::of("[a-z]{0,20}");
    let deed = prop_oneof![
        id().prop_map(|id| OperationEffect::Made { id }),
        (
            id(),
            id(),
            vec(vec(any::<u8>(), 0..30), 0..5),
            any::<bool>()
        )
            .prop_map(|(target, guard, paths, only)| OperationEffect::Restored {
                target,
                guard,
                paths,
                only
            }),
        (id(), any::<bool>()).prop_map(|(id, freed)| OperationEffect::Deleted { id, freed }),
        id().prop_map(|id| OperationEffect::Revived { id }),
        vec(
            (id(), tags(), tags()).prop_map(|(id, lost, got)| TagChange { id, lost, got }),
            0..4
        )
        .prop_map(|changes| OperationEffect::Tagged { changes }),
        (id(), "[a-z]{1,20}", "[0-9a-f]{32}", any::<bool>()).prop_map(
            |(base, name, store, dropped)| OperationEffect::Branch {
                base,
                name,
                store,
                dropped
            }
        ),
        (id(), reason(), reason()).prop_map(|(id, before, after)| OperationEffect::Pinned {
            id,
            before,
            after
        }),
    ];
    (number(), any::<i64>(), by, option::of(number()), deed).prop_map(
        |(number, at_ns, by, undoes, deed)| Operation {
            number,
            at_ns,
            by,
            undoes,
            deed,
        },
    )
}

fn process() -> impl Strategy<Value = Process> {
    let word = || vec(any::<char>(), 0..4).prop_map(String::from_iter);
    (any::<[u32; 4]>(), any::<u64>(), word(), word()).prop_map(
        |([pid, uid, parent, session], start, name, cgroup)| Process {
            pid,
            start,
            uid,
            parent,
            session,
            name,
            cgroup,
        },
    )
}

fn touch() -> impl Strategy<Value = ProcessChange> {
    let how = prop_oneof![
        Just(NameTouch::Removed),
        Just(NameTouch::Made),
        Just(NameTouch::Moved)
    ];
    prop_oneof![
        (any::<u32>(), place(), how).prop_map(|(by, place, how)| ProcessChange::Name {
            by,
            dir: place.parent,
            name: place.name,
            how
        }),
        (any::<u32>(), slot()).prop_map(|(by, slot)| ProcessChange::Data { by, slot }),
        (any::<u32>(), slot()).prop_map(|(by, slot)| ProcessChange::Attr { by, slot }),
        (any::<u32>(), slot()).prop_map(|(by, slot)| ProcessChange::Made { by, slot }),
        slot().prop_map(|slot| ProcessChange::Gone { slot }),
        (any::<u32>(), slot()).prop_map(|(by, slot)| ProcessChange::Left { by, slot }),
    ]
}

/// Generates any record that is valid by itself.
fn record() -> impl Strategy<Value = Record> {
    any_record().prop_filter("it cannot be true", |record| {
        !matches!(
            codec::encode(record, &mut Vec::new()),
            Err(CodecError::Reserved | CodecError::Circle)
        )
    })
}

fn any_record() -> impl Strategy<Value = Record> {
    let id = || number().prop_map(CheckpointId);
    let actor = (
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        vec(any::<char>(), 0..4),
    )
        .prop_map(|(uid, gid, pid, process)| Actor {
            uid,
            gid,
            pid,
            process: String::from_iter(process),
        });
    prop_oneof![
        8 => (number(), vec(undo(), 0..20)).prop_map(|(epoch, undo)| Record::Undo { epoch: Epoch(epoch), undo }),
        1 => (number(), slot()).prop_map(|(epoch, slot)| Record::Void { epoch: Epoch(epoch), slot }),
        1 => vec((slot(), place()), 0..10).prop_map(|places| Record::Moved { places }),
        2 => checkpoint().prop_map(Record::Checkpoint),
        1 => (id(), tags()).prop_map(|(id, tags)| Record::Tags { id, tags }),
        1 => id().prop_map(|id| Record::Deleted { id }),
        1 => (id(), option::of("[a-z]{0,20}")).prop_map(|(id, reason)| Record::Pinned { id, reason }),
        1 => (id(), any::<bool>()).prop_map(|(id, hidden)| Record::Hidden { id, hidden }),
        1 => (slot(), place(), object(), any::<bool>()).prop_map(|(slot, place, object, whiteout)| Record::Replacing { slot, place, object, whiteout }),
        1 => (id(), id(), vec(vec(any::<u8>(), 0..30), 0..5)).prop_map(|(target, guard, paths)| Record::RestoreBegin { target, guard, paths }),
        1 => Just(Record::RestoreEnd),
        1 => (any::<i64>(), option::of(any::<i64>())).prop_map(|(at_ns, stopped_ns)| Record::Mounted { at_ns, stopped_ns }),
        1 => any::<i64>().prop_map(|at_ns| Record::Unmounted { at_ns }),
        2 => operation(actor.clone()).prop_map(Record::Operation),
        1 => (any::<i64>(), actor).prop_map(|(at_ns, actor)| Record::By { at_ns, actor }),
        1 => sealed(),
        2 => (vec((any::<u32>(), process()), 0..3), vec(touch(), 0..5)).prop_map(|(processes, touches)| Record::Touched { processes, touches }),
        1 => (id(), vec((vec(any::<u8>(), 0..30), process()), 0..3), any::<u64>()).prop_map(|(id, open, more)| Record::OpenAt { id, open, more }),
        1 => vec(vec(any::<u8>(), 0..30), 0..5).prop_map(|paths| Record::RestoreOnly { paths }),
        1 => dropped(),
        1 => option::of(comparing()).prop_map(Record::Comparing),
        1 => any::<(i64, i64)>().prop_map(|(from_ns, to_ns)| Record::Told { from_ns, to_ns }),
    ]
}

fn comparing() -> impl Strategy<Value = Comparing> {
    let apart = prop::sample::select(vec![
        AbsenceEpoch::No,
        AbsenceEpoch::Unclosed,
        AbsenceEpoch::Closed,
    ]);
    let place = (any::<u32>(), any::<u32>())
        .prop_map(|(segment, offset)| crate::Address { segment, offset });
    (place, any::<i64>(), apart).prop_map(|(baseline, left_ns, apart)| Comparing {
        baseline,
        left_ns,
        apart,
    })
}

fn encoded(record: &Record) -> (u16, Vec<u8>) {
    let mut bytes = Vec::new();
    let kind = codec::encode(record, &mut bytes).expect("within the limits");
    (kind, bytes)
}

/// Decodes; checks that memory is bounded by the input, and that the result encodes to the same
/// bytes.
fn decode(kind: u16, payload: &[u8]) -> Option<Record> {
    let (decoded, peak) = peak_of(|| codec::decode(kind, payload).ok());
    assert!(
        peak <= MEMORY + MEMORY_PER_BYTE * payload.len(),
        "{peak} bytes for {}",
        payload.len()
    );
    if let Some(record) = &decoded {
        assert_eq!(
            encoded(record),
            (kind, payload.to_vec()),
            "one encoding for one record"
        );
    }
    decoded
}

fn framed(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut link = Link {
        seq: 0,
        hash: blake3::keyed_hash(&KEY, b""),
    };
    for record in records {
        link = frame::push(&mut bytes, &KEY, link, link.seq, record).expect("within the limits");
    }
    bytes
}

/// Mutates bytes: truncates, inserts, duplicates, overwrites, flips.
fn mutated(mut bytes: Vec<u8>, changes: &[(usize, u8, u8)]) -> Vec<u8> {
    for (at, how, value) in changes {
        let at = at % bytes.len().max(1);
        match how % 5 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), *value),
            2 => bytes.extend_from_within(at.min(bytes.len())..),
            3 => bytes
                .get_mut(at)
                .into_iter()
                .for_each(|byte| *byte = *value),
            _ => bytes
                .get_mut(at)
                .into_iter()
                .for_each(|byte| *byte ^= 1 << (value % 8)),
        }
    }
    bytes
}

fn changes() -> impl Strategy<Value = Vec<(usize, u8, u8)>> {
    vec((any::<usize>(), any::<u8>(), any::<u8>()), 1..6)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_record_comes_back(record in record()) {
        let (kind, bytes) = encoded(&record);
        prop_assert_eq!(decode(kind, &bytes), Some(record));
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(kind in 0..=codec::KIND_MAX, bytes in vec(any::<u8>(), 0..300)) {
        decode(kind, &bytes);
    }

    #[test]
    fn changed_records_are_records_or_errors(record in record(), changes in changes(), other in 0..=codec::KIND_MAX) {
        let (kind, bytes) = encoded(&record);
        let bytes = mutated(bytes, &changes);
        decode(kind, &bytes);
        decode(other, &bytes);
    }

    #[test]
    fn frames_come_back_and_end_where_they_end(records in vec(record(), 1..4)) {
        let bytes = framed(&records);
        let mut at = 0;
        for record in records {
            let FrameAt::Frame(header, payload, _) = frame::look(&bytes[at..], &KEY) else { panic!("no frame at {at}") };
            prop_assert_eq!(decode(header.kind, payload), Some(record));
            at += header.total().expect("a frame has a length");
        }
        prop_assert!(at == bytes.len());
    }

    #[test]
    fn changed_frames_are_none(record in record(), changes in changes(), any in vec(any::<u8>(), 0..200)) {
        let bytes = framed(std::slice::from_ref(&record));
        let other = mutated(bytes.clone(), &changes);
        if let FrameAt::Frame(header, ..) = frame::look(&other, &KEY) {
            // Bytes after the frame do not matter.
            let total = header.total().expect("a frame has a length");
            prop_assert_eq!(&other[..total], &bytes[..]);
        }
        prop_assert!(!matches!(frame::look(&any, &KEY), FrameAt::Frame(..)));
        prop_assert_eq!(Header::parse(&any).is_some(), any.len() >= HEADER);
    }
}
