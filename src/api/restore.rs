//! Restores.

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::checkpoint::StateName;
use crate::ids::CheckpointId;
use crate::tree_path::TreePath;
use crate::verb::Verb;
/// The modification time of files that a restore changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Times {
    /// The recorded time.
    Kept,
    /// The time of the restore: build outputs are then older than their sources and are rebuilt.
    Now,
}

impl Times {
    /// Returns the default for `None`: a restore of the whole tree also restores build outputs; one
    /// of some paths does not.
    pub fn or_default(said: Option<Times>, paths: bool) -> Times {
        said.unwrap_or(if paths { Times::Now } else { Times::Kept })
    }
}

/// Options of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreOptions {
    /// State to restore.
    pub to: StateName,
    /// Restrict the restore to these paths and everything below; empty: the whole tree.
    pub paths: Vec<TreePath>,
    /// Only report the changes.
    pub dry_run: bool,
    /// Modification times; defaults to [`Times::Now`] with paths and to [`Times::Kept`] without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
}

/// Result of a restore or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The restored checkpoint.
    pub restored: CheckpointId,
    /// The guard checkpoint; `None` in a dry run, and if the tree was already in that state.
    pub guard: Option<CheckpointId>,
    /// Changes of the live tree, sorted by path.
    pub changes: Vec<Change>,
    /// Paths changed while nothing was mounted: the checkpoint has no state of them, and they were
    /// not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<TreePath>,
    /// Paths whose content a tier has dropped: they and everything below were not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<TreePath>,
    /// Mount points, and directories above them, that the checkpoint has at another path, not at
    /// all, or with other content: they and everything below were not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounted: Vec<TreePath>,
    /// Paths that were hard links of others outside the restore, and are separate files now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<TreePath>,
    /// This was a dry run.
    pub dry_run: bool,
    /// Time in the daemon, microseconds.
    pub duration_us: u64,
}

impl Verb for RestoreOptions {
    type Answer = Restored;
    fn only_asks(&self) -> bool {
        self.dry_run
    }
}
