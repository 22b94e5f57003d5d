//! Requests and answers of the conflict radar.

use crate::change::ChangeKind;
use crate::merge::MergeConflict;
use crate::tree_path::TreePath;
use crate::verb::Verb;
use serde::{Deserialize, Serialize};

/// Requests the files that more than one tree has touched: the open branches of this one, and
/// itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListConflicts {
    /// Report the merge conflicts of each pair, as a dry run does. This reads the files that both
    /// touched.
    #[serde(default)]
    pub check: bool,
}

/// A file or path that more than one tree has touched since their common state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The path in the base; for new files, the path that they share.
    pub path: TreePath,
    /// The inode number, here and in every branch that inherits it; absent for new files at one
    /// path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// The branches that touched it, sorted.
    pub branches: Vec<String>,
    /// This tree also touched it, since the base of one of them.
    pub parent: bool,
    /// The change of each tree.
    pub touched: Vec<Touch>,
    /// The conflicts of a merge of each pair; empty: no conflicts. Absent unless requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clashes: Option<Vec<Clash>>,
}

/// The change of one tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// The branch; absent: this tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The path in that tree; of a deleted file, its former path.
    pub path: TreePath,
    /// The former path in that tree, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<TreePath>,
    /// The kind of change.
    pub change: ChangeKind,
}

/// A merge conflict between two trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clash {
    /// The branch that would be merged into; absent: this tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<String>,
    /// The branch that would be merged.
    pub theirs: String,
    /// The conflict that `merge` would report.
    #[serde(flatten)]
    pub conflict: MergeConflict,
}

/// Waits until the answer of [`ListConflicts`] changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchConflicts {
    /// The last [`Watched::seen`]; absent in the first request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
}

/// The answer of [`WatchConflicts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Identifies the current conflicts, for the next [`WatchConflicts::seen`].
    pub seen: String,
    /// All conflicts; absent after a period without changes, as a sign that the daemon is alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflicts: Option<Vec<Conflict>>,
}

impl Verb for ListConflicts {
    type Answer = Vec<Conflict>;
    const ONLY_ASKS: bool = true;
}

impl Verb for WatchConflicts {
    type Answer = Watched;
    const ONLY_ASKS: bool = true;
}
