//! CPU placement of processes, which dominates the cost of small requests on two cores.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// Placement of the client and the daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Chosen by the scheduler, the default.
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

/// Moves this process, with its future children, and all threads of the daemons.
pub struct CpuAffinity {
    all: CpuSet,
    one: CpuSet,
}

impl CpuAffinity {
    /// Reads the initial affinity; must be called before anything is pinned.
    pub fn new() -> CpuAffinity {
        let all = sched_getaffinity(None).expect("the CPU affinity of a process can be read");
        // The last CPU, because interrupts are mostly served by the first.
        let last = (0..CpuSet::MAX_CPU)
            .rev()
            .find(|cpu| all.is_set(*cpu))
            .expect("the CPU affinity of a process is not empty");
        let mut one = CpuSet::new();
        one.set(last);
        CpuAffinity { all, one }
    }

    pub fn enter(&self, placement: Placement, daemons: &[u32]) {
        let set = match placement {
            Placement::Unpinned => &self.all,
            Placement::Pinned => &self.one,
        };
        sched_setaffinity(None, set).expect("the CPU affinity of a process can be set");
        for thread in daemons.iter().flat_map(|pid| threads(*pid)) {
            // A thread that has exited is ignored.
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
