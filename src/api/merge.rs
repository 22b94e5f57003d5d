//! Requests and answers of `merge`.

use crate::change::Change;
use crate::checkpoint::StateName;
use crate::ids::CheckpointId;
use crate::restore::Times;
use crate::tree_path::TreePath;
use crate::verb::Verb;
use serde::{Deserialize, Serialize};

/// The resolution of conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergePolicy {
    /// Keep the version of the live tree.
    Ours,
    /// Use the version of the other side, including removals.
    Theirs,
    /// Write both versions of the lines of a text file, with conflict markers. Other conflicts
    /// remain.
    Markers,
    /// Keep the version of the live tree, and add the other one as `NAME.WHAT`. Conflicts that two
    /// files cannot resolve remain.
    KeepBoth,
}

/// A merge into the live tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// The name of a branch; with `base` a checkpoint of this tree.
    pub what: String,
    /// The merge base, a checkpoint of this tree, if no branch is merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<StateName>,
    /// Restricts the merge to these paths and everything below them, in any of the three states;
    /// empty: everything.
    #[serde(default)]
    pub paths: Vec<TreePath>,
    /// The resolution of conflicts. Without one, a merge with conflicts changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<MergePolicy>,
    /// Whether changed files get their original times; default [`Times::Now`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
    /// Merged content of conflicting files, which overrides the policy. If the content of one of
    /// these files has changed since, the merge changes nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<MergeAnswer>,
    /// Only report changes and conflicts.
    #[serde(default)]
    pub dry_run: bool,
}

/// The merged content of a conflicting file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeAnswer {
    /// The path in the live tree.
    pub path: TreePath,
    /// The BLAKE3 hashes, in hexadecimal, of the content in the base, the live tree and the other
    /// side.
    pub of: [String; 3],
    /// The merged content: bytes, in JSON encoded like a path.
    pub content: TreePath,
}

/// Requests the three versions of files with content conflicts, for a merge tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeVersions {
    /// The merge.
    pub merge: Merge,
    /// Only files after this path; an answer has a limited size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<TreePath>,
}

/// A file with a content conflict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeVersion {
    /// The path in the live tree.
    pub path: TreePath,
    /// The content in the base, the live tree and the other side: bytes, in JSON encoded like a
    /// path.
    pub versions: [TreePath; 3],
}

/// A side of the merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeSide {
    /// The live tree.
    Ours,
    /// The tree that is merged into it.
    Theirs,
}

/// The kind of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictKind {
    /// Both sides moved it, to different places.
    Moved,
    /// Side `by` removed it, and the other one moved or changed it.
    Removed,
    /// Both sides have a different inode at this name.
    Name,
    /// It is in a directory that `by` removed.
    Directory,
    /// Each of two directories was moved into the other.
    Cycle,
    /// The bytes of a file, or the target of a symbolic link.
    Content,
    /// The permissions.
    Mode,
    /// The owner or the group.
    Owner,
    /// The extended attribute `xattr`.
    Xattr,
}

/// A conflict: both sides changed the same thing differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeConflict {
    /// The path in the live tree, else on the other side, else in the base.
    pub path: TreePath,
    /// The kind of the conflict.
    pub what: ConflictKind,
    /// The side that removed it, or the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<MergeSide>,
    /// The extended attribute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattr: Option<TreePath>,
    /// The policy or a [`MergeAnswer`] resolves it.
    pub settled: bool,
    /// The file gets both versions of the lines, with conflict markers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marked: bool,
    /// In a dry run with `--tool`: the tool would be run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tool: bool,
}

/// The newest common state of a branch and its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeBase {
    /// A checkpoint of the parent, unless `of_branch` is set.
    pub checkpoint: CheckpointId,
    /// The checkpoint is that of the branch which was last merged into the parent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_branch: bool,
}

/// Merges the changes of the parent into a branch. See [`Merge`]; `theirs` is the parent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateBranch {
    /// The name of the branch.
    pub name: String,
    /// The checkpoint of the parent to merge; absent: one that is created now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<StateName>,
    /// The resolution of conflicts. Without one, an update with conflicts changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<MergePolicy>,
    /// Whether changed files get their original times; default [`Times::Now`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
    /// Only report changes and conflicts.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of a merge or a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// The name of the merged branch or checkpoint.
    pub what: String,
    /// The merge base, a checkpoint of this tree or of the parent of a branch.
    pub base: CheckpointId,
    /// The merge base is a checkpoint of the branch instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub base_of_branch: bool,
    /// The merged checkpoint; of a branch, the one created for the merge. Absent in a dry run of a
    /// branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<CheckpointId>,
    /// The guard checkpoint; absent if the merge changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// The changes of the live tree, sorted by path.
    pub changes: Vec<Change>,
    /// The conflicts, sorted by path.
    pub conflicts: Vec<MergeConflict>,
    /// The operation of the earlier merge, if no changes were left to merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged_by: Option<u64>,
    /// Unresolved conflicts prevented the merge: it changed nothing.
    pub refused: bool,
    /// The request was a dry run.
    #[serde(default)]
    pub dry_run: bool,
    /// Time in the daemon, microseconds.
    pub duration_us: u64,
}

impl Verb for Merge {
    type Answer = Merged;
    fn only_asks(&self) -> bool {
        self.dry_run
    }
}

impl Verb for MergeVersions {
    type Answer = Vec<MergeVersion>;
    const ONLY_ASKS: bool = true;
}

impl Verb for UpdateBranch {
    type Answer = Merged;
    fn only_asks(&self) -> bool {
        self.dry_run
    }
}
