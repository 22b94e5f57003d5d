//! The machine of a benchmark run.

use std::fs;
use std::process::Command;

/// Describes in one sentence the time, commit, machine and load of a run. `load_before` is the
/// result of [`load`] at its start.
pub fn describe(load_before: &str) -> String {
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "Measured {date} at commit {}, on {cores} cores of {}, Linux {}, filesystems on loop-mounted images; load average {load_before} before and {} \
         after (1, 5, 15 minutes).",
        commit(),
        cpu_model(),
        kernel.trim(),
        load()
    )
}

/// Returns the current load averages.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model
        .map_or("an unknown processor", |(_, name)| name)
        .to_owned()
}

/// Returns the commit, with a mark if the sources differ from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output();
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
            .unwrap_or_default()
    };
    let changed = if git(&[
        "status",
        "--porcelain",
        "--",
        "src",
        "benches",
        "Cargo.lock",
    ])
    .is_empty()
    {
        ""
    } else {
        " with changes"
    };
    format!("{}{changed}", git(&["rev-parse", "--short=10", "HEAD"]))
}
