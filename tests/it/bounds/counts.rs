//! Stable costs: system calls of the client for each exported file, and requests of the kernel
//! during the export.

use std::fs;
use std::process::Stdio;

use nix::sys::resource::{UsageWho, getrusage};
use tempfile::TempDir;

use crate::bounds::baseline;
use crate::bounds::shapes;
use crate::common::command::try_run_limited;
use crate::common::{Fs, Io, MountOpts, Rig, Variant, scratch, skip, succeeds, tool};
use ckptfs_api::{Client, GetStats};

const VARIANT: Variant = Variant {
    fs: Fs::Xfs,
    io: Io::Passthrough,
};
const FILES: f64 = 1000.0;
/// Tolerance in calls for each file, for waits between threads. A real regression adds a whole
/// call.
const SLACK: f64 = 0.3;
/// Time limit of a traced export, in seconds.
const TRACED_SECONDS: u64 = 120;

/// Calls that depend on waits between threads, or on the allocator.
const NOT_COUNTED: [&str; 9] = [
    "futex",
    "sched_yield",
    "mmap",
    "munmap",
    "mprotect",
    "madvise",
    "mremap",
    "brk",
    "clock_nanosleep",
];

/// Returns the number of calls in the output of `strace -c`: `% time, seconds, usecs/call, calls,
/// errors (or nothing), syscall`, between two rules of dashes.
fn calls(summary: &str) -> f64 {
    let lines = summary
        .lines()
        .skip_while(|line| !line.starts_with('-'))
        .skip(1)
        .take_while(|line| !line.starts_with('-'));
    let counted = lines.filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = fields.last().filter(|name| !NOT_COUNTED.contains(name))?;
        let calls: f64 = fields.get(3)?.parse().ok()?;
        // With debug assertions, Rust's library checks a descriptor before it closes it.
        (*name != "fcntl").then_some(calls)
    });
    counted.sum()
}

#[test]
fn the_summary_of_strace_is_summed() {
    let summary = "% time     seconds  usecs/call     calls    errors syscall\n------ --- --- --- --- ---\n 50.00    0.000123           1       123         7 read\n \
                   25.00    0.000001           0        45           futex\n 25.00    0.000001           0        5           openat\n------ --- --- --- --- ---\n";
    assert_eq!(calls(summary), 128.0);
}

#[test]
fn an_export_makes_few_system_calls_for_each_file_and_no_requests() {
    if let Some(reason) = VARIANT.unavailable() {
        return skip(&reason);
    }
    let rig = VARIANT.start_with(
        MountOpts::new(VARIANT.io).arg("--seal=off"),
        shapes::SMALL_1000.make,
    );
    let id = rig.mount.checkpoint().to_string();
    let to = rig.image.path().join("exported");
    let mut traced = Traced {
        rig: &rig,
        dir: scratch(),
        missing: None,
    };
    let export = |_| {
        let calls = traced.calls(&["export", &id, &to.to_string_lossy()]);
        let _ = fs::remove_dir_all(&to);
        calls
    };
    baseline::holds(
        "system calls of an export's process for each of 1,000 files",
        |known| known + SLACK,
        export,
    );
    baseline::holds(
        "system calls of the process of a tar stream for each of 1,000 files",
        |known| known + SLACK,
        |_| traced.calls(&["export", &id, "-"]),
    );
    if let Some(reason) = traced.missing {
        return skip(&format!("strace cannot trace an export: {}", reason.trim()));
    }
    requests(&rig.mount, &id, &to.to_string_lossy());
    requests(&rig.mount, &id, "-");
}

/// Every command has this cost. A page fault is a unit that is equal on each machine.
#[test]
fn a_process_starts_with_few_page_faults() {
    let faults = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the resource usage of children");
        usage.minor_page_faults() as f64
    };
    // Other tests of this process have children: the minimum of many runs is that of one alone.
    let start = |_| {
        let one = || {
            let before = faults();
            succeeds(
                tool(env!("CARGO_BIN_EXE_ckptfs"), &["--version"]).stdout(Stdio::null()),
                TRACED_SECONDS,
            );
            faults() - before
        };
        (0..20).map(|_| one()).fold(f64::MAX, f64::min)
    };
    baseline::holds(
        "page faults of the start of a process",
        |known| known * 1.15,
        start,
    );
}

/// Runs verbs under strace.
struct Traced<'a> {
    rig: &'a Rig,
    dir: TempDir,
    /// The reason why strace does not work.
    missing: Option<String>,
}

impl Traced<'_> {
    /// Returns the calls of the verb's process for each file; 0 if it cannot be traced.
    fn calls(&mut self, verb: &[&str]) -> f64 {
        let summary = self.dir.path().join("summary");
        let mut strace = tool("strace", &["-f", "-c", "-o"]);
        strace
            .arg(&summary)
            .arg(env!("CARGO_BIN_EXE_ckptfs"))
            .arg("-C")
            .arg(self.rig.path())
            .args(verb);
        let said = match try_run_limited(&mut strace, TRACED_SECONDS) {
            Ok(output) if output.status.success() => {
                return calls(&fs::read_to_string(&summary).expect("strace wrote a summary"))
                    / FILES;
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(problem) => problem,
        };
        // A verb that ran and failed is not a reason to skip.
        assert!(
            !said.contains("Error:"),
            "{verb:?} under strace failed: {said}"
        );
        self.missing = Some(said);
        0.0
    }
}

/// The export uses only the socket: the kernel requests the root of the mount, and no file.
fn requests(mount: &crate::common::Mount, id: &str, to: &str) {
    let asked = || -> u64 {
        let store = fs::File::open(mount.path().join(".ckptfs")).expect("the store exists");
        let stats = Client::connect(&store)
            .expect("the daemon listens")
            .ask(GetStats)
            .expect("stats");
        stats.requests.values().sum()
    };
    let mut fewest = u64::MAX;
    for _ in 0..baseline::SESSIONS {
        let before = asked();
        assert!(mount.run(&["export", id, to]).status.success());
        fewest = fewest.min(asked() - before);
        let _ = fs::remove_dir_all(to);
    }
    // Another process may access the mount during the export.
    assert!(
        fewest < 100,
        "{fewest} requests for an export of 1,000 files"
    );
}
