//! Processes that work on a mount until it dies or they are paused: this test binary, started again
//! with orders.
//!
//! Each process works in its own directory and logs every operation before the call and its answer
//! after it. The expected state therefore is known: all answered operations, and perhaps the
//! unanswered one. The test applies the same operations to a plain directory and compares.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::ops::{CrashOp, is_dead, random_op, written_of};
use crate::common::random::Random;
use crate::common::tree::{TreeOpts, compare, tree};
use crate::common::wait::WAIT;

/// Number of processes.
pub const WORKERS: u64 = 8;
const VARIABLE: &str = "CKPTFS_CRASH_ORDERS";
/// Bytes of the control file: the command, then the state of each worker.
const WORK: u8 = 0;
const PAUSE: u8 = 1;
const END: u8 = 2;
const LIMIT: Duration = WAIT;

/// Parameters of a process.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerParams {
    tree: PathBuf,
    log: PathBuf,
    control: PathBuf,
    index: u64,
    seed: u64,
}

/// Returns the name of a worker's directory.
pub fn part(index: u64) -> String {
    format!("w{index}")
}

/// All processes of a round.
pub struct WorkerProcesses {
    children: Vec<Child>,
    control: File,
    dir: PathBuf,
}

impl WorkerProcesses {
    /// Starts the processes paused. Logs and control file are in `dir`, outside the mount.
    pub fn start(tree: &Path, dir: &Path, seed: u64) -> WorkerProcesses {
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(dir.join("control"))
            .expect("a control file");
        control.write_all_at(&[PAUSE], 0).expect("a control file");
        control
            .write_all_at(&[WORK; WORKERS as usize], 1)
            .expect("a control file");
        let start = |index| {
            let orders = WorkerParams {
                tree: tree.join(part(index)),
                log: log_of(dir, index),
                control: dir.join("control"),
                index,
                seed: seed * 1000 + index,
            };
            fs::write(&orders.log, "").expect("a log");
            let mut command =
                Command::new(std::env::current_exe().expect("the path of this binary is known"));
            command.args([
                "crash::worker_processes::one_of_the_crew",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ]);
            command
                .env(
                    VARIABLE,
                    serde_json::to_string(&orders).expect("orders can be serialized"),
                )
                .current_dir("/");
            let log = File::create(dir.join(format!("said-{index}"))).expect("a log");
            command
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("a copy"))
                .stderr(log)
                .spawn()
                .expect("this binary can be started again")
        };
        let crew = WorkerProcesses {
            children: (0..WORKERS).map(start).collect(),
            control,
            dir: dir.to_owned(),
        };
        crew.wait_paused();
        crew
    }

    /// Pauses all processes after the operation in progress. Processes that saw the daemon die have
    /// ended.
    pub fn pause(&self) {
        self.control
            .write_all_at(&[PAUSE], 0)
            .expect("a control file");
        self.wait_paused();
    }

    /// Resumes all processes.
    pub fn work(&self) {
        self.control
            .write_all_at(&[WORK], 0)
            .expect("a control file");
    }

    fn wait_paused(&self) {
        let began = Instant::now();
        let mut states = [0; WORKERS as usize];
        loop {
            self.control
                .read_exact_at(&mut states, 1)
                .expect("a control file");
            if states.iter().all(|state| *state != WORK) {
                return;
            }
            assert!(
                began.elapsed() < LIMIT,
                "workers that do not pause: {states:?}"
            );
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends all processes and returns their logs.
    ///
    /// # Errors
    /// The output of a worker that failed.
    pub fn end(mut self) -> Result<Vec<OpLog>, String> {
        self.control
            .write_all_at(&[END], 0)
            .expect("a control file");
        let began = Instant::now();
        for (index, child) in self.children.iter_mut().enumerate() {
            let status = loop {
                if let Some(status) = child.try_wait().expect("a child") {
                    break status;
                }
                if began.elapsed() > LIMIT {
                    return Err(format!("worker {index} does not exit"));
                }
                thread::sleep(Duration::from_millis(1));
            };
            // A store to a mapping whose daemon died raises SIGBUS.
            if !status.success() && status.signal() != Some(libc::SIGBUS) {
                return Err(format!(
                    "worker {index}: {}",
                    fs::read_to_string(self.dir.join(format!("said-{index}"))).unwrap_or_default()
                ));
            }
        }
        Ok(done(&self.dir))
    }
}

impl Drop for WorkerProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            if child.try_wait().is_ok_and(|status| status.is_none()) {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Returns the logs so far.
pub fn done(dir: &Path) -> Vec<OpLog> {
    (0..WORKERS)
        .map(|index| OpLog::read(&log_of(dir, index)))
        .collect()
}

fn log_of(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("log-{index}"))
}

/// The log of a worker.
#[derive(Debug, Default)]
pub struct OpLog {
    /// Answered operations with their error numbers.
    pub answered: Vec<(CrashOp, i32)>,
    /// The operation without an answer.
    pub under_way: Option<CrashOp>,
}

impl OpLog {
    fn read(log: &Path) -> OpLog {
        let (mut done, text) = (OpLog::default(), fs::read_to_string(log).expect("a log"));
        for line in text.lines() {
            if let Some(errno) = line.strip_prefix("answer ") {
                let errno = errno.parse().expect("an error number");
                done.answered
                    .extend(done.under_way.take().map(|op| (op, errno)));
            } else {
                done.under_way = Some(serde_json::from_str(line).expect("the log has operations"));
            }
        }
        done
    }

    /// Applies the operations to a plain directory and compares it with the live one.
    ///
    /// # Errors
    /// The differences.
    pub fn compare(&self, plain: &Path, live_dir: &Path) -> Result<(), String> {
        for answered in &self.answered {
            again(answered, plain)?;
        }
        let opts = TreeOpts {
            mtime: false,
            dir_mtime: false,
            ..TreeOpts::default()
        };
        let live = tree(live_dir);
        let without = compare(&live, &tree(plain), &opts);
        if without.is_empty() {
            return Ok(());
        }
        if let Some(op) = &self.under_way {
            let _ = as_far_as_done(op, live_dir, plain).carry_out(plain);
            if compare(&live, &tree(plain), &opts).is_empty() {
                return Ok(());
            }
        }
        let named = |op: &CrashOp| {
            let text = format!("{op:?}");
            without.iter().any(|line| {
                line.split(':')
                    .next()
                    .is_some_and(|path| text.contains(path))
            })
        };
        let concerned: Vec<String> = self
            .answered
            .iter()
            .filter(|(op, _)| named(op))
            .map(|answered| format!("{answered:?}"))
            .collect();
        Err(format!(
            "not the state that the replies imply (in progress: {:?}):\n  {}\nof:\n  {}",
            self.under_way,
            without.join("\n  "),
            concerned.join("\n  ")
        ))
    }
}

/// A write may take several requests, and the daemon may die between them: limits `op` to the part
/// that the file size shows.
fn as_far_as_done(op: &CrashOp, live: &Path, plain: &Path) -> CrashOp {
    let size = |root: &Path, path: &Path| {
        fs::symlink_metadata(root.join(path)).map_or(0, |meta| meta.size())
    };
    let part = |path: &Path, offset: u64, length: u64| {
        let end = size(live, path);
        if end > offset && end < offset + length {
            end - offset
        } else {
            length
        }
    };
    let mut op = op.clone();
    match &mut op {
        CrashOp::Write {
            path,
            offset,
            length,
            ..
        } => *length = part(path, *offset, *length),
        CrashOp::Append { path, length, .. } => *length = part(path, size(plain, path), *length),
        _ => {}
    }
    op
}

fn errno(result: &std::io::Result<()>) -> i32 {
    match result.as_ref().map_err(|error| error.raw_os_error()) {
        Ok(()) => 0,
        // For a directory that is not empty rename(2) allows both errors; XFS returns EEXIST.
        Err(Some(libc::EEXIST)) => libc::ENOTEMPTY,
        Err(errno) => errno.unwrap_or(-1),
    }
}

/// Applies an answered operation to a plain directory, which must return the same error number.
///
/// # Errors
/// Both answers.
pub fn again((op, answered): &(CrashOp, i32), plain: &Path) -> Result<(), String> {
    let here = errno(&op.carry_out(plain));
    if here == *answered {
        Ok(())
    } else {
        Err(format!(
            "{op:?} failed with error {answered}, and on the plain directory with {here}"
        ))
    }
}

fn work(orders: &WorkerParams) {
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&orders.control)
        .expect("the control file");
    let mut log = OpenOptions::new()
        .append(true)
        .open(&orders.log)
        .expect("the log");
    let mut random = Random::new(orders.seed);
    let state = |state: u8| {
        control
            .write_all_at(&[state], 1 + orders.index)
            .expect("the control file")
    };
    loop {
        let mut order = [0];
        control
            .read_exact_at(&mut order, 0)
            .expect("the control file");
        match order[0] {
            END => return state(END),
            PAUSE => {
                state(PAUSE);
                thread::sleep(Duration::from_micros(300));
                continue;
            }
            _ => state(WORK),
        }
        // Read again: a pause requested before the state was set would be missed.
        control
            .read_exact_at(&mut order, 0)
            .expect("the control file");
        if order[0] != WORK {
            continue;
        }
        let op = random_op(&mut random);
        let line = serde_json::to_string(&op).expect("an operation can be serialized");
        log.write_all(format!("{line}\n").as_bytes())
            .expect("the log");
        match op.carry_out(&orders.tree) {
            Err(error) if is_dead(&error) => return state(END),
            Err(error) if written_of(&error).is_some() => {
                note_parts(&mut log, op, &error);
                return state(END);
            }
            result => log
                .write_all(format!("answer {}\n", errno(&result)).as_bytes())
                .expect("the log"),
        }
    }
}

/// Logs a short write as two operations: the written part as answered, the rest as unanswered.
fn note_parts(log: &mut File, op: CrashOp, error: &std::io::Error) {
    let CrashOp::Write {
        path,
        offset,
        length,
        fill,
    } = op
    else {
        panic!("{op:?}: {error}")
    };
    let written = written_of(error).expect("only a write can be partial");
    for (offset, length, answer) in [
        (offset, written, "answer 0\n"),
        (offset + written, length - written, ""),
    ] {
        let part = serde_json::to_string(&CrashOp::Write {
            path: path.clone(),
            offset,
            length,
            fill,
        })
        .expect("plain data");
        log.write_all(format!("{part}\n{answer}").as_bytes())
            .expect("the log");
    }
}

/// Entry point of the worker processes; does nothing without orders.
#[test]
fn one_of_the_crew() {
    if let Ok(orders) = std::env::var(VARIABLE) {
        work(&serde_json::from_str(&orders).expect("the orders are valid"));
    }
}
