//! Who changed what: the requests [`super::CompareByProcess`] and [`OnlyBy`], and what they answer.

use serde::{Deserialize, Serialize};

use super::{Change, Restored, StateName, TreePath, is_among};

/// A process that changed something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its id, as the daemon sees it; 0 if it is not known.
    pub pid: u32,
    /// When it started, in clock ticks since boot: with `pid` it names one process. 0 if it is not
    /// known.
    pub start: u64,
    /// User id.
    pub uid: u32,
    /// The process that it was a child of.
    pub parent: u32,
    /// Its session.
    pub session: u32,
    /// Its name, at most 15 bytes; empty if it is not known.
    pub name: String,
    /// Other names that it had later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Its control group; empty if it is not known.
    pub cgroup: String,
    /// Number of paths that it changed, alone or with others.
    #[serde(default)]
    pub paths: u64,
}

/// One path that differs, and who changed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeBy {
    /// What differs.
    #[serde(flatten)]
    pub change: Change,
    /// Who: places in [`ByProcess::processes`]. Empty if nobody knows.
    pub by: Vec<usize>,
    /// There were more than can be told apart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub others: bool,
}

/// What differs, by process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByProcess {
    /// Everybody who changed something that still differs.
    pub processes: Vec<ProcessInfo>,
    /// What differs, sorted by path.
    pub changes: Vec<ChangeBy>,
}

/// What the process of `ckptfs rewind` is called: see [`OnlyBy::past_rewinds`].
pub const REWIND_PROCESS: &str = "ckptfs-rewind";
/// What that of `ckptfs undo` is called.
pub const UNDO_PROCESS: &str = "ckptfs-undo";

/// Which changes are to be taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyBy {
    /// What is to be restored; the newest checkpoint if not given.
    pub to: Option<StateName>,
    /// Whose: a process id, several as `PID@START` with commas between them, the path of a control
    /// group, or a name.
    pub who: String,
    /// Only what is at or below these paths; empty: everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<TreePath>,
    /// Also what others have changed too.
    pub also_shared: bool,
    /// What `ckptfs rewind` and `ckptfs undo` did to a path does not make it another's: one that
    /// they put back is the writer's still.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub past_rewinds: bool,
    /// Only what processes changed that have changed things for this user and nobody else: `who` may
    /// be what that user said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_user: Option<u32>,
    /// Only tell what would change.
    pub dry_run: bool,
    /// As of a restore of some paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<super::Times>,
}

impl OnlyBy {
    /// Whether a path is among those that were asked for.
    pub fn takes(&self, path: &[u8]) -> bool {
        is_among(path, &self.paths)
    }
}

/// A path that stays although the process changed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedPath {
    /// The path.
    pub path: TreePath,
    /// Who else changed it; empty: it cannot be taken back without something below it, or beside
    /// it, that others changed.
    pub by: Vec<String>,
}

/// What was taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredOnly {
    /// As of any restore.
    #[serde(flatten)]
    pub restored: Restored,
    /// What stays although the process changed it.
    pub shared: Vec<SharedPath>,
}

/// A file that was open for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Its path.
    pub path: TreePath,
    /// Who had it open.
    pub by: ProcessInfo,
}

/// What was open for writing when a checkpoint was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAtCut {
    /// Each file, with who had it open.
    pub files: Vec<OpenFile>,
    /// How many more there were.
    #[serde(default)]
    pub more: u64,
}
