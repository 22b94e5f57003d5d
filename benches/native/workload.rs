//! What a workload is, and the helpers that all of them use.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::common::Image;
use crate::common::command::{tool, try_run_limited};
use crate::fixtures::Fixtures;
use crate::lanes::{Column, Lane};

/// Seconds for a step that is not measured.
pub const SETUP_SECONDS: u64 = 300;

/// One image with all its columns, and what the workloads need beside it.
pub struct World<'a> {
    pub image: &'a Image,
    pub fixtures: &'a Fixtures,
    pub lanes: Vec<Lane>,
    /// A number that is another one in each round.
    pub round: usize,
}

/// What the number of a workload means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds for the whole.
    Seconds,
    /// Seconds for one operation, shown in microseconds.
    Each,
    /// Seconds for a mebibyte, shown as GiB/s.
    Mebibyte,
}

/// One thing that is measured in every column.
pub struct Workload {
    pub name: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    /// It changes the tree: the column `checkpointed` gets a checkpoint just before.
    pub changes: bool,
    /// The columns that can do it.
    pub can: fn(Column) -> bool,
    /// Files (or operations) of one run, for requests per file. Without it the run has no fixed
    /// number.
    pub files: fn(&Fixtures) -> Option<usize>,
    /// Not measured.
    pub before: fn(&World<'_>, &Lane),
    /// Measured: returns the seconds that it measured itself.
    pub run: fn(&World<'_>, &Lane) -> f64,
}

/// Workloads that build upon each other in one directory.
pub struct Scenario {
    pub name: &'static str,
    pub title: &'static str,
    /// Rounds of a whole run.
    pub rounds: usize,
    /// Pinning one CPU says nothing of a program that uses all.
    pub pins: bool,
    /// Why it cannot run on this machine, if so.
    pub missing: fn(&Fixtures) -> Option<String>,
    /// Once for each column, not measured.
    pub setup: fn(&World<'_>, &Lane),
    pub workloads: &'static [Workload],
}

/// Every column but the one that only a few workloads have.
pub fn any(column: Column) -> bool {
    column != Column::Cloned
}

pub fn nothing(_: &World<'_>, _: &Lane) {}

/// Has every cache filled: after a listing that it had to ask for, the kernel takes a directory's
/// time of access for out of date (`fuse_readdir_uncached` in fs/fuse/readdir.c), so that the
/// second walk asks once more for each directory and only the third for nothing.
pub fn twice(call: impl Fn()) {
    call();
    call();
}

/// Seconds that the call takes.
pub fn seconds(call: impl FnOnce()) -> f64 {
    let started = Instant::now();
    call();
    started.elapsed().as_secs_f64()
}

/// Seconds from fork to the end of a command, which must succeed. What it prints is dropped, what
/// it complains of is shown.
pub fn timed(command: &mut Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    seconds(|| {
        let status = command
            .status()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        assert!(status.success(), "{command:?} failed: {status}");
    })
}

/// A command in this directory.
pub fn within(dir: &Path, name: &str, arguments: &[&str]) -> Command {
    let mut command = tool(name, arguments);
    command.current_dir(dir);
    command
}

/// A shell script in this directory, every part of which must succeed.
pub fn shell(dir: &Path, script: &str) -> Command {
    within(dir, "bash", &["-euo", "pipefail", "-c", script])
}

/// Puts everything on disk and empties the kernel's caches.
pub fn drop_caches(image: &Image) {
    timed(tool("sync", &["-f"]).arg(image.path()));
    std::fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
}

/// The lane's directory for the scenario.
pub fn place(lane: &Lane, name: &str) -> PathBuf {
    lane.root().join(name)
}

/// Why this program cannot be run, if so.
pub fn missing(program: &str) -> Option<String> {
    let there = try_run_limited(
        &mut tool("sh", &["-c", &format!("command -v {program}")]),
        10,
    )
    .is_ok_and(|output| output.status.success());
    (!there).then(|| format!("{program} is not installed"))
}

/// What only reads, in seconds, with nothing before it.
pub const fn workload(
    name: &'static str,
    title: &'static str,
    files: fn(&Fixtures) -> Option<usize>,
    run: fn(&World<'_>, &Lane) -> f64,
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
