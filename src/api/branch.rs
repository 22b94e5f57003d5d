//! Branches.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::checkpoint::StateName;
use crate::ids::CheckpointId;
use crate::merge::MergeBase;
use crate::tree_path::{TreePath, host_path};
use crate::verb::Verb;
/// Creates a branch and mounts it. On return the branch survives `kill -9`. It is synced in the
/// background, before its first change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateBranch {
    /// Its name: 1 to 64 letters, digits, `_`, `.` and `-`.
    pub name: String,
    /// The checkpoint that it begins as; absent: one that is created now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<StateName>,
    /// Its directory: absolute, without symbolic links, empty, owned by the requester.
    #[serde(with = "host_path")]
    pub path: PathBuf,
    /// The directory may contain a file `.git`, which replaces that of the base in the branch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub git: bool,
    /// Only check whether it could be created; the directory need not exist.
    #[serde(default)]
    pub dry_run: bool,
}

/// A branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchInfo {
    /// Its name.
    pub name: String,
    /// Its path.
    #[serde(with = "host_path")]
    pub path: PathBuf,
    /// The checkpoint of the parent that it began as; absent: one that would be created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<CheckpointId>,
    /// The merge base, if it is not `base` because of an update or merge. Present only if mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_base: Option<MergeBase>,
    /// The branch's own checkpoint that equals the base; absent while it is being created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<CheckpointId>,
    /// Its time of creation: RFC 3339, UTC.
    pub created: String,
    /// It is mounted.
    pub mounted: bool,
    /// It was dropped, and can be restored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropped: bool,
    /// Number of changed paths since, without directories in which only entries changed; absent if
    /// it is not mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<u64>,
    /// Number of unmerged paths: a merge would change them here, or they conflict. Absent unless
    /// requested, or if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmerged: Option<u64>,
    /// Bytes used by its files and its history as counted by du(1), which includes data shared with
    /// its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The problem of a branch that is not in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The request was a dry run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

impl Verb for CreateBranch {
    type Answer = BranchInfo;
    fn only_asks(&self) -> bool {
        self.dry_run
    }
}

/// Lists all branches by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListBranches {
    /// Only those in the trash.
    #[serde(default)]
    pub dropped: bool,
    /// Count the changed paths and the bytes used.
    #[serde(default)]
    pub counted: bool,
    /// Count the unmerged paths.
    #[serde(default)]
    pub unmerged: bool,
}

impl Verb for ListBranches {
    type Answer = Vec<BranchInfo>;
    const ONLY_ASKS: bool = true;
}

/// Lists the changes of a branch since its merge base, sorted by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffBranch {
    /// The name of the branch.
    pub name: String,
}

impl Verb for DiffBranch {
    type Answer = Vec<Change>;
    const ONLY_ASKS: bool = true;
}

/// Mounts a branch whose mount has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountBranch {
    /// The name of the branch.
    pub name: String,
}

impl Verb for MountBranch {
    type Answer = BranchInfo;
}

/// Unmounts a branch and moves it to the trash, from which it can be restored until `gc`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropBranch {
    /// The name of the branch.
    pub name: String,
    /// Even if it is in use.
    #[serde(default)]
    pub force: bool,
    /// Only report the effect.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of a drop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedBranch {
    /// The branch.
    pub branch: BranchInfo,
    /// The first of its changed paths.
    pub changed: Vec<TreePath>,
    /// The first of its unmerged paths.
    #[serde(default)]
    pub unmerged: Vec<TreePath>,
    /// The request was a dry run.
    pub dry_run: bool,
}

impl Verb for DropBranch {
    type Answer = DroppedBranch;
    fn only_asks(&self) -> bool {
        self.dry_run
    }
}

/// Permanently removes all dropped branches of this name: they release their bases, and their files
/// are removed on return. Succeeds if none exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeBranch {
    /// The name of the branches.
    pub name: String,
}

impl Verb for FreeBranch {
    type Answer = ();
}

/// Restores a dropped branch to its former path, and mounts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReviveBranch {
    /// The name; of several dropped branches, the one that was created last.
    pub name: String,
}

impl Verb for ReviveBranch {
    type Answer = BranchInfo;
}
