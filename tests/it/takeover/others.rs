//! Watches, locks, git and SQLite over takeovers; and a mount whose workers all die at once.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use crate::common::command::sh;
use crate::common::wait::wait_until;
use crate::common::{Variant, for_each_variant, process};

for_each_variant! { reflink => watches_and_locks_stay, git_and_sqlite_go_on }
for_each_variant! { xfs => a_mount_without_a_worker_that_lives_is_given_up }

/// The kernel keeps watches and locks as long as its inodes are unchanged.
fn watches_and_locks_stay(v: Variant) {
    let mut rig = v.start();
    let dir = rig.path().join("d");
    fs::create_dir(&dir).unwrap();
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watcher, &dir, WatchFlags::CREATE | WatchFlags::DELETE).unwrap();
    let held = File::create(dir.join("lock")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let posix = File::create(dir.join("posix")).unwrap();
    fcntl_lock(&posix, FlockOperation::LockExclusive).unwrap();
    rig.mount.replace_worker();
    fs::write(dir.join("new"), "").unwrap();
    fs::remove_file(dir.join("new")).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watcher, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = events.next() {
        seen.push((
            event.events() & (ReadFlags::CREATE | ReadFlags::DELETE),
            event.file_name().unwrap().to_str().unwrap().to_owned(),
        ));
    }
    let expected = [
        ("lock", ReadFlags::CREATE),
        ("posix", ReadFlags::CREATE),
        ("new", ReadFlags::CREATE),
        ("new", ReadFlags::DELETE),
    ];
    assert_eq!(seen, expected.map(|(name, event)| (event, name.to_owned())));
    let other = File::open(dir.join("lock")).unwrap();
    assert!(
        flock(&other, FlockOperation::NonBlockingLockExclusive).is_err(),
        "the lock is held"
    );
    let script =
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
    let taken = Command::new("python3")
        .args(["-c", script])
        .arg(dir.join("posix"))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!taken.success(), "the other lock is also held");
    drop(held);
    // A program started by another test inherits the descriptor, and therefore the lock, until its
    // exec.
    wait_until("the lock is free", || {
        flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

const GIT: &str = r#"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null HOME=/nonexistent
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.invalid GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.invalid
git init -q -b main work; cd work; i=0
while [ $i -lt 4 ] || [ ! -e ../stop ]; do
    i=$((i + 1)); if [ $i = 2 ]; then touch ../going; fi; mkdir -p d$((i % 5)); echo $i > d$((i % 5))/f$i; echo $i >> log
    git add -A; git commit -q -m $i
    if [ $((i % 4)) = 0 ]; then git checkout -q -b b$i; git mv d$((i % 5))/f$i moved$i; git commit -q -m moved; git checkout -q main; git merge -q b$i; fi
done
git fsck --strict --no-progress; test -z "$(git status --porcelain)"; test "$(wc -l < log)" = $i; echo $i
"#;

const SQLITE: &str = r#"
import sqlite3, os, sys
db = sqlite3.connect("db", isolation_level=None, timeout=60)
db.execute("PRAGMA journal_mode=" + sys.argv[1])
db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, note TEXT)")
i = 0
while i < 20 or not os.path.exists("stop"):
    i += 1
    if i == 10:
        open("going", "w").close()
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES(?, ?)", (i, "x" * (i % 500)))
    if i % 10 == 0:
        db.execute("DELETE FROM t WHERE id = ?", (i - 5,))
    db.execute("COMMIT")
assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
assert db.execute("SELECT count(*), max(id) FROM t").fetchone() == (i - i // 10, i), i
print(i)
"#;

/// Real programs, which stop at the first error.
fn git_and_sqlite_go_on(v: Variant) {
    let mut rig = v.start();
    let root = rig.path().to_owned();
    for name in ["git", "wal", "delete"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    let python = |mode: &str| {
        let (dir, mode) = (root.join(mode), mode.to_owned());
        thread::spawn(move || sh(&dir, &format!("python3 - {mode} <<'END'\n{SQLITE}\nEND")))
    };
    let git = root.join("git");
    let programs = [
        thread::spawn(move || sh(&git, GIT)),
        python("wal"),
        python("delete"),
    ];
    for name in ["git", "wal", "delete"] {
        wait_until("every program is at work", || {
            root.join(name).join("going").exists()
        });
    }
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(400));
        rig.mount.replace_worker();
        rig.mount.checkpoint();
    }
    for name in ["git", "wal", "delete"] {
        fs::write(root.join(name).join("stop"), "").unwrap();
    }
    let rounds = programs.map(|program| {
        program
            .join()
            .unwrap_or_else(|_| panic!("a program failed"))
    });
    println!("{v:?}: rounds {rounds:?}");
}

/// If all workers die at once, requests fail after some time and do not wait forever.
fn a_mount_without_a_worker_that_lives_is_given_up(v: Variant) {
    let mut rig = v.start();
    let path = rig.path().join("f");
    fs::write(&path, "kept").unwrap();
    let holder = rig.mount.status_json()["daemon"]["holder"]
        .as_u64()
        .unwrap() as u32;
    let start = process::start_of(holder).unwrap();
    let waits = {
        let path = path.clone();
        rig.mount.kill_worker();
        thread::spawn(move || fs::read(path.parent().unwrap().join("asked")))
    };
    let began = Instant::now();
    while process::start_of(holder) == Some(start) {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "the holder gives up"
        );
        children(holder).into_iter().for_each(process::kill);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(
        waits.join().unwrap().is_err(),
        "the waiting process gets an error"
    );
    assert!(fs::write(&path, "lost").is_err());
    rig.mount.kill();
    rig.mount.remount();
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    let log = fs::read_to_string(rig.path().join(".ckptfs/daemon.log")).unwrap();
    assert!(log.contains("no other takes over"), "{log}");
}

fn children(of: u32) -> Vec<u32> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    read(Path::new(&format!("/proc/{of}/task/{of}/children")))
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
