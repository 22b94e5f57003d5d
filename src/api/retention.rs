//! Retention rules and tiers.

use serde::{Deserialize, Serialize};

use crate::ids::CheckpointId;
/// Retention rules; checkpoints that no rule keeps are removed. Without a rule all are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Number of newest checkpoints to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u64>,
    /// Maximum age to keep, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_within_s: Option<u64>,
    /// Number of hours of which one checkpoint is kept; hours without any do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_hourly: Option<u64>,
    /// The same for days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_daily: Option<u64>,
    /// The same for weeks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_weekly: Option<u64>,
    /// Checkpoints kept regardless of rules and size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep_ids: Vec<CheckpointId>,
    /// Maximum size of the history in bytes: the oldest are removed until it is met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Automatic runs also count and remove requested checkpoints.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
    /// Paths with a shorter retention. The first match applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
}

impl Retention {
    /// Returns whether any rule is set.
    pub fn has_rules(&self) -> bool {
        [
            self.keep_last,
            self.keep_within_s,
            self.keep_hourly,
            self.keep_daily,
            self.keep_weekly,
        ]
        .iter()
        .any(Option::is_some)
    }
}

/// Reason to keep a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Pinned.
    Pinned,
    /// Base of a branch.
    Branch,
    /// Requested, in an automatic run (`retention.manual`).
    Asked,
    /// Named by `gc --keep-unpushed`.
    Named,
    /// Tagged.
    Tagged,
    /// The newest.
    Newest,
    /// Needed by `undo` or `redo`, or a recent mark of the tripwire.
    Undo,
    /// `keep-last`.
    Last,
    /// `keep-within`.
    Within,
    /// `keep-hourly`.
    Hourly,
    /// `keep-daily`.
    Daily,
    /// `keep-weekly`.
    Weekly,
    /// No rule is set.
    NoRule,
}

/// A tier of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Patterns.
    pub paths: Vec<String>,
    /// Retention time in milliseconds.
    pub keep_ms: u64,
}
