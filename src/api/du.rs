//! `du`: disk usage of the history by checkpoint.

use serde::{Deserialize, Serialize};

use crate::checkpoint::StateName;
use crate::ids::CheckpointId;
use crate::verb::Verb;
/// Options of `du`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuOptions {
    /// Report only this checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateName>,
    /// Continue the run with this number, from an earlier reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
}

/// Disk usage of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuOne {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Bytes that freeing only this checkpoint would free.
    pub exclusive_bytes: u64,
    /// Further bytes of its versions, shared with other checkpoints or live files.
    pub shared_bytes: u64,
    /// Number of captured versions that it shows.
    pub versions: u64,
    /// Deleted but not freed yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

/// Disk usage of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuReport {
    /// Number of the run; repeat the request with it until `finished`.
    pub run: u64,
    /// The run is complete.
    pub finished: bool,
    /// Progress.
    pub done: u64,
    /// Value of `done` at the end.
    pub total: u64,
    /// All requested checkpoints, oldest first; set when finished.
    pub checkpoints: Vec<DuOne>,
    /// Bytes that freeing all checkpoints would free, whatever was requested.
    pub history_bytes: u64,
    /// Bytes of versions shared with other files: live ones or other projects. Each byte counts
    /// once.
    #[serde(default)]
    pub outside_bytes: u64,
    /// Bytes that no checkpoint needs; `gc` frees them.
    pub unneeded_bytes: u64,
}

// A run of `du`, `gc` or `dedup` cannot continue in the next daemon.

impl Verb for DuOptions {
    type Answer = DuReport;
    fn only_asks(&self) -> bool {
        self.run.is_none()
    }
}
