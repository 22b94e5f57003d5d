//! What is asked of the radar, and what it answers.

use serde::{Deserialize, Serialize};

use crate::engine::api::{ChangeKind, TreePath};
use crate::engine::merge::MergeConflict;

/// What more than one tree has touched: the open branches of this one, and itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListConflicts {
    /// Tell of each two what would clash in a merge, as a dry run does: what both touched is read.
    #[serde(default)]
    pub check: bool,
}

/// A file, or a path, that more than one has touched since they had it in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Its path in the base; of what was not there, the path that each has given to something.
    pub path: TreePath,
    /// The inode, by the number that it has here and in every branch that has it from here; absent
    /// where several have something new at one path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// The branches that touched it, sorted.
    pub branches: Vec<String>,
    /// This tree touched it too, since the base of one of them.
    pub parent: bool,
    /// What each of them did.
    pub touched: Vec<Touch>,
    /// What of it would clash if one was merged into the other, of each two; empty: all of it comes
    /// together. Absent if that was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clashes: Option<Vec<Clash>>,
}

/// What one of them did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// The branch; absent: this tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The path that it has there; of what was deleted, the one that it had.
    pub path: TreePath,
    /// The path that it had there, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<TreePath>,
    /// What happened to it.
    pub change: ChangeKind,
}

/// What would clash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clash {
    /// The branch that would be merged into; absent: this tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<String>,
    /// The branch that would be merged.
    pub theirs: String,
    /// What `merge` would tell.
    #[serde(flatten)]
    pub conflict: MergeConflict,
}

/// Waits until what [`ListConflicts`] answers is not what it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchConflicts {
    /// What was seen last; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Stands for all conflicts that there are: the next [`WatchConflicts::seen`].
    pub seen: String,
    /// All of them; absent if nothing has changed for a while, which is told so that whoever waits
    /// knows that the daemon is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflicts: Option<Vec<Conflict>>,
}
