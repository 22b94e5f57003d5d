//! A workload that changes a tree while checkpoints of it are made, and the expected state of both.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use super::ops::random_op;
use crate::common::Mount;
use crate::common::random::Random;
use crate::common::tree::{Tree, TreeOpts, tree, try_tree_without};

/// Threads that perform random operations, each in its own directory.
pub const WORKERS: u64 = 4;

/// An acknowledged checkpoint.
#[derive(Clone, Debug)]
pub struct AckedCheckpoint {
    pub id: u64,
    /// Made with `--sync`.
    pub synced: bool,
    /// Time of the acknowledgement.
    pub made: Instant,
    /// The expected content, once it was read.
    pub tree: Option<Tree>,
    /// Deletion was requested.
    pub deleted: bool,
}

/// Age from which a checkpoint is durable without `--sync`.
const ON_DISK_AFTER: Duration = Duration::from_secs(10);

/// The expected state.
#[derive(Default)]
pub struct CrashLoad {
    /// Held for reading by every change.
    pub gate: RwLock<()>,
    /// Held for writing while nothing is mounted.
    pub served: RwLock<()>,
    stop: AtomicBool,
    known: Mutex<Vec<AckedCheckpoint>>,
    /// Last number synced by the application: in `log`, in `state`.
    synced: [AtomicU64; 2],
    /// Problems found in the live mount.
    wrong: Mutex<Vec<String>>,
}

/// The durability promises in force at one moment.
#[derive(Clone, Debug)]
pub struct DurablePromises {
    /// Checkpoints made with `--sync` or old enough, without a requested deletion.
    pub checkpoints: Vec<u64>,
    /// Last number synced by the application: in `log`, in `state`.
    pub synced: [u64; 2],
}

impl CrashLoad {
    /// Returns the promises in force now.
    pub fn promised(&self) -> DurablePromises {
        let synced = [0, 1].map(|place| self.synced[place].load(Ordering::SeqCst));
        let known = self.known.lock().unwrap();
        DurablePromises {
            checkpoints: known
                .iter()
                .filter(|known| known.synced || known.made.elapsed() > ON_DISK_AFTER)
                .filter(|known| !known.deleted)
                .map(|known| known.id)
                .collect(),
            synced,
        }
    }

    /// Returns all acknowledged checkpoints.
    pub fn known(&self) -> Vec<AckedCheckpoint> {
        self.known.lock().unwrap().clone()
    }

    /// Makes all threads end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Records a problem of the live mount.
    pub fn note_wrong(&self, problem: String) {
        self.wrong.lock().unwrap().push(problem);
    }

    /// Returns the problems of the live mount.
    pub fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }

    /// Fills a directory for the workers, before it is mounted.
    pub fn prepare(root: &Path, workers: u64) {
        for worker in 0..workers {
            let dir = root.join(format!("w{worker}"));
            for name in ["", "a", "b", "a/x", "b/y"] {
                fs::create_dir(dir.join(name)).unwrap();
                for old in 0..2 {
                    fs::write(
                        dir.join(name).join(format!("old{old}")),
                        vec![b'0' + old; 3000 * (usize::from(old) * 9 + 1)],
                    )
                    .unwrap();
                }
            }
        }
        fs::create_dir(root.join("app")).unwrap();
        fs::write(root.join("app/log"), [0; 4096]).unwrap();
        fs::write(root.join("app/state"), "0").unwrap();
    }

    /// Works on a mount until stopped or until the mount is gone.
    pub fn run(&self, mount: &Mount, seed: u64, duration: Duration) {
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                scope.spawn(move || {
                    self.work(
                        &mount.path().join(format!("w{worker}")),
                        Random::new(seed + worker),
                    )
                });
            }
            scope.spawn(|| self.application(&mount.path().join("app"), 7));
            self.checkpoints(mount, Random::new(seed + 100), duration);
            self.stop();
        });
    }

    pub fn work(&self, root: &Path, mut random: Random) {
        while !self.stopped() {
            {
                let _open = self.gate.read().unwrap();
                for _ in 0..1 + random.below(8) {
                    // ENOENT and EEXIST are part of the workload.
                    let _ = random_op(&mut random).carry_out(root);
                }
            }
            thread::sleep(Duration::from_micros(random.below(3000)));
        }
    }

    /// Runs an application that syncs each write: one file in place, one by replacement. It pauses
    /// for less than `pause_ms` milliseconds after each.
    pub fn application(&self, dir: &Path, pause_ms: u64) {
        for number in 1.. {
            let _open = self.gate.read().unwrap();
            if self.stopped() {
                return;
            }
            let place = (number % 3 == 0) as usize;
            let done = if place == 0 {
                append_synced(dir, number)
            } else {
                replace_synced(dir, number)
            };
            match done {
                Ok(()) => self.synced[place].store(number, Ordering::SeqCst),
                Err(error) => panic!("the application: {error}"),
            }
            drop(_open);
            thread::sleep(Duration::from_millis(number * 131 % pause_ms));
        }
    }

    fn checkpoints(&self, mount: &Mount, mut random: Random, duration: Duration) {
        let started = Instant::now();
        // Never deleted, so that at least one checkpoint is promised.
        self.quiet_checkpoint(mount);
        while started.elapsed() < duration && !self.stopped() {
            match random.below(10) {
                0..=2 => self.quiet_checkpoint(mount),
                3 => self.checkpoint(mount, true),
                4..=7 => self.checkpoint(mount, false),
                8 => self.delete_one(mount, &mut random),
                _ => self.restore_part(mount, &mut random),
            }
            thread::sleep(Duration::from_millis(random.below(120)));
        }
    }

    /// Makes a checkpoint while all changes are blocked; its expected content is the tree itself.
    pub fn quiet_checkpoint(&self, mount: &Mount) {
        let _closed = self.gate.write().unwrap();
        self.closed_checkpoint(mount);
    }

    /// As [`CrashLoad::quiet_checkpoint`], for callers that hold the gate. Returns the id.
    pub fn closed_checkpoint(&self, mount: &Mount) -> u64 {
        let id = self.made(mount, true);
        self.note(id, tree(mount.path()));
        id
    }

    /// Makes a checkpoint during the workload. The content that its view shows now must not change.
    pub fn checkpoint(&self, mount: &Mount, sync: bool) {
        let id = self.made(mount, sync);
        self.note_view(mount, id);
    }

    /// Records the content of a view, which must be readable.
    fn note_view(&self, mount: &Mount, id: u64) {
        match try_tree_without(&mount.view(id), &TreeOpts::default().ignore) {
            Ok(tree) => self.note(id, tree),
            Err(problem) => self.note_wrong(format!("checkpoint {id}, just made: {problem}")),
        }
    }

    fn made(&self, mount: &Mount, synced: bool) -> u64 {
        let arguments: &[&str] = if synced {
            &["checkpoint", "--sync"]
        } else {
            &["checkpoint"]
        };
        let id = mount
            .ok(arguments)
            .trim()
            .parse()
            .expect("checkpoint prints the id");
        self.put(id, synced);
        id
    }

    /// Records an acknowledged checkpoint.
    pub fn put(&self, id: u64, synced: bool) {
        self.known.lock().unwrap().push(AckedCheckpoint {
            id,
            synced,
            made: Instant::now(),
            tree: None,
            deleted: false,
        });
    }

    /// Marks the newest or a random checkpoint as about to be deleted. Returns `None` if fewer than
    /// three are left.
    pub fn doom(&self, random: &mut Random, newest: bool) -> Option<u64> {
        let mut known = self.known.lock().unwrap();
        // The first is never deleted, so that at least one checkpoint is promised.
        let alive: Vec<usize> = (1..known.len())
            .filter(|index| !known[*index].deleted)
            .collect();
        if alive.len() < 3 {
            return None;
        }
        let index = if newest {
            *alive.last()?
        } else {
            *random.pick(&alive)
        };
        known[index].deleted = true;
        Some(known[index].id)
    }

    /// Marks all checkpoints as possibly deleted. Returns those that were not marked before.
    pub fn doom_all(&self) -> Vec<u64> {
        let mut known = self.known.lock().unwrap();
        let alive = known.iter_mut().filter(|known| !known.deleted);
        alive
            .map(|known| {
                known.deleted = true;
                known.id
            })
            .collect()
    }

    /// Marks checkpoints as not deleted.
    pub fn spare<'a>(&self, ids: impl Iterator<Item = &'a u64>) {
        let mut known = self.known.lock().unwrap();
        for id in ids {
            if let Some(known) = known.iter_mut().find(|known| known.id == *id) {
                known.deleted = false;
            }
        }
    }

    /// Returns the number of checkpoints that are not deleted.
    pub fn alive(&self) -> usize {
        let known = self.known.lock().unwrap();
        known.iter().filter(|known| !known.deleted).count()
    }

    /// Returns the newest acknowledged checkpoint.
    pub fn last(&self) -> Option<u64> {
        self.known.lock().unwrap().last().map(|known| known.id)
    }

    fn note(&self, id: u64, tree: Tree) {
        let mut known = self.known.lock().unwrap();
        known
            .iter_mut()
            .find(|known| known.id == id)
            .expect("it was created")
            .tree = Some(tree);
    }

    fn delete_one(&self, mount: &Mount, random: &mut Random) {
        let Some(id) = self.doom(random, false) else {
            return;
        };
        mount.ok(&["delete", "--yes", &id.to_string()]);
        // Frees the data that only this checkpoint needs, also in index and journal.
        if random.below(2) == 0 {
            mount.ok(&["gc", "--yes"]);
        }
    }

    /// Restores one worker's directory. The application's files must not be restored.
    pub fn restore_part(&self, mount: &Mount, random: &mut Random) {
        let Some(id) = self
            .known()
            .iter()
            .rev()
            .find(|known| !known.deleted)
            .map(|known| known.id)
        else {
            return;
        };
        let _closed = self.gate.write().unwrap();
        let part = format!("w{}", random.below(WORKERS));
        let restored = mount.json(&["restore", &id.to_string(), &part]);
        let Some(guard) = restored["guard"].as_u64() else {
            return assert_eq!(
                restored["changes"],
                serde_json::json!([]),
                "only a restore without changes has no guard"
            );
        };
        self.put(guard, false);
        self.note_view(mount, guard);
    }
}

fn append_synced(dir: &Path, number: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(dir.join("log"))?;
    file.write_all_at(&number.to_le_bytes(), number % 512 * 8)?;
    file.sync_all()
}

fn replace_synced(dir: &Path, number: u64) -> io::Result<()> {
    fs::write(dir.join("state.new"), number.to_string())?;
    File::open(dir.join("state.new"))?.sync_all()?;
    fs::rename(dir.join("state.new"), dir.join("state"))?;
    File::open(dir)?.sync_all()
}

/// Returns the last numbers in the application's files.
pub fn found_synced(dir: &Path) -> [u64; 2] {
    let log = fs::read(dir.join("log")).unwrap_or_default();
    let last = log
        .chunks_exact(8)
        .map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")))
        .max();
    let state = fs::read_to_string(dir.join("state")).unwrap_or_default();
    // Empty until the first sync.
    [last.unwrap_or(0), state.trim().parse().unwrap_or(0)]
}
