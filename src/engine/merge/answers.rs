//! What `merge` asks and answers.

use serde::{Deserialize, Serialize};

use crate::engine::api::{Change, StateName, Times, TreePath};
use crate::store::ids::CheckpointId;

/// What comes of what both sides changed, each in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergePolicy {
    /// It stays as it is here.
    Ours,
    /// It becomes what it is there: also where that has removed it.
    Theirs,
    /// Both versions of the lines of a text, marked. What else clashes stays a conflict.
    Markers,
    /// What is here stays, and what is there comes beside it as `NAME.WHAT`. What has no place
    /// beside another thing stays a conflict.
    KeepBoth,
}

/// What is to be merged into the live tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// The name of a branch; with `base` a checkpoint of this tree.
    pub what: String,
    /// The checkpoint of this tree that both sides come from, if no branch is merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<StateName>,
    /// Only what is at or below these paths in one of the three; empty: everything.
    #[serde(default)]
    pub paths: Vec<TreePath>,
    /// What comes of conflicts; without it nothing is changed if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<MergePolicy>,
    /// Which time files get that are changed; [`Times::Now`] if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
    /// What is to come of the content of files that clash, whatever the policy. If one of them holds
    /// something else than this was found for, nothing is changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<MergeAnswer>,
    /// Only tell what would change, and what clashes.
    #[serde(default)]
    pub dry_run: bool,
}

/// What is to come of the content of a file that clashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeAnswer {
    /// The path here.
    pub path: TreePath,
    /// The BLAKE3 hashes, in hexadecimal digits, of what it holds in the base, here and there.
    pub of: [String; 3],
    /// What it shall hold: bytes, in JSON as those of a path.
    pub content: TreePath,
}

/// The three versions of files whose content clashes, for a program that merges them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeVersions {
    /// The merge.
    pub merge: Merge,
    /// Only of files behind this path: an answer has as many as fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<TreePath>,
}

/// A file whose content clashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeVersion {
    /// The path here.
    pub path: TreePath,
    /// What it holds in the base, here and there: bytes, in JSON as those of a path.
    pub versions: [TreePath; 3],
}

/// One of two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeSide {
    /// The live tree.
    Ours,
    /// What is merged into it.
    Theirs,
}

/// What kind of conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictKind {
    /// Both moved it, to different places.
    Moved,
    /// `by` removed it, and the other one moved or changed it.
    Removed,
    /// Each has something else at this name.
    Name,
    /// It is in a directory that `by` removed.
    Directory,
    /// Each of two directories was moved into the other.
    Cycle,
    /// The bytes of a file, or where a symbolic link leads.
    Content,
    /// The permissions.
    Mode,
    /// The owner or the group.
    Owner,
    /// The extended attribute `xattr`.
    Xattr,
}

/// Something that both sides changed, each in another way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeConflict {
    /// Its path here; if it has none, there; else in the base.
    pub path: TreePath,
    /// What clashes.
    pub what: ConflictKind,
    /// The side that removed it, or the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<MergeSide>,
    /// The extended attribute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattr: Option<TreePath>,
    /// The policy, or an answer, says what comes of it.
    pub settled: bool,
    /// The file gets both versions of the lines, with conflict markers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marked: bool,
    /// In a dry run with `--tool`: it would be asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tool: bool,
}

/// The newest state that a branch and its parent both come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeBase {
    /// A checkpoint of the parent, unless the next says otherwise.
    pub checkpoint: CheckpointId,
    /// It is a checkpoint of the branch: what was merged into the parent last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_branch: bool,
}

/// Brings what its parent did into a branch. See [`Merge`], of which `theirs` is the parent then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateBranch {
    /// Which.
    pub name: String,
    /// The checkpoint of the parent that comes; absent: one that is made now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<StateName>,
    /// What comes of conflicts; without it nothing is changed if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<MergePolicy>,
    /// Which time files get that are changed; [`Times::Now`] if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
    /// Only tell what would change, and what clashes.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a merge did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// What was merged.
    pub what: String,
    /// The checkpoint of this tree, or of the parent of a branch, that both sides come from.
    pub base: CheckpointId,
    /// The base is a checkpoint of the branch instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub base_of_branch: bool,
    /// The checkpoint that was merged: of a branch one of its own, made for it; absent in a dry run
    /// of a branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<CheckpointId>,
    /// The checkpoint of what was there before; absent if nothing was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// What changed in the live tree, or would, sorted by path.
    pub changes: Vec<Change>,
    /// What clashes, sorted by path.
    pub conflicts: Vec<MergeConflict>,
    /// The operation that merged it before, if there is nothing to merge since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged_by: Option<u64>,
    /// Conflicts are left that nothing was said of, so nothing was changed, or would be.
    pub refused: bool,
    /// It was only asked what would change.
    #[serde(default)]
    pub dry_run: bool,
    /// Time in the daemon, microseconds.
    pub duration_us: u64,
}
