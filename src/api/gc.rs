//! `gc`: removal of checkpoints by rules.

use serde::{Deserialize, Serialize};

use crate::ids::CheckpointId;
use crate::retention::{Retention, Rule};
use crate::verb::Verb;
/// Options of `gc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcOptions {
    /// Retention rules.
    #[serde(default)]
    pub retention: Retention,
    /// Only report what would be freed.
    #[serde(default)]
    pub dry_run: bool,
    /// Continue the run with this number, from an earlier reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// As the daemon runs it (`retention.auto`): checkpoints without a rule are hidden as by
    /// `delete` and freed by a later run; requested ones stay; those deleted less than
    /// `retention.keep-undone` ago are not freed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
}

/// A checkpoint that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcKept {
    /// The checkpoint.
    pub id: CheckpointId,
    /// The rules that keep it.
    pub rules: Vec<Rule>,
}

/// Reason for the removal of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GcReason {
    /// It had been deleted or undone, and could still be restored.
    Deleted,
    /// No rule keeps it.
    NoRule,
    /// The history exceeds its size limit.
    MaxSize,
}

/// A checkpoint that is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcRemoved {
    /// The checkpoint.
    pub id: CheckpointId,
    /// The reason.
    pub why: GcReason,
    /// Bytes freed with it, after those before it in the list.
    pub bytes: u64,
}

/// Effect of a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcTier {
    /// Its patterns.
    pub paths: Vec<String>,
    /// Its retention time in milliseconds.
    pub keep_ms: u64,
    /// Versions dropped although checkpoints show them.
    pub versions: u64,
    /// Bytes freed with them.
    pub bytes: u64,
    /// Versions that stay because the file has several names, perhaps outside of the tier.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub linked: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Result of a run or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcReport {
    /// Number of the run; repeat the request with it until `finished`.
    pub run: u64,
    /// The run is complete.
    pub finished: bool,
    /// The run is freeing data; before, it measures the history.
    pub freeing: bool,
    /// Progress.
    pub done: u64,
    /// Value of `done` at the end.
    pub total: u64,
    /// This was a dry run.
    pub dry_run: bool,
    /// Checkpoints kept and their rules, oldest first; set when finished.
    pub kept: Vec<GcKept>,
    /// Checkpoints removed, in order; set when finished.
    pub gone: Vec<GcRemoved>,
    /// Unneeded versions left by a deletion or an interrupted run.
    pub leftovers: u64,
    /// Bytes freed with them.
    pub leftover_bytes: u64,
    /// Effects of tiers, in configuration order; set when finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<GcTier>,
    /// Total bytes freed.
    pub freed_bytes: u64,
    /// Size of the history before.
    pub history_bytes: u64,
    /// Bytes of removed versions still open in this process; freed on close.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_bytes: u64,
    /// Bytes by which the history exceeds its limit, because the rest is pinned, tagged or the
    /// newest.
    pub over_bytes: u64,
    /// Planned checkpoints that stay: they were pinned, tagged or undeleted concurrently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<CheckpointId>,
}

impl Verb for GcOptions {
    type Answer = GcReport;
    fn only_asks(&self) -> bool {
        self.dry_run && self.run.is_none()
    }
}
