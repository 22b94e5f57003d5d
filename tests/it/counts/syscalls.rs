//! System calls of the daemon per operation, as counted by `strace -c`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::wait::wait_until;
use crate::common::{Io, Variant, for_each_variant, scratch, skip, tool};
use crate::counts::baseline::{self, Baseline};
use crate::counts::rig::{CountedMount, Counts};
use crate::counts::tree;

/// Operations of a kind, enough to make work done once a second negligible.
const OPERATIONS: usize = 400;
/// Names of a file with many names.
const MANY_NAMES: usize = 5000;
/// Checkpoints to make.
const CHECKPOINTS: usize = 40;
/// Tolerated excess of calls per operation, for background threads. A regression adds a whole call.
const SLACK: f64 = 0.3;
/// Calls per operation below this are ignored.
const NOISE: f64 = 0.1;

/// Calls that depend on thread scheduling, the allocator or the clock.
const NOT_COUNTED: [&str; 27] = [
    // Called after slow requests; under strace every request is slow.
    "getrusage",
    "sync_file_range",
    "futex",
    "clock_nanosleep",
    "nanosleep",
    "restart_syscall",
    "sched_yield",
    "fsync",
    "fdatasync",
    // Called once a second for the records since, as often as `fsetxattr`.
    "fremovexattr",
    "mmap",
    "munmap",
    "mprotect",
    "madvise",
    "mremap",
    "brk",
    "clone3",
    "set_robust_list",
    "rseq",
    // Called by threads that start or exit; their number depends on what blocks.
    "rt_sigprocmask",
    "sigaltstack",
    "sched_getaffinity",
    "prctl",
    "exit",
    // A restore searches /proc for inotify watchers: as many calls as processes.
    "readlink",
    "getdents64",
    "newfstatat",
];

/// strace on the daemon, until ended.
struct Trace {
    strace: Child,
    summary: PathBuf,
}

impl Trace {
    /// Returns once strace follows every thread of the daemon, or the reason why it cannot.
    fn start(pid: u32, dir: &Path) -> Result<Trace, String> {
        let (summary, said) = (dir.join("summary"), dir.join("said"));
        let stderr = File::create(&said).expect("a file");
        let mut command = tool("strace", &["-c", "-f", "-p", &pid.to_string(), "-o"]);
        command
            .arg(&summary)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let mut strace = command
            .spawn()
            .map_err(|error| format!("strace cannot be started ({error})"))?;
        let mut ended = false;
        let attached = || {
            fs::read_to_string(&said)
                .unwrap_or_default()
                .contains(" attached")
        };
        wait_until("strace traces the daemon or reports an error", || {
            ended = strace
                .try_wait()
                .expect("the status of a child can be read")
                .is_some();
            ended || attached()
        });
        if ended {
            return Err(format!(
                "strace cannot trace the daemon: {}",
                fs::read_to_string(&said).unwrap_or_default().trim()
            ));
        }
        Ok(Trace { strace, summary })
    }

    /// Ends strace and returns the calls it saw.
    fn end(mut self) -> Counts {
        kill_process(Pid::from_child(&self.strace), Signal::INT).expect("strace runs");
        wait_until("strace has ended", || {
            self.strace
                .try_wait()
                .expect("the status of a child can be read")
                .is_some()
        });
        parse(&fs::read_to_string(&self.summary).expect("strace wrote a summary"))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // It has already exited, except in a failing test.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// Parses `% time, seconds, usecs/call, calls, errors (or nothing), syscall` between two lines of
/// dashes.
fn parse(summary: &str) -> Counts {
    let lines = summary
        .lines()
        .skip_while(|line| !line.starts_with('-'))
        .skip(1)
        .take_while(|line| !line.starts_with('-'));
    let calls = lines.filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        Some(((*fields.last()?).to_owned(), fields.get(3)?.parse().ok()?))
    });
    let mut calls: Counts = calls.collect();
    // sled writes at any time, with a sync_file_range after each write; the remaining writes are
    // the journal's.
    take_away(&mut calls, "pwrite64", "sync_file_range");
    // With debug assertions Rust's library checks a descriptor before closing it; the remaining
    // calls are leases and locks.
    if cfg!(debug_assertions) {
        take_away(&mut calls, "fcntl", "close");
    }
    calls.retain(|name, calls| *calls > 0 && !NOT_COUNTED.contains(&name.as_str()));
    calls
}

/// Subtracts the count of one call from another.
fn take_away(calls: &mut Counts, from: &str, as_many_as: &str) {
    let fewer = calls.get(as_many_as).copied().unwrap_or(0);
    if let Some(calls) = calls.get_mut(from) {
        *calls = calls.saturating_sub(fewer);
    }
}

#[test]
fn the_summary_of_strace_is_understood() {
    let summary = "strace: x\n% time     seconds  usecs/call     calls    errors syscall\n------ --- --- --- --- ---\n \
                   50.00    0.000123           1       123         7 read\n 25.00    0.000001           0        45           pwrite64\n \
                   25.00    0.000001           0        5           sync_file_range\n------ --- --- --- --- ---\n100.00    0.1           1       213         7 total\n";
    assert_eq!(
        parse(summary),
        [("pwrite64".to_owned(), 40), ("read".to_owned(), 123)].into()
    );
}

/// A mount and its baseline.
struct Session {
    rig: CountedMount,
    dir: TempDir,
    baseline: Baseline,
    /// Whether to count operations on names, which cost the same in both I/O modes.
    names: bool,
}

impl Session {
    /// Counts the calls per operation of `work`, which performs `times` of them.
    ///
    /// # Errors
    /// Returns the reason why calls cannot be counted.
    fn count(
        &mut self,
        operation: &str,
        times: usize,
        work: impl FnOnce(&mut CountedMount),
    ) -> Result<(), String> {
        self.rig.settle();
        let trace = Trace::start(self.rig.pid(), self.dir.path())?;
        work(&mut self.rig);
        self.rig.settle();
        let per_operation = |calls: u64| (calls as f64 / times as f64 * 100.0).round() / 100.0;
        // A descriptor is counted when opened, because some are closed later by another thread.
        let calls = trace
            .end()
            .into_iter()
            .filter(|(name, _)| name != "close")
            .map(|(name, calls)| (name, per_operation(calls)));
        self.baseline.check(
            operation,
            calls.filter(|(_, calls)| *calls >= NOISE).collect(),
            SLACK,
        );
        Ok(())
    }
}

for_each_variant! { xfs => system_calls_per_operation_do_not_grow }

fn system_calls_per_operation_do_not_grow(variant: Variant) {
    if let Err(reason) = baseline::compare(&format!("syscalls-{}", variant.io.name()), |baseline| {
        session(variant, baseline)
    }) {
        skip(&reason);
    }
}

fn session(variant: Variant, baseline: Baseline) -> Result<Baseline, String> {
    let mut session = Session {
        rig: CountedMount::start(variant, tree::fill),
        dir: scratch(),
        baseline,
        names: variant.io == Io::Daemon,
    };
    // Do one-time work first (the first use of a thread, of a directory).
    tree::read(&tree::paths(session.rig.path()));
    std::thread::sleep(Duration::from_millis(10));
    operations(&mut session)?;
    Ok(session.baseline)
}

fn operations(session: &mut Session) -> Result<(), String> {
    let root = session.rig.path().to_owned();
    let dir = root.join("new");
    fs::create_dir(&dir).expect("a directory");
    let (files, dirs) = (
        tree::names(&dir, OPERATIONS),
        tree::names(&dir.join("dirs"), OPERATIONS),
    );
    let old: Vec<PathBuf> = tree::paths(&root).into_iter().take(OPERATIONS).collect();
    fs::create_dir(dir.join("dirs")).expect("a directory");
    session.count("create, write, close", OPERATIONS, |_| tree::create(&files))?;
    session.count("open, read, close", OPERATIONS, |_| tree::read(&files))?;
    session.count("open, write, close", OPERATIONS, |_| tree::touch(&files))?;
    if session.names {
        names(session, &files, &dirs)?;
    }
    session.rig.checkpoint();
    session.count(
        "first open, write, close after a checkpoint",
        OPERATIONS,
        |_| tree::touch(&old),
    )?;
    session.count(
        "next open, write, close after a checkpoint",
        OPERATIONS,
        |_| tree::touch(&old),
    )?;
    if session.names {
        names_after_checkpoints(session, &old)?;
    }
    let (id, others) = (
        session.rig.checkpoint(),
        tree::paths(&root)
            .into_iter()
            .skip(OPERATIONS)
            .take(OPERATIONS)
            .collect::<Vec<_>>(),
    );
    tree::touch(&others);
    // Captured files are then cloned; small files with dirty pages would be copied.
    session.rig.sync();
    // The indexer processes the previous checkpoints.
    session.rig.rest();
    session.count("restore of a changed file", OPERATIONS, |rig| {
        rig.restore(id)
    })?;
    if session.names {
        many_names(session, &root.join("names"))?;
    }
    Ok(())
}

fn names(session: &mut Session, files: &[PathBuf], dirs: &[PathBuf]) -> Result<(), String> {
    let renamed: Vec<PathBuf> = files.iter().map(|path| tree::renamed(path)).collect();
    session.count("rename", OPERATIONS, |_| tree::rename(files))?;
    session.count("unlink", OPERATIONS, |_| tree::unlink(&renamed))?;
    session.count("mkdir", OPERATIONS, |_| tree::mkdir(dirs))?;
    Ok(())
}

fn names_after_checkpoints(session: &mut Session, old: &[PathBuf]) -> Result<(), String> {
    session.rig.checkpoint();
    session.count("rename after a checkpoint", OPERATIONS, |_| {
        tree::rename(old)
    })?;
    session.rig.checkpoint();
    let old_renamed: Vec<PathBuf> = old.iter().map(|path| tree::renamed(path)).collect();
    session.count("unlink after a checkpoint", OPERATIONS, |_| {
        tree::unlink(&old_renamed)
    })?;
    // The indexer processes earlier captures now, and not during the counted checkpoints.
    session.rig.rest();
    session.count("checkpoint", CHECKPOINTS, |rig| {
        (0..CHECKPOINTS).for_each(|_| {
            rig.checkpoint();
        })
    })?;
    Ok(())
}

/// The cost of one more or one fewer name does not depend on the number of names.
fn many_names(session: &mut Session, dir: &Path) -> Result<(), String> {
    fs::create_dir(dir).expect("a directory");
    fs::write(dir.join("file"), "x").expect("a file");
    tree::link(&dir.join("file"), 1..10);
    // The indexer pauses during a restore, and runs after it.
    session.rig.rest();
    session.count("link to a file with 10 names", OPERATIONS, |_| {
        tree::link(&dir.join("file"), 10..10 + OPERATIONS)
    })?;
    session.count("unlink of one of 400 names", OPERATIONS / 2, |_| {
        tree::unlink_names(dir, 10..10 + OPERATIONS / 2)
    })?;
    tree::link(&dir.join("file"), 1000..1000 + MANY_NAMES);
    session.count("link to a file with 5,000 names", OPERATIONS, |_| {
        tree::link(&dir.join("file"), 10_000..10_000 + OPERATIONS)
    })?;
    session.count("unlink of one of 5,000 names", OPERATIONS, |_| {
        tree::unlink_names(dir, 10_000..10_000 + OPERATIONS)
    })?;
    session.count(
        "stat, open, close of one of 5,000 names",
        OPERATIONS,
        |_| tree::open_names(dir, 1000..1000 + OPERATIONS),
    )
}
