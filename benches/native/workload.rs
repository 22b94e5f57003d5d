//! Workloads, and helpers for all of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::common::Image;
use crate::common::command::{tool, try_run_limited};
use crate::fixtures::Fixtures;
use crate::lanes::{Column, Lane};

/// Time limit for a step that is not measured.
pub const SETUP_SECONDS: u64 = 300;

/// One image with all its columns, and the inputs of the workloads.
pub struct BenchEnv<'a> {
    pub image: &'a Image,
    pub fixtures: &'a Fixtures,
    pub lanes: Vec<Lane>,
    /// A number unique to each round.
    pub round: usize,
}

/// The unit of a workload's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds for the whole run.
    Seconds,
    /// Seconds per operation, shown in microseconds.
    Each,
    /// Seconds per mebibyte, shown as GiB/s.
    Mebibyte,
}

/// An operation measured in every column.
pub struct Workload {
    pub name: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    /// Changes the tree: the column `checkpointed` makes a checkpoint before.
    pub changes: bool,
    /// Reports whether the workload runs in a column.
    pub can: fn(Column) -> bool,
    /// Files (or operations) of one run, for requests per file; `None` if the number varies.
    pub files: fn(&Fixtures) -> Option<usize>,
    /// Preparation, not measured.
    pub before: fn(&BenchEnv<'_>, &Lane),
    /// The measured step; returns its own measurement in seconds.
    pub run: fn(&BenchEnv<'_>, &Lane) -> f64,
}

/// Workloads that build on each other in one directory.
pub struct Scenario {
    pub name: &'static str,
    pub title: &'static str,
    /// Rounds of a whole run.
    pub rounds: usize,
    /// Whether to measure pinned as well as unpinned; meaningless for programs that use all CPUs.
    pub pins: bool,
    /// Returns the reason if it cannot run on this machine.
    pub missing: fn(&Fixtures) -> Option<String>,
    /// Preparation once per column, not measured.
    pub setup: fn(&BenchEnv<'_>, &Lane),
    pub workloads: &'static [Workload],
}

/// Selects every column except the one of a few workloads.
pub fn any(column: Column) -> bool {
    column != Column::Cloned
}

pub fn nothing(_: &BenchEnv<'_>, _: &Lane) {}

/// Calls twice to fill every cache. After an uncached listing the kernel invalidates a directory's
/// atime (`fuse_readdir_uncached` in fs/fuse/readdir.c). The second walk therefore makes a request
/// for each directory, and only the third makes no request.
pub fn twice(call: impl Fn()) {
    call();
    call();
}

/// Returns the duration of a call in seconds.
pub fn seconds(call: impl FnOnce()) -> f64 {
    let started = Instant::now();
    call();
    started.elapsed().as_secs_f64()
}

/// Returns the seconds from fork to exit of a command, which must succeed. Its stdout is discarded,
/// its stderr is shown.
pub fn timed(command: &mut Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    seconds(|| {
        let status = command
            .status()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        assert!(status.success(), "{command:?} failed: {status}");
    })
}

/// Returns a command that runs in this directory.
pub fn within(dir: &Path, name: &str, arguments: &[&str]) -> Command {
    let mut command = tool(name, arguments);
    command.current_dir(dir);
    command
}

/// Returns a shell command in this directory that fails if any part fails.
pub fn shell(dir: &Path, script: &str) -> Command {
    within(dir, "bash", &["-euo", "pipefail", "-c", script])
}

/// Syncs the image and drops the kernel's caches.
pub fn drop_caches(image: &Image) {
    timed(tool("sync", &["-f"]).arg(image.path()));
    std::fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
}

/// Returns the lane's directory for the scenario.
pub fn place(lane: &Lane, name: &str) -> PathBuf {
    lane.root().join(name)
}

/// Returns the reason if this program is not installed.
pub fn missing(program: &str) -> Option<String> {
    let there = try_run_limited(
        &mut tool("sh", &["-c", &format!("command -v {program}")]),
        10,
    )
    .is_ok_and(|output| output.status.success());
    (!there).then(|| format!("{program} is not installed"))
}

/// Returns a read-only workload measured in seconds, without preparation.
pub const fn workload(
    name: &'static str,
    title: &'static str,
    files: fn(&Fixtures) -> Option<usize>,
    run: fn(&BenchEnv<'_>, &Lane) -> f64,
) -> Workload {
    Workload {
        name,
        title,
        unit: Unit::Seconds,
        changes: false,
        can: any,
        files,
        before: nothing,
        run,
    }
}
