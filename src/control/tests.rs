//! The protocol end to end, over a fake of the verbs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::protocol::{encode, join, split};
use super::*;
use crate::engine::Keep;
use crate::engine::api::who::{ByProcess, ChangeBy, OnlyBy, ProcessInfo, RestoredOnly, SharedPath};
use crate::engine::api::*;
use crate::engine::export::parts::{ExportAsk, ExportPart};
use crate::engine::import::{ImportAsk, ImportPart};
use crate::store::ids::CheckpointId;
use crate::store::record::{Actor, Reason};
use crate::sys::Kind;

struct Fake {
    changes: usize,
}

fn info(id: u64) -> CheckpointInfo {
    CheckpointInfo {
        changes: None,
        id: CheckpointId(id),
        tags: vec!["v1".into()],
        note: "before the refactor\n\u{1}".into(),
        created: "2026-11-21T09:00:00Z".into(),
        atomic: true,
        dirty: 3,
        reason: Reason::Guard { restored: CheckpointId(1) },
        duration_us: None,
        frozen_us: None,
        slowest_file: None,
        open_files: None,
        unchanged: false,
        open_at_cut: None,
        quiesced: None,
        pinned: Some("why\n".into()),
        parent: Some(CheckpointId(1)),
        by: Some(Actor { uid: 0, gid: u32::MAX, pid: 1, process: "a \"b\"\n".into() }),
        has_dropped: false,
        dropped: None,
    }
}

fn changes(count: usize) -> Vec<Change> {
    let path = |n: usize| TreePath(format!("directory-{n}/\u{fffd}").into_bytes().into_iter().chain([0xff, b'\n']).collect());
    (0..count).map(|n| Change { from: Some(path(n + 1)), ..Change::new(path(n).0, ChangeKind::Renamed, Kind::File) }).collect()
}

fn status(count: usize) -> Status {
    Status {
        mount: "/m".into(),
        backing: "/m".into(),
        store: "/m/.ckptfs".into(),
        filesystem: "xfs".into(),
        capture: "reflink".into(),
        io: "daemon".into(),
        writes: "daemon".into(),
        daemon: DaemonInfo { pid: 1, started: "2026-11-21T09:00:00Z".into(), version: "0".into(), holder: None, takeovers: 0, taken_over: None },
        epoch: 2,
        latest: Some(CheckpointId(1)),
        base: Some(CheckpointId(1)),
        checkpoints: 1,
        dirty: changes(count),
        shared: Default::default(),
        absence: None,
        warnings: vec![],
        had_below: false,
    }
}

fn stats() -> Stats {
    Stats {
        mount: "/m".into(),
        daemon: status(0).daemon,
        io: "passthrough".into(),
        writes: "daemon".into(),
        requests: [("lookup".to_owned(), 3), ("open".to_owned(), u64::MAX)].into(),
        rss_bytes: 1 << 40,
        threads: 5,
        open_files: 1,
        inodes: 3,
        past_inodes: 4,
        announcing: false,
        sealer: SealerInfo { mode: "hash".into(), caught_up: true, objects: 2, bytes: 1 << 50, read: 1 << 40 },
    }
}

fn event() -> AuditEvent {
    let by = Some(Actor { uid: 0, gid: u32::MAX, pid: 1, process: "a \"b\"\n".into() });
    let (at, paths) = (Some("2026-11-21T09:00:00Z".to_owned()), vec![TreePath(vec![0xff; 100])]);
    let checkpoint = Some(CheckpointId(1));
    AuditEvent { at, what: AuditKind::Restore, by, checkpoint, guard: None, tags: vec![], paths, note: String::new(), unserved_since: None }
}

impl Verbs for Fake {
    fn checkpoint(&self, by: &Actor, options: &CheckpointOptions) -> VerbResult<CheckpointInfo> {
        assert_eq!((by.uid, by.pid), (crate::sys::ids().0, std::process::id()));
        Ok(CheckpointInfo { note: options.note.clone(), tags: options.tags.clone(), ..info(7) })
    }
    fn status(&self) -> VerbResult<Status> {
        Ok(status(self.changes))
    }
    fn export(&self, _: &ExportAsk, _: &mut Vec<Arc<std::fs::File>>) -> VerbResult<ExportPart> {
        Err(VerbError { code: "unknown-run".into(), message: String::new(), hint: None })
    }
    fn import(&self, _: &Actor, _: &ImportAsk, _: &mut Vec<Arc<std::fs::File>>) -> VerbResult<ImportPart> {
        Ok(ImportPart::default())
    }
    fn stats(&self) -> VerbResult<Stats> {
        Ok(stats())
    }
    fn log(&self) -> VerbResult<Vec<CheckpointInfo>> {
        Ok((1..=self.changes as u64).rev().map(info).collect())
    }
    fn show(&self, state: &StateName) -> VerbResult<CheckpointInfo> {
        let hint = Some("list them: ckptfs log".into());
        Err(VerbError { code: "unknown-checkpoint".into(), message: format!("there is no checkpoint {}", state.0), hint })
    }
    fn diff(&self, _: &StateName, _: Option<&StateName>) -> VerbResult<Vec<Change>> {
        Ok(changes(self.changes))
    }
    fn find(&self, query: &Query) -> VerbResult<Vec<CheckpointInfo>> {
        Ok((1..=query.limit.unwrap_or(self.changes) as u64).rev().map(info).collect())
    }
    fn retag(&self, _: &Actor, _: &StateName, retag: &Retag) -> VerbResult<CheckpointInfo> {
        Ok(CheckpointInfo { tags: retag.add.clone(), ..info(7) })
    }
    fn pin(&self, _: &Actor, _: &StateName, reason: Option<&str>) -> VerbResult<CheckpointInfo> {
        Ok(CheckpointInfo { pinned: reason.map(str::to_owned), ..info(7) })
    }
    fn versions(&self, _: &TreePath) -> VerbResult<Vec<VersionInfo>> {
        let version = |id| VersionInfo { checkpoint: Some(info(id)), change: VersionKind::Modified, kind: None, size: None, modified: None };
        Ok((1..=self.changes as u64).rev().map(version).collect())
    }
    fn diff_sized(&self, _: &StateName, _: Option<&StateName>) -> VerbResult<Vec<Change>> {
        Ok(changes(self.changes))
    }
    fn restore(&self, _: &Actor, options: &RestoreOptions) -> VerbResult<Restored> {
        let changes = changes(self.changes);
        Ok(Restored {
            restored: CheckpointId(1),
            guard: None,
            changes,
            unknown: Vec::new(),
            split: Vec::new(),
            dropped: Vec::new(),
            dry_run: options.dry_run,
            duration_us: 5,
        })
    }
    fn by_process(&self, _: Option<&StateName>, _: Option<&StateName>) -> VerbResult<ByProcess> {
        let changes = changes(self.changes).into_iter().map(|change| ChangeBy { change, by: vec![0], others: true }).collect();
        Ok(ByProcess { processes: vec![ProcessInfo { pid: 7, name: "\u{1}sh".into(), ..ProcessInfo::default() }], changes })
    }
    fn restore_only_by(&self, by: &Actor, options: &OnlyBy) -> VerbResult<RestoredOnly> {
        let to = StateName("1".into());
        let restored = self.restore(by, &RestoreOptions { to, paths: Vec::new(), dry_run: options.dry_run, times: None })?;
        let shared = vec![SharedPath { path: TreePath(b"\xff".to_vec()), by: vec![options.who.clone()] }];
        Ok(RestoredOnly { restored, shared })
    }
    fn operations(&self, _: Option<u64>, _: usize) -> VerbResult<Vec<OperationInfo>> {
        Ok(Vec::new())
    }
    fn undo(&self, _: &Actor, options: &UndoOptions) -> VerbResult<Undone> {
        Ok(Undone { dry_run: options.dry_run, ..Undone::default() })
    }
    fn delete(&self, _: &Actor, _: &StateName, _: bool) -> VerbResult<CheckpointInfo> {
        panic!("a mistake of the engine");
    }
    fn verify(&self, options: &VerifyOptions) -> VerbResult<Verified> {
        Ok(Verified { run: options.run.unwrap_or(7), total: u64::from(options.deep), ..Verified::default() })
    }

    fn du(&self, _: &DuOptions) -> VerbResult<DuReport> {
        Ok(DuReport::default())
    }

    fn gc(&self, _: &Actor, _: &GcOptions) -> VerbResult<GcReport> {
        Ok(GcReport::default())
    }

    fn dedup(&self, _: &DedupOptions, _: &mut Vec<Arc<std::fs::File>>) -> VerbResult<DedupReport> {
        Ok(DedupReport::default())
    }

    fn audit(&self) -> VerbResult<Vec<AuditEvent>> {
        Ok(vec![event(); self.changes])
    }

    fn unmount(&self, _: bool, _: Option<Keep>) -> VerbResult<()> {
        Ok(())
    }
}

struct Served {
    dir: tempfile::TempDir,
    path: PathBuf,
    left: Arc<AtomicUsize>,
}

fn served(changes: usize) -> Served {
    let dir = tempfile::tempdir().expect("directory");
    let store = dir.path().join(STORE_NAME);
    std::fs::DirBuilder::new().mode(0o700).create(&store).expect("mkdir");
    let path = store.join(SOCKET_NAME);
    let tree = crate::sys::mount_source(dir.path());
    let left = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&left);
    let leave = move || {
        counter.fetch_add(1, Ordering::SeqCst);
    };
    serve(UnixListener::bind(&path).expect("bind"), Arc::new(Fake { changes }), tree, leave).expect("serve");
    Served { dir, path, left }
}

#[test]
fn every_verb_arrives_and_its_answer_comes_back() {
    let served = served(3);
    let mut client = Client::connect_path(&served.path).expect("connect");
    let options = CheckpointOptions {
        note: "n\u{0}ote".into(),
        tags: vec!["a".into(), "b".into()],
        sync: true,
        if_changed: true,
        quiesce_ms: Some(2000),
        ..CheckpointOptions::default()
    };
    let made = client.checkpoint(options.clone()).expect("checkpoint");
    assert_eq!((made.note, made.tags), (options.note, options.tags));
    assert_eq!(client.status().expect("status"), status(3));
    assert_eq!(client.stats().expect("stats"), stats());
    assert_eq!(client.log().expect("log").iter().map(|c| c.id.0).collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!(client.diff(StateName("1".into()), None).expect("diff"), changes(3));
    assert_eq!(client.audit().expect("audit"), vec![event(); 3]);
    let verified = client.verify(VerifyOptions { state: None, deep: true, run: Some(9) }).expect("verify");
    assert_eq!((verified.run, verified.total), (9, 1));
    let restore = RestoreOptions { to: StateName("1".into()), paths: vec![TreePath(vec![0xfe])], dry_run: true, times: None };
    assert!(client.restore(restore).expect("restore").dry_run);
    let error = client.show(StateName("9".into())).expect_err("unknown");
    assert_eq!((error.code.as_str(), error.hint.as_deref()), ("unknown-checkpoint", Some("list them: ckptfs log")));
}

#[test]
fn a_daemon_is_found_by_its_directory_and_one_of_another_tree_does_nothing() {
    let served = served(0);
    let connected = |dir: &std::path::Path| Client::of(&Store::of(dir).expect("look").expect("a store")).expect("connect");
    let mut client = connected(served.dir.path());
    assert!(client.log().expect("log").is_empty());
    assert!(client.again().expect("again").log().expect("log").is_empty());
    // Whoever may write in the directory above can exchange two trees of ours.
    let elsewhere = tempfile::tempdir().expect("directory");
    let moved = elsewhere.path().join("moved");
    std::fs::rename(served.dir.path(), &moved).expect("rename");
    assert_eq!(connected(&moved).log().expect_err("another tree").code, "wrong-tree");
    std::fs::rename(&moved, served.dir.path()).expect("rename back");
}

#[test]
fn a_store_that_others_can_write_and_a_link_to_one_are_not_believed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let served = served(0);
    let store = served.dir.path().join(STORE_NAME);
    std::fs::write(store.join("format"), "x").expect("write");
    let mode = |mode| std::fs::set_permissions(&store, std::fs::Permissions::from_mode(mode)).expect("chmod");
    for wrong in [0o777, 0o770, 0o702] {
        mode(wrong);
        assert!(matches!(look(served.dir.path()).expect("look"), Seen::Foreign(_)), "{wrong:o}");
    }
    mode(0o755);
    assert!(matches!(look(served.dir.path()).expect("look"), Seen::Store(_)));
    let other = tempfile::tempdir().expect("directory");
    symlink(&store, other.path().join(STORE_NAME)).expect("symlink");
    assert!(matches!(look(other.path()).expect("look"), Seen::Nothing));
    symlink("nowhere", other.path().join("sub")).expect("symlink");
    assert!(matches!(look(&other.path().join("sub")).expect("look"), Seen::Nothing));
}

#[test]
fn a_panic_in_a_verb_is_an_error_and_the_connection_goes_on() {
    let served = served(0);
    let mut client = Client::connect_path(&served.path).expect("connect");
    assert_eq!(client.delete(StateName("1".into())).expect_err("panics").code, "internal");
    assert!(client.log().expect("log").is_empty());
}

#[test]
fn leave_is_called_after_the_answer_and_only_if_asked() {
    let served = served(0);
    let mut client = Client::connect_path(&served.path).expect("connect");
    client.unmount(true, false, None).expect("unmount");
    assert_eq!(served.left.load(Ordering::SeqCst), 0);
    client.unmount(true, true, Some(Keep::None)).expect("unmount");
    client.log().expect("the next request on the connection is served after `leave`");
    assert_eq!(served.left.load(Ordering::SeqCst), 1);
    assert!(!client.wait_ended(Duration::from_millis(10)));
}

#[test]
fn answers_longer_than_a_frame_come_in_parts_and_in_order() {
    let served = served(60_000);
    let mut client = Client::connect_path(&served.path).expect("connect");
    assert_eq!(client.status().expect("status"), status(60_000));
    let by = client.by_process(None, None).expect("by process");
    assert!(by.processes.len() == 1 && by.changes.iter().map(|one| &one.change).eq(&changes(60_000)));
    let log = client.log().expect("log");
    assert!(log.len() == 60_000 && log.windows(2).all(|pair| pair[0].id > pair[1].id));
    let versions = client.versions(TreePath(b"a".to_vec())).expect("versions");
    let id = |version: &VersionInfo| version.checkpoint.as_ref().map(|checkpoint| checkpoint.id);
    assert!(versions.len() == 60_000 && versions.windows(2).all(|pair| id(&pair[0]) > id(&pair[1])));
}

#[test]
fn parts_fit_their_frames_and_join_again() {
    let mut worst = changes(2);
    worst[0].path = TreePath(vec![1; 4096]);
    let worst: Vec<Change> = std::iter::repeat_n(worst, 3_000).flatten().collect();
    for whole in [Response::Changes(worst), Response::Checkpoints(Vec::new()), Response::Done, Response::Status(Box::new(status(1)))] {
        let mut parts = split(whole.clone());
        assert!(parts.iter().all(|part| encode(part).is_ok()));
        let last = parts.pop().expect("the last part");
        assert_eq!(join(parts, last), Some(whole));
    }
    assert_eq!(join(vec![Response::Changes(changes(1))], Response::Done), None);
}

/// Sends a line as it is and gives the line that comes back.
fn raw(path: &std::path::Path, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).expect("connect");
    stream.write_all(line).expect("send");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("answer");
    answer
}

#[test]
fn another_version_and_nonsense_get_a_clear_answer() {
    let served = served(0);
    let other = raw(&served.path, b"{\"version\":2,\"request\":{\"teleport\":{}}}\n");
    assert!(other.contains("protocol-version") && other.contains("restart the daemon"), "{other}");
    let other = raw(&served.path, b"{\"version\":2,\"request\":\"log\"}\n");
    assert!(other.contains("protocol-version"), "{other}");
    for nonsense in [&b"\n"[..], b"{}\n", b"\xff\xfe\n", b"{\"version\":1,\"request\":\"fly\"}\n"] {
        let answer = raw(&served.path, nonsense);
        assert!(answer.contains("\"error\"") && answer.contains("\"code\":\"protocol\""), "{answer}");
    }
    assert_eq!(raw(&served.path, b"{\"version\":1,\"request\":\"log\"}\n"), "{\"version\":1,\"result\":{\"ok\":{\"checkpoints\":[]}}}\n");
}

#[test]
fn a_reply_of_another_version_asks_for_a_restart() {
    let error = Reply::decode(b"{\"version\":9,\"result\":{\"ok\":{\"teleported\":1}}}").expect_err("version 9");
    assert_eq!(error.code, "protocol-version");
    assert_eq!(Reply::decode(b"{\"version\":1,\"result\":{\"ok\":{\"x\":1}}}").expect_err("nonsense").code, "protocol");
    assert_eq!(Reply::decode(b"{\"version\":9,\"result\":\"done\"}").expect_err("version 9").code, "protocol-version");
}

#[test]
fn a_frame_over_the_limit_ends_the_connection_only() {
    let served = served(0);
    let mut stream = UnixStream::connect(&served.path).expect("connect");
    let block = vec![b' '; 1 << 20];
    let sent = (0..17).try_for_each(|_| stream.write_all(&block));
    let mut answer = String::new();
    let read = BufReader::new(&stream).read_line(&mut answer);
    assert!(sent.is_err() || !matches!(read, Ok(length) if length > 0), "{answer}");
    assert!(Client::connect_path(&served.path).expect("connect").log().expect("log").is_empty());
}

#[test]
fn one_connection_too_many_is_told_so() {
    let served = served(0);
    let mut clients: Vec<Client> = (0..CONNECTIONS_MAX).map(|_| Client::connect_path(&served.path).expect("connect")).collect();
    for client in &mut clients {
        client.log().expect("within the limit");
    }
    let error = Client::connect_path(&served.path).expect("connect").log().expect_err("over the limit");
    assert_eq!(error.code, "too-many-connections");
    drop(clients.pop());
    let again = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        Client::connect_path(&served.path).is_ok_and(|mut client| client.log().is_ok())
    });
    assert!(again, "a place that was freed can be taken");
}
