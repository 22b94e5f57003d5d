//! On which CPU who runs: on a machine with two cores that decides small requests more than
//! anything else.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// Where the client and the daemons run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Wherever the scheduler puts them, as a user finds it.
    Unpinned,
    /// The client and every thread of every daemon on one CPU.
    Pinned,
}

impl Placement {
    pub const ALL: [(&str, Placement); 2] = [
        ("unpinned", Placement::Unpinned),
        ("pinned", Placement::Pinned),
    ];

    pub fn name(self) -> &'static str {
        Placement::ALL[usize::from(self == Placement::Pinned)].0
    }
}

/// Moves this process (and so what it starts) and all threads of these daemons.
pub struct Places {
    all: CpuSet,
    one: CpuSet,
}

impl Places {
    /// Call it before anything is pinned.
    pub fn new() -> Places {
        let all = sched_getaffinity(None).expect("a process can ask where it may run");
        // The last one: interrupts are mostly served by the first.
        let last = (0..CpuSet::MAX_CPU)
            .rev()
            .find(|cpu| all.is_set(*cpu))
            .expect("a process may run somewhere");
        let mut one = CpuSet::new();
        one.set(last);
        Places { all, one }
    }

    pub fn enter(&self, placement: Placement, daemons: &[u32]) {
        let set = match placement {
            Placement::Unpinned => &self.all,
            Placement::Pinned => &self.one,
        };
        sched_setaffinity(None, set).expect("a process may choose where it runs");
        for thread in daemons.iter().flat_map(|pid| threads(*pid)) {
            // A thread that has ended meanwhile is nowhere.
            let _ = sched_setaffinity(Some(thread), set);
        }
    }
}

fn threads(pid: u32) -> Vec<Pid> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}
