//! SQLite under write load: each view's database is intact, and has every transaction acknowledged
//! before the checkpoint.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::apps::support::{missing, output};
use crate::common::wait::{wait_longer, wait_until};
use crate::common::{Rig, Variant, for_each_variant, skip};

/// A database and its journals.
const FILES: [&str; 3] = ["db", "db-wal", "db-journal"];

/// Checkpoints under load for each journal mode.
const CHECKPOINTS: usize = 12;
/// The minimum of atomic checkpoints; more are made until it is reached.
const ATOMIC_MIN: usize = 6;
/// The maximum of checkpoints.
const CHECKPOINTS_MAX: usize = 60;

/// Transfers amounts between accounts, logs each transfer, and prints the number of each committed
/// transaction. Ends at the end of its input.
const WRITER: &str = r#"
import sqlite3, sys, threading, time, random
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
db.execute("PRAGMA journal_mode=" + sys.argv[2])
db.execute("PRAGMA synchronous=NORMAL")
db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, amount INTEGER, note TEXT)")
db.execute("CREATE TABLE log(id INTEGER PRIMARY KEY, at REAL, note TEXT)")
db.execute("CREATE INDEX log_note ON log(note)")
db.execute("BEGIN")
db.executemany("INSERT INTO account VALUES(?, 1000, ?)", [(i, "x" * 200) for i in range(200)])
db.execute("COMMIT")
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
random.seed(1)
i = 0
while not stop.is_set():
    i += 1
    a, b, n = random.randrange(200), random.randrange(200), random.randrange(100)
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE account SET amount = amount - ? WHERE id = ?", (n, a))
    db.execute("INSERT INTO log VALUES(?, ?, ?)", (i, time.time(), "%064x" % random.getrandbits(256)))
    db.execute("UPDATE account SET amount = amount + ? WHERE id = ?", (n, b))
    db.execute("COMMIT")
    print(i, flush=True)
    time.sleep(0.002)
db.close()
"#;

/// Prints the result of integrity_check, the sum of all accounts, and the count and the highest
/// number of the transactions.
const READER: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("PRAGMA integrity_check").fetchone()[0], end=" ")
print(db.execute("SELECT sum(amount) FROM account").fetchone()[0], *db.execute("SELECT count(*), max(id) FROM log").fetchone())
"#;

struct Writer {
    child: Child,
    committed: Arc<AtomicU64>,
    reader: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(database: &Path, mode: &str) -> Writer {
        let mut command = Command::new("python3");
        command
            .args(["-c", WRITER])
            .arg(database)
            .arg(mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let committed = Arc::new(AtomicU64::new(0));
        let (lines, counter) = (
            BufReader::new(child.stdout.take().expect("piped")).lines(),
            Arc::clone(&committed),
        );
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                counter.store(line.parse().expect("a number"), Ordering::SeqCst);
            }
        });
        Writer {
            child,
            committed,
            reader: Some(reader),
        }
    }

    fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    fn stop(mut self) {
        drop(self.child.stdin.take());
        let mut status = None;
        wait_longer("the writer has ended", 120, || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        assert!(
            status.is_some_and(|status| status.success()),
            "the writer failed: {status:?}"
        );
        self.reader
            .take()
            .map(JoinHandle::join)
            .transpose()
            .expect("the reader reads")
            .expect("it was started");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.reader.is_some() {
            let _ = self.child.kill();
        }
    }
}

/// Copies a database with its journals out of a tree, and returns the output of the reader on the
/// copy, and the last transaction.
fn examine(rig: &Rig, tree: &Path, name: &str) -> (String, u64) {
    let place = rig.image.dir("examined").join(name);
    fs::create_dir(&place).unwrap();
    for file in FILES {
        match fs::copy(tree.join(file), place.join(file)) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("{file} of {}: {error}", tree.display()),
        }
    }
    let said = output(&place, "python3", &["-c", READER, "db"]);
    fs::remove_dir_all(&place).unwrap();
    let last = said
        .trim()
        .rsplit(' ')
        .next()
        .and_then(|last| last.parse().ok())
        .unwrap_or(0);
    (said.trim().to_owned(), last)
}

/// Returns the hashes of the database and its journals, `None` for missing ones.
fn bytes(tree: &Path) -> Vec<Option<blake3::Hash>> {
    FILES
        .iter()
        .map(|name| {
            fs::read(tree.join(name))
                .ok()
                .map(|bytes| blake3::hash(&bytes))
        })
        .collect()
}

fn under_load(v: Variant, mode: &str) {
    if let Some(reason) = missing(&["python3"]) {
        return skip(&reason);
    }
    let rig = v.start();
    let writer = Writer::start(&rig.path().join("db"), mode);
    wait_until("ten transactions are committed", || {
        writer.committed() >= 10
    });
    let (mut made, mut atomic) = (Vec::new(), 0);
    while made.len() < CHECKPOINTS || (atomic < ATOMIC_MIN && made.len() < CHECKPOINTS_MAX) {
        let before = writer.committed();
        let info = rig.mount.checkpoint_json(&[]);
        let id = info["id"].as_u64().expect("an id");
        let is_atomic = info["atomic"].as_bool().expect("atomic is a bool");
        let (said, last) = examine(&rig, &rig.view(id), &id.to_string());
        if is_atomic {
            assert!(
                said.starts_with(&format!("ok 200000 {last} {last}")),
                "checkpoint {id}: {said}"
            );
            assert!(
                last >= before,
                "checkpoint {id} ends with transaction {last}, but {before} was committed before the checkpoint"
            );
            atomic += 1;
        }
        made.push((id, said, bytes(&rig.view(id))));
        let next = writer.committed() + 1;
        wait_until("the writer continues", || writer.committed() >= next);
    }
    println!("{v:?} {mode}: {} checkpoints, {atomic} atomic", made.len());
    assert!(
        atomic >= ATOMIC_MIN,
        "only {atomic} of {} checkpoints were atomic",
        made.len()
    );
    writer.stop();
    for (id, _, then) in &made {
        assert_eq!(
            bytes(&rig.view(*id)),
            *then,
            "the view of checkpoint {id} changed"
        );
    }
    let (middle, said, _) = &made[made.len() / 2];
    rig.mount.restore(*middle);
    assert_eq!(examine(&rig, rig.path(), "restored").0, *said);
}

fn sqlite_delete(v: Variant) {
    under_load(v, "DELETE");
}

fn sqlite_wal(v: Variant) {
    under_load(v, "WAL");
}

for_each_variant! { reflink => sqlite_delete, sqlite_wal }
