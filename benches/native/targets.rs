//! The project's performance targets and their verdicts.

use serde::Serialize;

use crate::lanes::Column;
use crate::place::Placement;
use crate::results::{Results, Row};

/// The base of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The plain directory.
    Plain,
    /// The better of the two floor columns.
    Floor,
    /// This workload in this column.
    Other(&'static str, Column),
}

/// A limit for the ratio of a workload's median in a column to that of the base.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub workload: &'static str,
    pub column: Column,
    pub base: Base,
    pub limit: f64,
}

/// A target with its measurements.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub fs: &'static str,
    pub workload: &'static str,
    pub column: Column,
    pub against: String,
    pub limit: f64,
    pub unpinned: Option<f64>,
    pub pinned: Option<f64>,
    /// Unpinned, relative to the best floor of both placements, with one or many threads.
    pub best_floor: Option<f64>,
}

const fn plain(workload: &'static str, limit: f64) -> Target {
    Target {
        workload,
        column: Column::Passthrough,
        base: Base::Plain,
        limit,
    }
}

const fn floor(workload: &'static str, column: Column, limit: f64) -> Target {
    Target {
        workload,
        column,
        base: Base::Floor,
        limit,
    }
}

const fn other(workload: &'static str, base: &'static str, column: Column, limit: f64) -> Target {
    Target {
        workload,
        column: Column::Checkpointed,
        base: Base::Other(base, column),
        limit,
    }
}

const PASSTHROUGH: [Target; 14] = [
    plain("seq-read", 1.05),
    plain("seq-write", 1.05),
    plain("rand-read", 1.05),
    plain("mmap-read", 1.05),
    plain("mmap-write", 1.05),
    plain("rand-write", 1.15),
    plain("walk", 1.15),
    plain("git-status", 1.3),
    floor("walk", Column::Passthrough, 1.0),
    floor("git-status", Column::Passthrough, 1.0),
    floor("cat", Column::Passthrough, 1.0),
    floor("rg", Column::Passthrough, 1.0),
    plain("cargo-build", 1.25),
    plain("npm-ci", 1.25),
];
const PROGRAMS: [Target; 2] = [
    floor("cargo-build", Column::Passthrough, 0.9),
    floor("npm-ci", Column::Passthrough, 0.9),
];
/// Workloads dominated by requests to the daemon.
const REQUESTS: [&str; 6] = ["git-checkout", "untar", "create", "rename", "unlink", "rm"];
/// Changes of files that a checkpoint shows.
const FIRST: [&str; 8] = [
    "rewrite",
    "git-checkout",
    "untar",
    "create",
    "rm",
    "seq-write",
    "rand-write",
    "mmap-write",
];
const VIEWS: [Target; 2] = [
    other("view-walk", "walk", Column::Checkpointed, 1.5),
    other("view-rg", "rg", Column::Checkpointed, 1.5),
];

fn all() -> Vec<Target> {
    let mut all = [&PASSTHROUGH[..], &PROGRAMS].concat();
    for workload in REQUESTS {
        all.extend([
            floor(workload, Column::Passthrough, 1.0),
            floor(workload, Column::Checkpointed, 1.1),
        ]);
    }
    all.extend(FIRST.map(|workload| other(workload, workload, Column::Passthrough, 1.3)));
    all.extend(VIEWS);
    all
}

/// Returns the verdicts of all targets measured on this filesystem.
pub fn verdicts(results: &Results, fs: &'static str) -> Vec<Verdict> {
    let measured = |target: &Target| {
        let ratio = |placement| {
            let row = Row {
                fs,
                workload: target.workload,
                placement,
            };
            let base = match target.base {
                Base::Plain => results.find(row, Column::Plain),
                Base::Floor => results.floor(row),
                Base::Other(workload, column) => results.find(Row { workload, ..row }, column),
            };
            results.ratio(row, target.column, base)
        };
        let (unpinned, pinned) = (ratio(Placement::Unpinned), ratio(Placement::Pinned));
        let row = Row {
            fs,
            workload: target.workload,
            placement: Placement::Unpinned,
        };
        let best_floor = if target.base == Base::Floor {
            results.ratio(row, target.column, results.best_floor(row))
        } else {
            None
        };
        let against = match target.base {
            Base::Plain => "the plain directory".to_owned(),
            Base::Floor => "the floor".to_owned(),
            Base::Other(workload, _) if workload == target.workload => {
                "without a checkpoint".to_owned()
            }
            Base::Other(workload, _) => format!("`{workload}` in the live tree"),
        };
        let known = unpinned.is_some() || pinned.is_some();
        known.then_some(Verdict {
            fs,
            workload: target.workload,
            column: target.column,
            against,
            limit: target.limit,
            unpinned,
            pinned,
            best_floor,
        })
    };
    all().iter().filter_map(measured).collect()
}
