//! Arguments of the tools. The doc comments are the descriptions that an agent reads. Unknown
//! arguments are rejected, because ignoring `dry-run: true` would do the opposite of the intention.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use ckptfs_api::MergePolicy;

/// Default and maximum number of listed items, such as changes and checkpoints.
pub const LIMIT: usize = 200;
pub const LIMIT_MAX: usize = 2000;
/// Default and maximum number of bytes of a file or patch.
pub const BYTES: usize = 64 << 10;
pub const BYTES_MAX: usize = 256 << 10;

/// Returns `limit` within its bounds.
pub fn limit(asked: Option<u32>) -> usize {
    bounded(asked, LIMIT, LIMIT_MAX)
}

/// Returns `max_bytes` within its bounds.
pub fn bytes(asked: Option<u32>) -> usize {
    bounded(asked, BYTES, BYTES_MAX)
}

fn bounded(asked: Option<u32>, usual: usize, max: usize) -> usize {
    asked.map_or(usual, |asked| {
        usize::try_from(asked).unwrap_or(max).clamp(1, max)
    })
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// Maximum number of changed paths (default 200, at most 2000)
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Note that describes the checkpoint
    #[serde(default)]
    pub message: String,
    /// Tags of the checkpoint, such as "before-refactor"
    #[serde(default)]
    pub tags: Vec<String>,
    /// Make no checkpoint if nothing has changed since the newest one; return that one
    #[serde(default)]
    pub if_changed: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Maximum number of checkpoints, newest first (default 200, at most 2000)
    pub limit: Option<u32>,
    /// Only checkpoints older than this one (number or tag), to get the next page
    pub before: Option<String>,
    /// Only checkpoints that changed something at or below this path
    pub path: Option<String>,
    /// Only checkpoints with a matching tag; * matches any string
    pub tag: Option<String>,
    /// Only checkpoints whose note contains this text, ignoring case
    pub note: Option<String>,
    /// Only checkpoints made at or after this time: "10min ago", "yesterday", or RFC 3339
    pub since: Option<String>,
    /// Only checkpoints made at or before this time
    pub until: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Diff {
    /// Older state: a checkpoint number, a tag, "latest" or "@{10min ago}" (default "latest")
    pub from: Option<String>,
    /// Newer state (default "live", the current tree)
    pub to: Option<String>,
    /// Only changes at or below these paths (default all)
    #[serde(default)]
    pub paths: Vec<String>,
    /// Also return a patch in git's format, truncated if it is too long
    #[serde(default)]
    pub patch: bool,
    /// Maximum number of changed paths (default 200, at most 2000)
    pub limit: Option<u32>,
    /// Maximum size of the patch in bytes (default 65536, at most 262144)
    pub max_bytes: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadPast {
    /// State to read from: a checkpoint number, a tag, "latest" or "@{10min ago}"
    pub checkpoint: String,
    /// Path of the file
    pub path: String,
    /// Offset of the first byte (default 0)
    #[serde(default)]
    pub offset: u64,
    /// Maximum number of bytes (default 65536, at most 262144)
    pub max_bytes: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindVersion {
    /// File or directory, which may have been deleted
    pub path: String,
    /// Report for each version whether it contains this text
    pub containing: Option<String>,
    /// Maximum number of versions, newest first (default 200, at most 2000)
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// State to restore: a checkpoint number, a whole tag, "latest" or "@{10min ago}". By default,
    /// your changes since the newest checkpoint are reverted
    pub to: Option<String>,
    /// Only these paths and everything below them (default all)
    #[serde(default)]
    pub paths: Vec<String>,
    /// Revert only your own changes: those of the process that started this server and of its
    /// children. Changes of others stay. A path that you and others changed also stays, and the
    /// answer lists it. With false, the changes of all processes are reverted
    #[serde(default = "yes")]
    pub only_by_me: bool,
    /// Only report the changes
    #[serde(default)]
    pub dry_run: bool,
    /// Maximum number of changed paths in the answer (default 200, at most 2000)
    pub limit: Option<u32>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Undo {
    /// Number of operations to undo, newest first (default 1)
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub count: u32,
    /// Only report the operations to undo
    #[serde(default)]
    pub dry_run: bool,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchCreate {
    /// Name of the branch: up to 64 letters, digits, _ . and -
    pub name: String,
    /// Base checkpoint (default: the current tree)
    pub at: Option<String>,
    /// Only report the branch to be made
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchConflicts {
    /// Also report the conflicts of a merge, which requires reading the content that both sides
    /// changed
    #[serde(default)]
    pub check: bool,
    /// Maximum number of paths (default 200, at most 2000)
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchMerge {
    /// Name of the branch
    pub name: String,
    /// Only changes at or below these paths (default all)
    #[serde(default)]
    pub paths: Vec<String>,
    /// Resolution of conflicts. Without it, a merge with conflicts changes nothing
    pub conflicts: Option<Policy>,
    /// Only report the changes and conflicts
    #[serde(default)]
    pub dry_run: bool,
    /// Maximum number of changed paths in the answer (default 200, at most 2000)
    pub limit: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Keep the version of this tree
    Ours,
    /// Use the version of the branch
    Theirs,
    /// Write both versions of the lines, with conflict markers as in git
    Markers,
    /// Keep both versions; the branch's version is named NAME.BRANCH
    KeepBoth,
}

impl From<Policy> for MergePolicy {
    fn from(asked: Policy) -> MergePolicy {
        match asked {
            Policy::Ours => MergePolicy::Ours,
            Policy::Theirs => MergePolicy::Theirs,
            Policy::Markers => MergePolicy::Markers,
            Policy::KeepBoth => MergePolicy::KeepBoth,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchDrop {
    /// Name of the branch
    pub name: String,
    /// Only report the branch to be dropped
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}
