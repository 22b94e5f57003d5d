//! Deduplication.

use serde::{Deserialize, Serialize};

use crate::change::Count;
use crate::tree_path::TreePath;
use crate::verb::Verb;
/// Options of `dedup`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupOptions {
    /// Only report what would be shared.
    #[serde(default)]
    pub dry_run: bool,
    /// Include live files.
    #[serde(default)]
    pub live: bool,
    /// Number of hashing threads; 0 means one.
    #[serde(default)]
    pub threads: usize,
    /// Skip files of fewer bytes.
    #[serde(default)]
    pub min_size: u64,
    /// Hash files of unique size also, and keep the finished run.
    #[serde(default)]
    pub keep: bool,
    /// Continue the run with this number, from an earlier reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// Return the contents of a kept run from this number on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<u64>,
    /// Return read-only descriptors of these files of a kept run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<u64>,
}

/// Reason to exclude a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExcludeReason {
    /// Smaller than requested.
    TooSmall,
    /// Its content does not match its hash: it has changed, or never did.
    Differs,
    /// Deleted since the run began.
    Gone,
    /// Opening or sharing is not permitted.
    NotPermitted,
    /// Unreadable.
    Unreadable,
    /// On another filesystem.
    OtherFilesystem,
    /// The filesystem cannot share its extents.
    NoReflink,
    /// Open for writing but unchanged so far; its extents are needed to detect a change.
    InUse,
    /// The shared file has reached the limit of hard links.
    TooManyLinks,
}

/// An excluded file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedFile {
    /// Path in the tree, or of the object in `.ckptfs`.
    pub path: TreePath,
    /// A captured version.
    pub captured: bool,
    /// The reason.
    pub why: ExcludeReason,
    /// The system's error message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Stage of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DedupStage {
    /// Lists files.
    #[default]
    Listing,
    /// Hashes; progress in bytes.
    Hashing,
    /// Shares extents; progress in files.
    Sharing,
}

/// A file of a finished run that others can share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Number in the run.
    pub number: u64,
    /// Size in bytes.
    pub size: u64,
    /// BLAKE3, in hexadecimal.
    pub hash: String,
    /// Path in the tree, or of the object in `.ckptfs`.
    pub path: TreePath,
    /// A captured version.
    pub captured: bool,
}

impl Content {
    /// Returns the content with this hash.
    pub fn new(number: u64, size: u64, hash: &[u8; 32], path: TreePath, captured: bool) -> Content {
        Content {
            number,
            size,
            hash: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            path,
            captured,
        }
    }
}

/// Result of a run or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupReport {
    /// Number of the run; repeat the request with it until `finished`.
    pub run: u64,
    /// The run is complete.
    pub finished: bool,
    /// Current stage.
    pub stage: DedupStage,
    /// Progress of the stage.
    pub done: u64,
    /// Value of `done` at its end.
    pub total: u64,
    /// This was a dry run.
    pub dry_run: bool,
    /// Captured versions examined.
    pub captured: Count,
    /// Live files examined.
    pub live: Count,
    /// Files read for hashing.
    pub hashed: Count,
    /// Files with unique content.
    pub unique: Count,
    /// Files whose extents the others share.
    pub sources: Count,
    /// Files that shared them before.
    pub already: Count,
    /// Files that share them now.
    pub shared: Count,
    /// Those that became hard links, where extents cannot be shared.
    pub linked: Count,
    /// Bytes freed, unless other files share them.
    pub freed_bytes: u64,
    /// Number of excluded files by reason.
    pub left: std::collections::BTreeMap<ExcludeReason, u64>,
    /// Excluded files not yet reported by an earlier part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<ExcludedFile>,
    /// Reply to `contents`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Content>,
    /// Reply to `files`: the numbers whose descriptors were passed, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<u64>,
}

impl Verb for DedupOptions {
    type Answer = DedupReport;
    fn only_asks(&self) -> bool {
        self.run.is_none()
    }
}
