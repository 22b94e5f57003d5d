//! Versions of a path.

use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointInfo;
use crate::tree_path::TreePath;
use crate::verb::Verb;
/// The difference between a version of a path and the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VersionKind {
    /// The path was created.
    #[serde(rename = "A")]
    Added,
    /// The path changed; for a directory, a path below it did.
    #[serde(rename = "M")]
    Modified,
    /// The path was deleted.
    #[serde(rename = "D")]
    Deleted,
    /// The path has another file type.
    #[serde(rename = "T")]
    TypeChanged,
    /// The path was changed while nothing was mounted; details are unknown.
    #[serde(rename = "?")]
    Unknown,
}

/// A version of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionInfo {
    /// The first checkpoint with this version; `None`: only the live tree has it.
    pub checkpoint: Option<CheckpointInfo>,
    /// The difference from the previous version.
    pub change: VersionKind,
    /// File type; `None` if the path is missing or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ckptfs_sys::Kind>,
    /// Size of a regular file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Time of the last modification of its content: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
}

/// Lists all versions of a path in checkpoints and the live tree, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListVersions {
    /// The path.
    pub path: TreePath,
}

impl Verb for ListVersions {
    type Answer = Vec<VersionInfo>;
    const ONLY_ASKS: bool = true;
}
