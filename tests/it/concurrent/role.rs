//! The processes of a run: this binary, executed again with orders.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::common::Mount;
use crate::concurrent::{dump, walk, worker};

/// Processes that change the tree.
pub const WORKERS: usize = 16;
/// Prefixes of checkpoint names: permanent ones, and temporary ones.
pub const KEPT: &str = "kept-";
const GOING: &str = "going-";
/// One in this number of checkpoints is permanent, and the maximum of temporary ones.
const KEPT_EVERY: u64 = 3;
const GOING_MAX: usize = 4;
/// The pause between two checkpoints.
const PAUSE: Duration = Duration::from_millis(5);
/// Time limit for pending operations at the end of the run.
const GRACE: Duration = Duration::from_secs(120);

const VARIABLE: &str = "CKPTFS_CREW_ORDERS";

/// The task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Changes the tree.
    Worker,
    /// Makes and deletes checkpoints.
    Checkpoints,
    /// Walks their views.
    Walker,
}

/// The orders of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessTask {
    pub role: Role,
    pub tree: PathBuf,
    /// The directory for its results.
    pub notes: PathBuf,
    pub index: usize,
    pub seed: u64,
    pub seconds: u64,
}

impl ProcessTask {
    /// Returns the orders of this process, if any.
    pub fn given() -> Option<ProcessTask> {
        let text = std::env::var(VARIABLE).ok()?;
        Some(serde_json::from_str(&text).expect("the orders are valid"))
    }

    /// Returns the duration of the run.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn name(&self) -> String {
        match self.role {
            Role::Worker => worker::name(self.index),
            Role::Checkpoints => "checkpoints".to_owned(),
            Role::Walker => "walker".to_owned(),
        }
    }
}

/// Executes the orders and writes the result.
pub fn run(orders: &ProcessTask) {
    match orders.role {
        Role::Worker => write_note(orders, &worker::work(orders)),
        Role::Checkpoints => checkpoints(orders),
        Role::Walker => write_note(orders, &walk_views(orders)),
    }
}

fn write_note(orders: &ProcessTask, note: &impl Serialize) {
    let text = serde_json::to_string(note).expect("notes can be serialized");
    fs::write(orders.notes.join(format!("{}.json", orders.name())), text)
        .expect("the notes are outside the mount");
}

/// Reads the result of a process.
pub fn read_note<T: DeserializeOwned>(notes: &Path, name: &str) -> T {
    let text = fs::read_to_string(notes.join(format!("{name}.json")))
        .unwrap_or_else(|error| panic!("{name} left no notes: {error}"));
    serde_json::from_str(&text).expect("notes can be serialized")
}

fn checkpoints(orders: &ProcessTask) {
    let (started, dir) = (Instant::now(), orders.tree.join(".snapshots"));
    let mut going: Vec<PathBuf> = Vec::new();
    for number in 0.. {
        let kept = number % KEPT_EVERY == 0;
        let path = dir.join(format!("{}{number:06}", if kept { KEPT } else { GOING }));
        fs::create_dir(&path)
            .unwrap_or_else(|error| panic!("checkpoint {}: {error}", path.display()));
        if !kept {
            going.push(path);
        }
        if going.len() > GOING_MAX {
            let path = going.remove(0);
            fs::remove_dir(&path)
                .unwrap_or_else(|error| panic!("deleting {}: {error}", path.display()));
        }
        if started.elapsed() > orders.limit() {
            return write_note(orders, &number);
        }
        thread::sleep(PAUSE);
    }
}

/// Walks the newest view and a previously walked one in turn; returns the hash of each.
fn walk_views(orders: &ProcessTask) -> BTreeMap<String, String> {
    let (started, dir) = (Instant::now(), orders.tree.join(".snapshots"));
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut turn = 0;
    while started.elapsed() < orders.limit() {
        let mut names =
            walk::names(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        names.retain(|name| name.starts_with(KEPT));
        names.sort();
        turn += 1;
        let again = known
            .keys()
            .nth(turn * 7 % known.len().max(1))
            .filter(|_| turn % 2 == 0)
            .cloned();
        let Some(name) = again.or(names.pop()) else {
            thread::sleep(PAUSE);
            continue;
        };
        let hash =
            walk::hash(&dir.join(&name)).unwrap_or_else(|error| panic!("the view {name}: {error}"));
        let before = known.entry(name.clone()).or_insert_with(|| hash.clone());
        assert!(
            *before == hash,
            "the view {name} changed while the workers ran"
        );
        walk::going(&dir, GOING);
    }
    known
}

/// Running processes, killed when dropped.
#[derive(Default)]
pub struct ProcessGroup {
    at_work: Vec<(ProcessTask, Child)>,
}

impl ProcessGroup {
    /// Starts a process.
    pub fn start(&mut self, orders: ProcessTask) {
        let log = File::create(log_of(&orders)).expect("the notes can be written");
        let copy = log.try_clone().expect("a descriptor can be copied");
        let mut command =
            Command::new(std::env::current_exe().expect("the path of this binary is known"));
        command.args([
            "concurrent::one_of_the_crew",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(
            VARIABLE,
            serde_json::to_string(&orders).expect("orders can be serialized"),
        );
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy)
            .spawn()
            .expect("this binary can be started again");
        self.at_work.push((orders, child));
    }

    /// Waits until all processes have succeeded. A failure ends the run; a hung process is reported
    /// with its kernel stacks.
    pub fn wait(mut self, limit: Duration, mount: &Mount) {
        let started = Instant::now();
        while !self.at_work.is_empty() {
            let (mut failed, mut index) = (None, 0);
            while index < self.at_work.len() {
                match self.at_work[index]
                    .1
                    .try_wait()
                    .expect("a child can be waited for")
                {
                    None => index += 1,
                    Some(status) => {
                        let (orders, _) = self.at_work.swap_remove(index);
                        failed = (!status.success()).then_some(orders).or(failed);
                    }
                }
            }
            if let Some(orders) = failed {
                panic!(
                    "{} (seed {}) failed:\n{}",
                    orders.name(),
                    orders.seed,
                    fs::read_to_string(log_of(&orders)).unwrap_or_default()
                );
            }
            if started.elapsed() > limit + GRACE {
                let mut who: Vec<(String, u32)> = self
                    .at_work
                    .iter()
                    .map(|(orders, child)| (orders.name(), child.id()))
                    .collect();
                who.push(("the daemon".to_owned(), mount.pid()));
                panic!("{} processes hang:\n{}", self.at_work.len(), dump::of(&who));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn log_of(orders: &ProcessTask) -> PathBuf {
    orders.notes.join(format!("{}.log", orders.name()))
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        for (_, child) in &mut self.at_work {
            let _ = child.kill();
        }
        // A process that is blocked in a request dies at the abort of the mount, which follows.
    }
}
