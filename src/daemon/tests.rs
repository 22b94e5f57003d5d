//! The protocol end to end, over fake verbs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use ckptfs_api::protocol::{PROTOCOL, decode_answer};
use ckptfs_api::*;
use ckptfs_core::engine::requester::Requester;
use ckptfs_core::engine::verbs::RequestHandler;
use ckptfs_sys::Kind;

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
        reason: Reason::Guard {
            restored: CheckpointId(1),
        },
        duration_us: None,
        frozen_us: None,
        slowest_file: None,
        open_files: None,
        unchanged: false,
        open_at_cut: None,
        quiesced: None,
        pinned: Some("why\n".into()),
        parent: Some(CheckpointId(1)),
        by: Some(Actor {
            uid: 0,
            gid: u32::MAX,
            pid: 1,
            process: "a \"b\"\n".into(),
        }),
        has_dropped: false,
        dropped: None,
    }
}

fn changes(count: usize) -> Vec<Change> {
    let path = |n: usize| {
        TreePath(
            format!("directory-{n}/\u{fffd}")
                .into_bytes()
                .into_iter()
                .chain([0xff, b'\n'])
                .collect(),
        )
    };
    (0..count)
        .map(|n| Change {
            from: Some(path(n + 1)),
            ..Change::new(path(n).0, ChangeKind::Renamed, Kind::File)
        })
        .collect()
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
        daemon: DaemonInfo {
            pid: 1,
            started: "2026-11-21T09:00:00Z".into(),
            version: "0".into(),
            ..DaemonInfo::default()
        },
        epoch: 2,
        latest: Some(CheckpointId(1)),
        base: Some(CheckpointId(1)),
        checkpoints: 1,
        dirty: changes(count),
        shared: Default::default(),
        absence: None,
        origin: None,
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
        sealer: SealerInfo {
            mode: "hash".into(),
            caught_up: true,
            objects: 2,
            bytes: 1 << 50,
            read: 1 << 40,
        },
        upkeep: UpkeepInfo::default(),
    }
}

fn event() -> AuditEvent {
    let by = Some(Actor {
        uid: 0,
        gid: u32::MAX,
        pid: 1,
        process: "a \"b\"\n".into(),
    });
    let (at, paths) = (
        Some("2026-11-21T09:00:00Z".to_owned()),
        vec![TreePath(vec![0xff; 100])],
    );
    let checkpoint = Some(CheckpointId(1));
    AuditEvent {
        at,
        what: AuditKind::Restore,
        by,
        checkpoint,
        guard: None,
        tags: vec![],
        paths,
        note: String::new(),
        unserved_since: None,
    }
}

impl RequestHandler for Fake {
    fn answer(&self, request: Request, requester: &Requester) -> VerbResult<Answer> {
        let some = 1..=self.changes as u64;
        Ok(match request {
            Request::Checkpoint(options) => {
                assert_eq!(
                    (requester.by().uid, requester.by().pid),
                    (ckptfs_sys::ids().0, std::process::id())
                );
                Answer::of(CheckpointInfo {
                    note: options.note,
                    tags: options.tags,
                    ..info(7)
                })
            }
            Request::Status(_) => Answer::of(status(self.changes)),
            Request::Stats(_) => Answer::of(stats()),
            Request::Log(_) => Answer::of(some.rev().map(info).collect::<Vec<_>>()),
            Request::Show(show) => {
                let hint = Some("list them: ckptfs log".into());
                let message = format!("there is no checkpoint {}", show.state.0);
                return Err(VerbError {
                    code: Code::UnknownCheckpoint,
                    message,
                    hint,
                });
            }
            Request::Diff(_) => Answer::of(changes(self.changes)),
            Request::ByProcess(_) => Answer::of(by_process(self.changes)),
            Request::Restore(options) => Answer::of(restored(self.changes, options.dry_run)),
            Request::RestoreOnlyBy(options) => {
                let shared = vec![SharedPath {
                    path: TreePath(b"\xff".to_vec()),
                    by: vec![options.who],
                }];
                Answer::of(RestoredOnly {
                    restored: restored(self.changes, options.dry_run),
                    shared,
                })
            }
            Request::Verify(options) => Answer::of(Verified {
                run: options.run.unwrap_or(7),
                total: u64::from(options.deep),
                ..Verified::default()
            }),
            Request::Audit(_) => Answer::of(vec![event(); self.changes]),
            Request::Unmount(_) => Answer::of(()),
            Request::Delete(_) => panic!("a mistake of the engine"),
            other => {
                return Err(VerbError {
                    code: Code::Internal,
                    message: format!("{other:?}"),
                    hint: None,
                });
            }
        })
    }
}

fn by_process(count: usize) -> ByProcess {
    let changes = changes(count).into_iter().map(|change| ChangeBy {
        change,
        by: vec![0],
        others: true,
    });
    let process = ProcessInfo {
        pid: 7,
        name: "\u{1}sh".into(),
        ..ProcessInfo::default()
    };
    ByProcess {
        processes: vec![process],
        changes: changes.collect(),
    }
}

fn restored(count: usize, dry_run: bool) -> Restored {
    Restored {
        restored: CheckpointId(1),
        guard: None,
        changes: changes(count),
        unknown: vec![],
        mounted: vec![],
        split: vec![],
        dropped: vec![],
        dry_run,
        duration_us: 5,
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
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&store)
        .expect("mkdir");
    let path = store.join(SOCKET_NAME);
    let tree = ckptfs_sys::mount_source(dir.path());
    let left = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&left);
    let leave = move || {
        counter.fetch_add(1, Ordering::SeqCst);
    };
    serve(
        UnixListener::bind(&path).expect("bind"),
        Arc::new(Fake { changes }),
        tree,
        2,
        leave,
    )
    .expect("serve");
    Served { dir, path, left }
}

impl Served {
    fn client(&self) -> std::io::Result<Client> {
        Client::connect(std::fs::File::open(self.dir.path().join(STORE_NAME))?)
    }
}

#[test]
fn every_verb_arrives_and_its_answer_comes_back() {
    let served = served(3);
    let mut client = served.client().expect("connect");
    let options = CheckpointOptions {
        note: "n\u{0}ote".into(),
        tags: vec!["a".into(), "b".into()],
        sync: true,
        if_changed: true,
        quiesce_ms: Some(2000),
        ..CheckpointOptions::default()
    };
    let made = client.ask(options.clone()).expect("checkpoint");
    assert_eq!((made.note, made.tags), (options.note, options.tags));
    assert_eq!(client.ask(GetStatus).expect("status"), status(3));
    assert_eq!(client.ask(GetStats).expect("stats"), stats());
    assert_eq!(
        client
            .ask(ListCheckpoints)
            .expect("log")
            .iter()
            .map(|c| c.id.0)
            .collect::<Vec<_>>(),
        [3, 2, 1]
    );
    assert_eq!(
        client
            .ask(Compare {
                from: StateName("1".into()),
                to: None,
                sizes: false
            })
            .expect("diff"),
        changes(3)
    );
    assert_eq!(client.ask(ListAudit).expect("audit"), vec![event(); 3]);
    let verified = client
        .ask(VerifyOptions {
            state: None,
            deep: true,
            run: Some(9),
        })
        .expect("verify");
    assert_eq!((verified.run, verified.total), (9, 1));
    let restore = RestoreOptions {
        to: StateName("1".into()),
        paths: vec![TreePath(vec![0xfe])],
        dry_run: true,
        times: None,
    };
    assert!(client.ask(restore).expect("restore").dry_run);
    let error = client
        .ask(ShowCheckpoint {
            state: StateName("9".into()),
        })
        .expect_err("unknown");
    assert_eq!(
        (error.code, error.hint.as_deref()),
        (Code::UnknownCheckpoint, Some("list them: ckptfs log"))
    );
}

#[test]
fn a_daemon_is_found_by_its_directory_and_one_of_another_tree_does_nothing() {
    let served = served(0);
    let connected = |dir: &std::path::Path| {
        Client::of(&StoreDir::of(dir).expect("look").expect("a store")).expect("connect")
    };
    let mut client = connected(served.dir.path());
    assert!(client.ask(ListCheckpoints).expect("log").is_empty());
    assert!(
        client
            .again()
            .expect("again")
            .ask(ListCheckpoints)
            .expect("log")
            .is_empty()
    );
    // A user who may write to the directory above can exchange two trees.
    let elsewhere = tempfile::tempdir().expect("directory");
    let moved = elsewhere.path().join("moved");
    std::fs::rename(served.dir.path(), &moved).expect("rename");
    assert_eq!(
        connected(&moved)
            .ask(ListCheckpoints)
            .expect_err("another tree")
            .code,
        Code::WrongTree
    );
    std::fs::rename(&moved, served.dir.path()).expect("rename back");
}

#[test]
fn a_store_that_others_can_write_and_a_link_to_one_are_not_believed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let served = served(0);
    let store = served.dir.path().join(STORE_NAME);
    std::fs::write(store.join("format"), "x").expect("write");
    let mode = |mode| {
        std::fs::set_permissions(&store, std::fs::Permissions::from_mode(mode)).expect("chmod")
    };
    for wrong in [0o777, 0o770, 0o702] {
        mode(wrong);
        let seen = look(served.dir.path()).expect("look");
        assert!(matches!(seen, StoreLookup::Foreign(_)), "{wrong:o}");
    }
    mode(0o755);
    let seen = look(served.dir.path()).expect("look");
    assert!(matches!(seen, StoreLookup::Store(_)));
    let other = tempfile::tempdir().expect("directory");
    symlink(&store, other.path().join(STORE_NAME)).expect("symlink");
    let seen = look(other.path()).expect("look");
    assert!(matches!(seen, StoreLookup::Nothing));
    symlink("nowhere", other.path().join("sub")).expect("symlink");
    let seen = look(&other.path().join("sub")).expect("look");
    assert!(matches!(seen, StoreLookup::Nothing));
}

#[test]
fn a_panic_in_a_verb_is_an_error_and_the_connection_goes_on() {
    let served = served(0);
    let mut client = served.client().expect("connect");
    assert_eq!(
        client
            .ask(Delete {
                state: StateName("1".into()),
                now: false
            })
            .expect_err("panics")
            .code,
        Code::Internal
    );
    assert!(client.ask(ListCheckpoints).expect("log").is_empty());
}

#[test]
fn leave_is_called_after_the_answer_and_only_if_asked() {
    let served = served(0);
    let mut client = served.client().expect("connect");
    client
        .ask(Unmount {
            lazy: true,
            leave: false,
            keep: None,
        })
        .expect("unmount");
    assert_eq!(served.left.load(Ordering::SeqCst), 0);
    client
        .ask(Unmount {
            lazy: true,
            leave: true,
            keep: Some(SavePolicy::None),
        })
        .expect("unmount");
    client
        .ask(ListCheckpoints)
        .expect("the next request on the connection is served after `leave`");
    assert_eq!(served.left.load(Ordering::SeqCst), 1);
    assert!(!client.wait_ended(Duration::from_millis(10)));
}

#[test]
fn a_long_answer_comes_whole_and_in_order() {
    let served = served(60_000);
    let mut client = served.client().expect("connect");
    assert_eq!(client.ask(GetStatus).expect("status"), status(60_000));
    let by = client.ask(CompareByProcess::default()).expect("by process");
    assert!(
        by.processes.len() == 1
            && by
                .changes
                .iter()
                .map(|one| &one.change)
                .eq(&changes(60_000))
    );
    let only = OnlyBy {
        who: "a\nb".into(),
        ..OnlyBy::default()
    };
    let only = client.ask(only).expect("only by");
    assert!(only.restored.changes == changes(60_000) && only.shared[0].by == ["a\nb"]);
    let log = client.ask(ListCheckpoints).expect("log");
    assert!(log.len() == 60_000 && log.windows(2).all(|pair| pair[0].id > pair[1].id));
}

/// Sends a raw line and returns the line received.
fn raw(path: &std::path::Path, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).expect("connect");
    stream.write_all(line).expect("send");
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .expect("answer");
    answer
}

#[test]
fn another_version_and_nonsense_get_a_clear_answer() {
    let served = served(0);
    let other = raw(
        &served.path,
        b"{\"version\":3,\"request\":{\"teleport\":{}}}\n",
    );
    assert!(
        other.contains("protocol-version") && other.contains("restart the daemon"),
        "{other}"
    );
    let other = raw(&served.path, b"{\"version\":1,\"request\":\"log\"}\n");
    assert!(other.contains("protocol-version"), "{other}");
    for nonsense in [
        &b"\n"[..],
        b"{}\n",
        b"\xff\xfe\n",
        b"{\"version\":2,\"request\":\"fly\"}\n",
    ] {
        let answer = raw(&served.path, nonsense);
        assert!(
            answer.contains("\"error\"") && answer.contains("\"code\":\"protocol\""),
            "{answer}"
        );
    }
    assert_eq!(
        raw(
            &served.path,
            b"{\"version\":2,\"request\":{\"log\":null}}\n"
        ),
        "{\"version\":2,\"result\":{\"ok\":[]}}\n"
    );
}

#[test]
fn the_requests_that_the_documentation_shows_are_understood() {
    let page = include_str!("../../docs/cli.md");
    let shown: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("> "))
        .collect();
    assert!(
        shown.len() >= 2
            && shown
                .iter()
                .all(|line| ckptfs_api::protocol::RequestFrame::decode(line.as_bytes()).is_ok()),
        "{shown:?}"
    );
    for without in ["status", "stats", "log", "audit", "cancel"] {
        let request = format!("{{\"{without}\":null}}");
        let call = format!("{{\"version\":{PROTOCOL},\"request\":{request}}}");
        assert!(
            page.contains(&format!("`{request}`"))
                && ckptfs_api::protocol::RequestFrame::decode(call.as_bytes()).is_ok(),
            "{request}"
        );
    }
}

#[test]
fn a_reply_of_another_version_asks_for_a_restart() {
    let code = |frame: &[u8]| decode_answer::<Vec<u8>>(frame).expect_err("no answer").code;
    assert_eq!(
        code(b"{\"version\":9,\"result\":{\"ok\":{\"teleported\":1}}}"),
        Code::ProtocolVersion
    );
    assert_eq!(
        code(b"{\"version\":2,\"result\":{\"ok\":{\"x\":1}}}"),
        Code::Protocol
    );
    assert_eq!(
        code(b"{\"version\":9,\"result\":\"done\"}"),
        Code::ProtocolVersion
    );
    assert_eq!(
        code(b"{\"version\":9,\"result\":{\"error\":{\"code\":\"said\",\"message\":\"\"}}}"),
        Code::Unknown("said".into())
    );
}

#[test]
fn a_frame_over_the_limit_ends_the_connection_only() {
    let served = served(0);
    let mut stream = UnixStream::connect(&served.path).expect("connect");
    let block = vec![b' '; 1 << 20];
    let sent = (0..17).try_for_each(|_| stream.write_all(&block));
    let mut answer = String::new();
    let read = BufReader::new(&stream).read_line(&mut answer);
    assert!(
        sent.is_err() || !matches!(read, Ok(length) if length > 0),
        "{answer}"
    );
    assert!(
        served
            .client()
            .expect("connect")
            .ask(ListCheckpoints)
            .expect("log")
            .is_empty()
    );
}

#[test]
fn one_connection_too_many_is_told_so() {
    let served = served(0);
    let mut clients: Vec<Client> = (0..CONNECTIONS_MAX)
        .map(|_| served.client().expect("connect"))
        .collect();
    for client in &mut clients {
        client.ask(ListCheckpoints).expect("within the limit");
    }
    let error = served
        .client()
        .expect("connect")
        .ask(ListCheckpoints)
        .expect_err("over the limit");
    assert_eq!(error.code, Code::TooManyConnections);
    drop(clients.pop());
    let again = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        served
            .client()
            .is_ok_and(|mut client| client.ask(ListCheckpoints).is_ok())
    });
    assert!(again, "a place that was freed can be taken");
}
