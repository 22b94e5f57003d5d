//! Tests of forged journals with valid hashes: recovery, verification, views, comparison, export
//! and restore in this process. Each call returns within its memory limit, and none panics.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::check::{CheckOptions, StoreCheck};
use super::requester::Requester;
use super::{Config, Engine};
use crate::history::present::Trail;
use crate::history::state::TreeState;
use ckptfs_api::{
    Actor, CheckpointId, Compare, CompareByProcess, DuOptions, Epoch, ExportAsk, GcOptions,
    GetStatus, ListAudit, ListOperations, ListVersions, Query, Reason, Request, RestoreOptions,
    ShowCheckpoint, StateName, TreePath, UndoOptions, UndoWalk, VerbResult, VerifyOptions,
};
use ckptfs_store::Store;
use ckptfs_store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use ckptfs_store::operation::{Operation, OperationEffect};
use ckptfs_store::record::{
    AttrState, Checkpoint, Child, DataState, Dropped, ObjectHash, Place, ProcessChange, Record,
    Undo,
};
use ckptfs_sys::{Kind, Protection, Stat, Time};
use ckptfs_testkit::{config, within};

/// Writing a journal is slow, so fewer cases run than for decoders in memory.
const CASES_SHARE: u32 = 8;
/// Memory limit of all calls of a case, in bytes. An endless walk would exhaust it.
const MEMORY_MAX: usize = 64 << 20;
/// Time limit of a case on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Limit of names that a walk of a view reads.
const LOOKS_MAX: usize = 2000;

fn daemon() -> Actor {
    Actor {
        uid: 0,
        gid: 0,
        pid: 1,
        process: "forger".into(),
    }
}

/// Generates well-formed records from bytes, most of them for the open epoch.
struct Forger<'a> {
    bytes: std::slice::Iter<'a, u8>,
    slots: &'a [u64],
    open: u64,
    operations: u64,
}

impl Forger<'_> {
    fn next(&mut self, below: usize) -> usize {
        usize::from(self.bytes.next().copied().unwrap_or(0)) % below
    }

    fn slot(&mut self) -> Slot {
        let at = self.next(self.slots.len());
        Slot(self.slots.get(at).copied().unwrap_or(1))
    }

    fn name(&mut self) -> Name {
        let names: [&[u8]; 7] = [
            b"a",
            b"b",
            b"c",
            b"file",
            b"other",
            b".ckptfs",
            b".snapshots",
        ];
        let at = self.next(names.len());
        Name::new(names.get(at).copied().unwrap_or(b"x"))
    }

    fn place(&mut self) -> Place {
        Place {
            parent: self.slot(),
            name: self.name(),
        }
    }

    fn kind(&mut self) -> Kind {
        match self.next(6) {
            0 | 1 => Kind::File,
            2 => Kind::Symlink,
            3 => Kind::CharDev,
            _ => Kind::Dir,
        }
    }

    /// Usually returns `likely`.
    fn number(&mut self, likely: u64) -> u64 {
        match self.next(16) {
            0 => 0,
            1 => u64::MAX,
            2 => likely.wrapping_add(1),
            3 => likely.wrapping_sub(1),
            _ => likely,
        }
    }

    fn object(&mut self) -> ObjectId {
        let origin = if self.next(2) == 0 {
            ObjectOrigin::Cloned
        } else {
            ObjectOrigin::Moved
        };
        ObjectId {
            epoch: Epoch(self.number(self.open)),
            slot: self.slot(),
            serial: self.next(3) as u32,
            origin,
        }
    }

    fn stat(&mut self, slot: Slot) -> Stat {
        let kind = self.kind();
        let time = Time {
            sec: if self.next(4) == 0 {
                i64::MAX
            } else {
                1_000_000_000
            },
            nsec: 0,
        };
        let (mode, nlink) = (self.next(256) as u32 * 16, self.next(4) as u32);
        let size = self.number(9);
        Stat {
            dev: 1,
            ino: slot.0,
            kind,
            mode,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 8,
            blksize: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            btime: Some(time),
            protection: Protection::None,
        }
    }

    fn undo(&mut self) -> Undo {
        let slot = self.slot();
        match self.next(8) {
            0..=2 => {
                let before = if self.next(4) == 0 {
                    None
                } else {
                    Some(Child {
                        slot: self.slot(),
                        kind: self.kind(),
                    })
                };
                Undo::Entry {
                    dir: slot,
                    name: self.name(),
                    before,
                }
            }
            3 => Undo::Attr {
                slot,
                before: AttrState {
                    stat: self.stat(slot),
                    target: None,
                },
            },
            4 => Undo::Xattrs {
                slot,
                before: vec![(b"user.x".to_vec(), b"y".to_vec())],
            },
            5 => {
                let object = if self.next(3) == 0 {
                    None
                } else {
                    Some(self.object())
                };
                Undo::Data {
                    slot,
                    before: DataState {
                        object,
                        size: self.number(9),
                        provisional: self.next(2) == 0,
                    },
                }
            }
            _ => Undo::Home {
                slot,
                before: self.place(),
            },
        }
    }

    fn undos(&mut self) -> Vec<Undo> {
        (0..=self.next(5)).map(|_| self.undo()).collect()
    }

    fn id(&mut self) -> CheckpointId {
        let last = self.open.saturating_sub(1);
        CheckpointId(self.number(last))
    }

    fn record(&mut self) -> Record {
        match self.next(23) {
            0..=8 => Record::Undo {
                epoch: Epoch(self.number(self.open)),
                undo: self.undos(),
            },
            9 | 10 => Record::Moved {
                places: (0..=self.next(3))
                    .map(|_| (self.slot(), self.place()))
                    .collect(),
            },
            11 | 12 => {
                let id = CheckpointId(self.number(self.open));
                self.open = id.0.wrapping_add(1);
                Record::Checkpoint(checkpoint(id))
            }
            13 => Record::Void {
                epoch: Epoch(self.number(self.open)),
                slot: self.slot(),
            },
            number => self.record_of_people(number),
        }
    }

    fn operation(&mut self) -> Record {
        self.operations = self.number(self.operations.saturating_add(1));
        let deed = OperationEffect::Restored {
            target: self.id(),
            guard: self.id(),
            paths: Vec::new(),
            only: false,
        };
        let undoes = if self.next(2) == 0 {
            None
        } else {
            Some(self.number(self.operations))
        };
        Record::Operation(Operation {
            number: self.operations,
            at_ns: 0,
            by: daemon(),
            undoes,
            deed,
        })
    }

    /// Generates a record of a user's operation, in most cases.
    fn record_of_people(&mut self, number: usize) -> Record {
        match number {
            14 => Record::Tags {
                id: self.id(),
                tags: vec!["latest".into(), "\u{1b}[31m".into(), "../x".into()],
            },
            15 if self.next(2) == 0 => Record::Deleted { id: self.id() },
            15 => Record::Hidden {
                id: self.id(),
                hidden: self.next(2) == 0,
            },
            16 => Record::RestoreBegin {
                target: self.id(),
                guard: self.id(),
                paths: vec![b"a/../..".to_vec(), Vec::new()],
            },
            17 => Record::Replacing {
                slot: self.slot(),
                place: self.place(),
                object: self.object(),
                whiteout: self.next(2) == 0,
            },
            18 => {
                let object = self.object();
                Record::Hashes {
                    epoch: object.epoch,
                    objects: vec![ObjectHash {
                        object,
                        size: 9,
                        hash: [7; 32],
                    }],
                    whole: self.next(2) == 0,
                }
            }
            19 => {
                let object = self.object();
                let dropped = Dropped {
                    object,
                    size: self.number(9),
                    first: self.id(),
                    last: self.id(),
                };
                Record::Dropped {
                    epoch: object.epoch,
                    paths: vec!["a".into(), "[".into()],
                    objects: vec![dropped],
                }
            }
            20 => self.operation(),
            21 => Record::Mounted {
                at_ns: i64::MAX,
                stopped_ns: Some(i64::MIN),
            },
            _ => Record::Touched {
                processes: Vec::new(),
                touches: vec![
                    ProcessChange::Gone { slot: self.slot() },
                    ProcessChange::Data {
                        by: 9,
                        slot: self.slot(),
                    },
                ],
            },
        }
    }
}

fn checkpoint(id: CheckpointId) -> Checkpoint {
    let created_ns = 4_000_000_000_000_000_000;
    Checkpoint {
        id,
        tags: Vec::new(),
        note: "\u{1b}]0;x\u{7}".into(),
        created_ns,
        atomic: true,
        dirty: u64::MAX,
        reason: Reason::Asked,
    }
}

/// Creates a tree whose store has one checkpoint followed by forged records.
fn forge(dir: &Path, bytes: &[u8]) {
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    fs::write(dir.join("a/file"), "a file").unwrap();
    fs::write(dir.join("a/b/file"), "another").unwrap();
    let (store, _) = Store::open(File::open(dir).unwrap(), true).unwrap();
    let paths = [
        "a",
        "a/b",
        "a/b/c",
        "a/file",
        "a/b/file",
        ".ckptfs",
        ".ckptfs/journal",
    ];
    let inodes = paths
        .iter()
        .map(|path| fs::metadata(dir.join(path)).unwrap().ino());
    let slots: Vec<u64> = [1, 1, 0, u64::MAX, 777_777]
        .into_iter()
        .chain(inodes.clone())
        .chain(inodes)
        .collect();
    let mut forger = Forger {
        bytes: bytes.iter(),
        slots: &slots,
        open: 2,
        operations: 0,
    };
    store
        .journal
        .append(&[Record::Checkpoint(checkpoint(CheckpointId(1)))])
        .unwrap();
    while forger.bytes.len() > 0 {
        // Records that our encoder rejects are tested in `tests/it/hostile/forged.rs`.
        let _ = store.journal.append(&[forger.record()]);
    }
    // Half of the cases are read from an index, the others from the journal's end.
    if bytes.len().is_multiple_of(2) {
        let _ = store.rebuild_index();
    }
}

fn look_around(engine: &Engine, state: TreeState) {
    let view = engine.states.view(state);
    let (mut open, mut looks) = (vec![Trail::root()], 0);
    while let Some(dir) = open.pop() {
        for (name, child) in view.list(&dir).unwrap_or_default() {
            assert!(
                dir.slot != Slot::ROOT || name.as_bytes() != b".ckptfs",
                "the store is shown"
            );
            let trail = dir.step(&name, child.slot);
            let _ = (
                view.attr(&trail),
                view.xattrs(&trail),
                view.open(&trail).map(|(source, _)| source),
            );
            looks += 1;
            if child.kind == Kind::Dir && looks < LOOKS_MAX {
                open.push(trail);
            }
        }
    }
}

fn export(engine: &Engine, from: Option<CheckpointId>) -> VerbResult<()> {
    let mut files = Vec::new();
    let begun = super::export::Exporter::new(engine).part(
        &ExportAsk::Begin {
            state: StateName("1".into()),
            from,
        },
        &mut files,
    )?;
    let mut done = Vec::new();
    loop {
        let part = super::export::Exporter::new(engine).part(
            &ExportAsk::Next {
                run: begun.run,
                done: std::mem::take(&mut done),
            },
            &mut files,
        )?;
        files.clear();
        done.extend(Some(part.part).filter(|part| *part > 0));
        if part.finished {
            return Ok(());
        }
    }
}

fn check(root: std::os::fd::OwnedFd) {
    let options = CheckOptions {
        deep: true,
        strays: true,
        ..CheckOptions::default()
    };
    if let Ok(mut check) = StoreCheck::begin(root, &options) {
        while !check.step().finished {}
    }
}

/// Calls all read-only verbs.
fn ask_all(ids: &[CheckpointId], ask: impl Fn(Request)) {
    let state = |name: &str| StateName(name.into());
    let compare = |from: StateName, to: Option<StateName>| Compare {
        from,
        sizes: to.is_none(),
        to,
    };
    for id in ids.iter().take(5) {
        let state = StateName(id.to_string());
        ask(compare(state.clone(), None).into());
        ask(ShowCheckpoint { state }.into());
    }
    ask(GetStatus.into());
    ask(compare(state("1"), Some(state("latest"))).into());
    let by_process = CompareByProcess {
        from: Some(state("1")),
        to: None,
    };
    ask(by_process.into());
    let path = TreePath(b"a/b/file".to_vec());
    ask(ListVersions { path }.into());
    let query = Query {
        path: Some(TreePath(b"a".to_vec())),
        ..Query::default()
    };
    ask(query.into());
    let list = ListOperations {
        before: None,
        limit: 100,
    };
    ask(list.into());
    ask(ListAudit.into());
    ask(DuOptions::default().into());
    let gc = GcOptions {
        dry_run: true,
        ..GcOptions::default()
    };
    ask(gc.into());
    let verify = VerifyOptions {
        deep: true,
        ..VerifyOptions::default()
    };
    ask(verify.into());
}

fn use_it(dir: &Path) {
    let root = || File::open(dir).unwrap().into();
    check(root());
    let Ok(engine) = Engine::open(Config::bare(root(), dir.to_owned())) else {
        return;
    };
    let by = Requester::from(daemon());
    let ask = |request: Request| drop(super::verb::execute(request, &engine, &by));
    let ids = engine.timeline().catalogue.checkpoint_ids();
    for id in ids.iter().take(5) {
        look_around(&engine, TreeState::At(*id));
    }
    ask_all(&ids, ask);
    let _ = (export(&engine, None), export(&engine, ids.last().copied()));
    for paths in [vec![], vec![TreePath(b"a/b".to_vec())]] {
        for dry_run in [true, false] {
            let restore = RestoreOptions {
                to: StateName("1".into()),
                paths: paths.clone(),
                dry_run,
                times: None,
            };
            ask(restore.into());
        }
    }
    let undo = UndoOptions {
        walk: UndoWalk::Undo(3),
        skip: true,
        force: true,
        dry_run: false,
    };
    ask(undo.into());
    look_around(&engine, TreeState::Live);
    assert!(
        fs::symlink_metadata(dir.join(".ckptfs/format")).is_ok(),
        "the store is where it was"
    );
    engine.close();
}

/// Runs a case in a thread, with a time limit.
fn run(bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    forge(dir.path(), bytes);
    let (tell, told) = channel();
    let path: Arc<Path> = dir.path().into();
    let worker = std::thread::spawn(move || {
        within(MEMORY_MAX, || use_it(&path));
        let _ = tell.send(());
    });
    assert!(
        told.recv_timeout(TIME_MAX) != Err(std::sync::mpsc::RecvTimeoutError::Timeout),
        "it does not end: {bytes:?}"
    );
    worker.join().expect("no panic");
}

fn few() -> ProptestConfig {
    let all = config();
    ProptestConfig {
        cases: all.cases.div_ceil(CASES_SHARE),
        max_shrink_iters: 60,
        ..all
    }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn nonsense_with_right_hashes_ends_within_memory(bytes in vec(any::<u8>(), 0..600)) {
        run(&bytes);
    }
}
