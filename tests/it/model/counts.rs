//! Statistics of the runs.

use std::collections::BTreeMap;
use std::fmt;

/// Counts of one run, or of all.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub runs: u64,
    pub operations: u64,
    pub checkpoints: u64,
    /// Tripwire marks seen.
    pub marks: u64,
    /// Freed checkpoints, by way.
    pub frees: BTreeMap<&'static str, u64>,
    /// Views compared completely.
    pub views: u64,
    /// Files compared in partial checks of views.
    pub files: u64,
    /// Kills of holder and daemon.
    pub kills: u64,
    /// Kills of the daemon alone.
    pub takeovers: u64,
    pub remounts: u64,
    pub verified: u64,
    pub cuts: u64,
    /// Views compared after a power cut.
    pub views_after_cuts: u64,
}

impl Counts {
    pub fn free(&mut self, way: &'static str) {
        *self.frees.entry(way).or_default() += 1;
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.runs += other.runs;
        self.operations += other.operations;
        self.checkpoints += other.checkpoints;
        self.marks += other.marks;
        for (way, count) in other.frees {
            *self.frees.entry(way).or_default() += count;
        }
        self.views += other.views;
        self.files += other.files;
        self.kills += other.kills;
        self.takeovers += other.takeovers;
        self.remounts += other.remounts;
        self.verified += other.verified;
        self.cuts += other.cuts;
        self.views_after_cuts += other.views_after_cuts;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frees: Vec<String> = self
            .frees
            .iter()
            .map(|(way, count)| format!("{way} {count}"))
            .collect();
        write!(
            f,
            "{} runs, {} operations, {} checkpoints, {} marks; frees: {}; {} views and {} files of views compared; \
             {} kills, {} takeovers, {} remounts; {} verifications; {} cuts, {} views compared after them",
            self.runs,
            self.operations,
            self.checkpoints,
            self.marks,
            if frees.is_empty() {
                "none".to_owned()
            } else {
                frees.join(", ")
            },
            self.views,
            self.files,
            self.kills,
            self.takeovers,
            self.remounts,
            self.verified,
            self.cuts,
            self.views_after_cuts,
        )
    }
}
