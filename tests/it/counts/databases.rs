//! The file accesses of databases, call by call: identical on any machine, without a database
//! engine.
//!
//! The calls are those that strace shows of PostgreSQL 15 (`pgbench`, a warm buffer pool), SQLite
//! 3.40 and Redis 7.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Queries or transactions.
pub const QUERIES: u64 = 1000;
/// Block size of all databases here.
const BLOCK: usize = 8192;
/// Pause after open, after which an eighth of it suffices for everything counted.
const REST: Duration = Duration::from_secs(4);

fn end(mut file: &File) -> u64 {
    file.seek(SeekFrom::End(0))
        .expect("the end of a file is known")
}

/// Returns a new file of a hundred blocks.
fn filled(path: &Path) -> File {
    std::fs::write(path, vec![0; 100 * BLOCK]).expect("a file");
    let mut how = OpenOptions::new();
    how.read(true).write(true).open(path).expect("it exists")
}

/// A table, its index and its log, open for reading and writing for some time.
pub struct Postgres {
    heap: File,
    index: File,
    log: File,
}

impl Postgres {
    /// Opens the files as a backend connected some time ago.
    pub fn connected(dir: &Path) -> Postgres {
        let [heap, index, log] = ["heap", "index", "log"].map(|name| filled(&dir.join(name)));
        std::thread::sleep(REST);
        let connected = Postgres { heap, index, log };
        connected.plan();
        connected
    }

    fn plan(&self) {
        assert!(end(&self.index) > 0 && end(&self.heap) > 0);
    }

    /// Reads blocks; the planner queries the sizes of table and index.
    pub fn selects(&self) {
        let mut block = [0; BLOCK];
        for query in 0..QUERIES {
            self.plan();
            self.heap
                .read_exact_at(&mut block, query % 100 * BLOCK as u64)
                .expect("a block");
        }
    }

    /// Writes and syncs the log; every tenth time the table grows by a block.
    pub fn transactions(&self) {
        for query in 0..QUERIES {
            self.plan();
            if query % 10 == 0 {
                let size = end(&self.heap);
                self.heap.write_all_at(&[1; BLOCK], size).expect("a block");
                assert_eq!(end(&self.heap), size + BLOCK as u64);
            }
            self.log
                .write_all_at(&[1; BLOCK], query % 100 * BLOCK as u64)
                .and_then(|()| self.log.sync_data())
                .expect("the log is written");
        }
    }
}

/// A database without a server.
pub struct Sqlite {
    path: PathBuf,
    database: File,
    wal: File,
}

impl Sqlite {
    /// Opens the files some time ago, for both journal modes.
    pub fn open(dir: &Path) -> Sqlite {
        let [database, wal] = ["db", "db-wal"].map(|name| filled(&dir.join(name)));
        std::thread::sleep(REST);
        Sqlite {
            path: dir.join("db"),
            database,
            wal,
        }
    }

    fn begin(&self) {
        // Checks for a hot journal, the change counter, and the number of pages.
        assert!(!self.path.with_extension("journal").exists());
        self.database
            .read_exact_at(&mut [0; 16], 24)
            .expect("the counter of changes");
        assert!(self.database.metadata().expect("attributes").len() > 0);
    }

    /// Reads without WAL.
    pub fn selects(&self) {
        (0..QUERIES).for_each(|_| self.begin());
    }

    /// Writes with WAL.
    pub fn inserts_with_wal(&self) {
        for query in 0..QUERIES {
            self.wal
                .write_all_at(&[1; 24], query % 100 * BLOCK as u64)
                .expect("the head of a frame");
            self.wal
                .write_all_at(&[1; BLOCK / 2], query % 100 * BLOCK as u64 + 24)
                .expect("a frame");
            self.wal.sync_data().expect("a sync");
        }
    }

    /// Writes with a rollback journal, which is removed afterwards.
    pub fn inserts_with_journal(&self) {
        let journal = self.path.with_extension("journal");
        for query in 0..QUERIES {
            self.begin();
            let mut log = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&journal)
                .expect("a journal");
            log.write_all(&[1; BLOCK])
                .and_then(|()| log.sync_data())
                .expect("it is written");
            assert!(self.database.metadata().expect("attributes").len() > 0);
            self.database
                .write_all_at(&[1; BLOCK], query % 100 * BLOCK as u64)
                .and_then(|()| self.database.sync_data())
                .expect("a page");
            drop(log);
            std::fs::remove_file(&journal).expect("the journal is removed");
        }
    }
}

/// Appends to a log and syncs it each time (Redis with `appendfsync always`).
pub fn redis(log: &mut File) {
    for _ in 0..QUERIES {
        log.write_all(b"*3\r\n$3\r\nSET\r\n")
            .and_then(|()| log.sync_data())
            .expect("the log is written");
    }
}
