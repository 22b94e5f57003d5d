//! The record of a checkpoint, and lists of checkpoints.

use super::served::InProcessEngine;
use super::snapshot::{EACH_BYTES, project};
use super::tell;
use crate::alloc::{self, Op};
use crate::report::Report;
use crate::world::{SeedEnv, remove};
use ckptfs_api::{
    CheckpointId, CheckpointOptions, ListCheckpoints, Query, Reason, ShowCheckpoint, StateName,
};
use ckptfs_store::Store;
use ckptfs_store::journal::codec;
use ckptfs_store::record::{Checkpoint, Record};

const RECORD: &str = "JVS: Descriptors (the record of a checkpoint in the journal)";
const VERIFY: &str = "JVS: Verification";
const LIST: &str = "JVS: Catalog";
/// Repetitions of operations below the clock's resolution.
const TIMES: usize = 1000;
const TOO_QUICK: usize = 20;
/// Size of a frame header, in bytes.
const HEADER_BYTES: usize = 56;

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    record(world, report);
    verify(world, report);
    for (name, checkpoints) in [
        ("ListAll_Empty", 0),
        ("ListAll_Single", 1),
        ("ListAll_Many", 50),
        ("", 10_000),
    ] {
        list(world, name, checkpoints, report);
    }
}

fn descriptor() -> Record {
    Record::Checkpoint(Checkpoint {
        id: CheckpointId(1),
        tags: vec!["v1.0".into(), "release".into()],
        note: "a note of an ordinary length\nworktree: main".into(),
        created_ns: 1_760_000_000_000_000_000,
        atomic: true,
        dirty: 60,
        reason: Reason::Asked,
    })
}

fn record(world: &SeedEnv<'_>, report: &mut Report) {
    let dir = world.dir("jvs-record");
    let root = std::fs::File::open(&dir).expect("it can be opened");
    let (store, _) = Store::open(root, true).expect("a store can be created");
    let record = descriptor();
    let at = *store
        .journal
        .append(std::slice::from_ref(&record))
        .expect("the disk has space")
        .first()
        .expect("one record has one position");
    let (mut encode, mut decode, mut load, mut checksum) =
        (Op::default(), Op::default(), Op::default(), Op::default());
    let mut payload = Vec::new();
    let kind = codec::encode(&record, &mut payload).expect("it can be encoded");
    let frame = [vec![0; HEADER_BYTES], payload.clone()].concat();
    for _ in world.options.rounds(100, 5) {
        encode.run_many(TIMES, || {
            (0..TIMES).for_each(|_| drop(std::hint::black_box(encoded(&record))))
        });
        decode.run_many(TIMES, || {
            (0..TIMES).for_each(|_| drop(std::hint::black_box(codec::decode(kind, &payload))))
        });
        load.run_many(TIMES, || {
            (0..TIMES).for_each(|_| {
                drop(std::hint::black_box(
                    store.journal.read(at).expect("it can be read"),
                ))
            })
        });
        checksum.run_many(TIMES, || {
            (0..TIMES).for_each(|_| {
                std::hint::black_box(blake3::keyed_hash(&[7; 32], &frame));
            });
        });
    }
    let rows = [
        (("DescriptorSerialization", "encode"), &encode),
        (("DescriptorDeserialization", "decode"), &decode),
        (
            ("LoadDescriptor", "read from the journal, checksum, decode"),
            &load,
        ),
        (
            ("ComputeDescriptorChecksum", "BLAKE3 of the frame"),
            &checksum,
        ),
    ];
    for (name, op) in rows {
        tell(world, report, RECORD, name, op, |row| row);
    }
    drop(store);
    remove(&dir);
}

fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    codec::encode(record, &mut bytes).expect("it can be encoded");
    bytes
}

/// Verifies a checkpoint of one small file, written since, so that a version exists.
fn verify(world: &SeedEnv<'_>, report: &mut Report) {
    let (served, nodes) = project(world, 1, EACH_BYTES);
    let id = served.checkpoint().id.0;
    served.write(nodes[0], 1);
    let (mut plain, mut deep) = (Op::default(), Op::default());
    alloc::settle();
    for _ in world.options.rounds(100, 4) {
        plain.run(|| served.verify(id, false));
        deep.run(|| served.verify(id, true));
    }
    let journal = "with the whole journal's chain";
    tell(
        world,
        report,
        VERIFY,
        ("VerifySnapshot_ChecksumOnly", journal),
        &plain,
        |row| row,
    );
    tell(
        world,
        report,
        VERIFY,
        (
            "VerifySnapshot_WithPayloadHash",
            "every byte, and the chain",
        ),
        &deep,
        |row| row,
    );
    served.end();
}

/// Makes checkpoints, every tenth with a tag and every second with a label.
fn fill(served: &InProcessEngine, checkpoints: usize) {
    for number in 0..checkpoints {
        let tags = if number.is_multiple_of(10) {
            vec![format!("tag-{number}")]
        } else {
            Vec::new()
        };
        let worktree = if number.is_multiple_of(2) {
            "main"
        } else {
            "feature"
        };
        served.checkpoint_with(CheckpointOptions {
            note: format!("step {number}\nworktree: {worktree}"),
            tags,
            ..CheckpointOptions::default()
        });
    }
}

/// Measures listing all checkpoints, searches by many tags, by label and by one tag, and `show`.
fn listed(world: &SeedEnv<'_>, served: &InProcessEngine, checkpoints: usize) -> [Op; 5] {
    let [mut all, mut by_tag, mut by_worktree, mut of_tag, mut show] =
        [(); 5].map(|()| Op::default());
    let tagged = |tag: &str| Query {
        tag: Some(tag.into()),
        ..Query::default()
    };
    let (tag, one) = (tagged("tag-*0"), tagged("tag-20"));
    let worktree = Query {
        labels: vec![("worktree".into(), "main".into())],
        ..Query::default()
    };
    alloc::settle();
    for _ in world.options.rounds(100, 4) {
        let times = if checkpoints < 1000 { TOO_QUICK } else { 1 };
        let many = |op: &mut Op, what: &dyn Fn()| {
            op.run_many(times, || (0..times).for_each(|_| what()));
        };
        many(&mut all, &|| {
            let list = served.ask(ListCheckpoints).expect("a list");
            assert_eq!(list.len(), checkpoints);
        });
        if checkpoints < 50 {
            continue;
        }
        many(&mut by_tag, &|| found(served, &tag, checkpoints / 10));
        many(&mut by_worktree, &|| {
            found(served, &worktree, checkpoints / 2)
        });
        many(&mut of_tag, &|| found(served, &one, 1));
        many(&mut show, &|| {
            let state = StateName("tag-20".into());
            served.ask(ShowCheckpoint { state }).expect("it exists");
        });
    }
    [all, by_tag, by_worktree, of_tag, show]
}

fn list(world: &SeedEnv<'_>, name: &str, checkpoints: usize, report: &mut Report) {
    let (served, _) = project(world, 1, EACH_BYTES);
    fill(&served, checkpoints);
    let [all, by_tag, by_worktree, of_tag, show] = listed(world, &served, checkpoints);
    let what = format!("{checkpoints} checkpoints");
    tell(world, report, LIST, (name, &what), &all, |row| row);
    if checkpoints >= 50 {
        let (tags, half) = (checkpoints / 10, checkpoints / 2);
        let rows = [
            (
                "Find_ByTag",
                format!("`find --tag 'tag-*0'` of {what}: {tags}"),
                by_tag,
            ),
            (
                "Find_ByWorktree",
                format!("`find --label worktree=main` of {what}: {half}"),
                by_worktree,
            ),
            (
                "FindByTag",
                format!("`find --tag TAG` of {what}: 1"),
                of_tag,
            ),
            (
                "",
                format!("`show TAG` of {what}, including the files that were open for writing"),
                show,
            ),
        ];
        for (seed, label, op) in &rows {
            let seed = if checkpoints == 50 { *seed } else { "" };
            tell(world, report, LIST, (seed, label), op, |row| row);
        }
    }
    served.end();
}

fn found(served: &InProcessEngine, query: &Query, count: usize) {
    assert_eq!(served.ask(query.clone()).expect("an answer").len(), count);
}
