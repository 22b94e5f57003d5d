//! Attribution of changes: the requests [`super::CompareByProcess`] and [`OnlyBy`], and their
//! replies.

use crate::change::Change;
use crate::checkpoint::StateName;
use crate::restore::Restored;
use crate::tree_path::{TreePath, is_among};
use crate::verb::Verb;
use serde::{Deserialize, Serialize};

/// A process that changed a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Process id in the daemon's PID namespace; 0 if unknown.
    pub pid: u32,
    /// Start time in clock ticks since boot: with `pid` it identifies a process. 0 if unknown.
    pub start: u64,
    /// User id.
    pub uid: u32,
    /// Parent process id.
    pub parent: u32,
    /// Session id.
    pub session: u32,
    /// Command name, up to 15 bytes; empty if unknown.
    pub name: String,
    /// Later command names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Control group; empty if unknown.
    pub cgroup: String,
    /// Number of paths that it changed, alone or with others.
    #[serde(default)]
    pub paths: u64,
}

/// A path that differs, with its writers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeBy {
    /// The difference.
    #[serde(flatten)]
    pub change: Change,
    /// Writers: indexes into [`ByProcess::processes`]. Empty if unknown.
    pub by: Vec<usize>,
    /// More writers exist than were recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub others: bool,
}

/// Differences by process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByProcess {
    /// All writers of paths that still differ.
    pub processes: Vec<ProcessInfo>,
    /// Differences, sorted by path.
    pub changes: Vec<ChangeBy>,
}

/// Command name of the `ckptfs rewind` process: see [`OnlyBy::past_rewinds`].
pub const REWIND_PROCESS: &str = "ckptfs-rewind";
/// Command name of the `ckptfs undo` process.
pub const UNDO_PROCESS: &str = "ckptfs-undo";

/// Options of a selective restore: the changes of some processes only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyBy {
    /// State to restore; defaults to the base.
    pub to: Option<StateName>,
    /// Writer: a process id, several as `PID@START` separated by commas, the path of a control
    /// group, or a command name.
    pub who: String,
    /// Restrict the restore to these paths and everything below; empty: everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<TreePath>,
    /// Include paths that other processes also changed.
    pub also_shared: bool,
    /// Ignore changes made by `ckptfs rewind` and `ckptfs undo`: a path that they put back still
    /// belongs to its writer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub past_rewinds: bool,
    /// Restrict the writers to processes that only made changes as this user, because `who` may be
    /// user-supplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_user: Option<u32>,
    /// Only report the changes.
    pub dry_run: bool,
    /// Modification times, as in a restore of some paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<super::Times>,
}

impl OnlyBy {
    /// Returns whether a path is selected.
    pub fn takes(&self, path: &[u8]) -> bool {
        is_among(path, &self.paths)
    }
}

/// A path that was not restored although the process changed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedPath {
    /// The path.
    pub path: TreePath,
    /// Its other writers; empty: restoring it requires another path, below it or related by rename
    /// or link, that others changed.
    pub by: Vec<String>,
}

/// Result of a selective restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredOnly {
    /// The result of the restore.
    #[serde(flatten)]
    pub restored: Restored,
    /// Paths that were not restored although the process changed them.
    pub shared: Vec<SharedPath>,
}

/// A file that was open for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Its path.
    pub path: TreePath,
    /// The process that had it open.
    pub by: ProcessInfo,
}

/// Files that were open for writing when a checkpoint was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAtCut {
    /// Each file with the process that had it open.
    pub files: Vec<OpenFile>,
    /// Number of further files.
    #[serde(default)]
    pub more: u64,
}

/// Compares two states, with the processes that made the changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareByProcess {
    /// The older state; defaults to the base.
    pub from: Option<StateName>,
    /// The newer state; defaults to the live tree.
    pub to: Option<StateName>,
}

impl Verb for CompareByProcess {
    type Answer = ByProcess;
    const ONLY_ASKS: bool = true;
}

impl Verb for OnlyBy {
    type Answer = RestoredOnly;
    fn only_asks(&self) -> bool {
        self.dry_run
    }
}
