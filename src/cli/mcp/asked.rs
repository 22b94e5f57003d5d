//! What is asked of the tools. The comments are what an agent reads of each argument; an argument
//! that is not known is refused, for `dry-run: true` would do the opposite of what was meant.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use crate::engine::api::MergePolicy;

/// How many changes, checkpoints and the like are told if nothing is said, and at most.
pub const LIMIT: usize = 200;
pub const LIMIT_MAX: usize = 2000;
/// How many bytes of a file or a patch are told if nothing is said, and at most.
pub const BYTES: usize = 64 << 10;
pub const BYTES_MAX: usize = 256 << 10;

/// `limit`, within bounds.
pub fn limit(asked: Option<u32>) -> usize {
    bounded(asked, LIMIT, LIMIT_MAX)
}

/// `max_bytes`, within bounds.
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
    /// At most so many changed paths; 200 if not given, 2000 at most
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// A note to remember it by
    #[serde(default)]
    pub message: String,
    /// Names for it, such as "before-refactor"
    #[serde(default)]
    pub tags: Vec<String>,
    /// Make none if nothing has changed since the newest one, which is the answer then
    #[serde(default)]
    pub if_changed: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// At most so many checkpoints, the newest; 200 if not given, 2000 at most
    pub limit: Option<u32>,
    /// Only those older than this one (a number or a tag): the next page
    pub before: Option<String>,
    /// Only those that changed something at or below this path
    pub path: Option<String>,
    /// Only those with a tag like this; * stands for anything
    pub tag: Option<String>,
    /// Only those whose note contains this text, in whatever case
    pub note: Option<String>,
    /// Only those made then or later: "10min ago", "yesterday", or RFC 3339
    pub since: Option<String>,
    /// Only those made then or before
    pub until: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Diff {
    /// The older state: a checkpoint's number, a tag, "latest", "@{10min ago}"; "latest" if not given
    pub from: Option<String>,
    /// The newer state; the tree as it is now ("live") if not given
    pub to: Option<String>,
    /// Only what is at or below these paths; everything if empty
    #[serde(default)]
    pub paths: Vec<String>,
    /// Also answer with a patch in git's format, which is cut where it gets too long
    #[serde(default)]
    pub patch: bool,
    /// At most so many changed paths; 200 if not given, 2000 at most
    pub limit: Option<u32>,
    /// At most so many bytes of the patch; 65536 if not given, 262144 at most
    pub max_bytes: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadPast {
    /// The state to read from: a checkpoint's number, a tag, "latest", "@{10min ago}"
    pub checkpoint: String,
    /// The file
    pub path: String,
    /// Begin at this byte; 0 if not given
    #[serde(default)]
    pub offset: u64,
    /// At most so many bytes; 65536 if not given, 262144 at most
    pub max_bytes: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindVersion {
    /// The file or directory, which need not exist any more
    pub path: String,
    /// Say of each version whether it has this text in it
    pub containing: Option<String>,
    /// At most so many versions, the newest; 200 if not given, 2000 at most
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// What to go back to: a checkpoint's number, a whole tag, "latest", "@{10min ago}". If it is not
    /// given, what you changed since the newest checkpoint is taken back
    pub to: Option<String>,
    /// Only these paths, and what is below them; everything if empty
    #[serde(default)]
    pub paths: Vec<String>,
    /// Take back only what you have changed: the process that started this server, and its children.
    /// What others changed stays, and what both changed stays and is named. With false, everybody's
    /// changes are taken back
    #[serde(default = "yes")]
    pub only_by_me: bool,
    /// Only tell what would change
    #[serde(default)]
    pub dry_run: bool,
    /// At most so many changed paths in the answer; 200 if not given, 2000 at most
    pub limit: Option<u32>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Undo {
    /// How many operations, the newest first; 1 if not given
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub count: u32,
    /// Only show what would be undone
    #[serde(default)]
    pub dry_run: bool,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchCreate {
    /// What it is to be called: letters, digits, _ . and -, 64 at most
    pub name: String,
    /// The checkpoint that it begins as; the tree as it is now if not given
    pub at: Option<String>,
    /// Only tell what would be made
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchConflicts {
    /// Tell also what would clash in a merge, which reads what both changed
    #[serde(default)]
    pub check: bool,
    /// At most so many; 200 if not given, 2000 at most
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchMerge {
    /// The branch
    pub name: String,
    /// Only what is at or below these paths; everything if empty
    #[serde(default)]
    pub paths: Vec<String>,
    /// What becomes of what both sides changed. Without it nothing is changed if there is any such
    pub conflicts: Option<Policy>,
    /// Only tell what would change, and what clashes
    #[serde(default)]
    pub dry_run: bool,
    /// At most so many changed paths in the answer; 200 if not given, 2000 at most
    pub limit: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// It stays as it is in this tree
    Ours,
    /// It becomes what it is in the branch
    Theirs,
    /// Both versions of the lines, marked as git marks them
    Markers,
    /// The branch's version comes beside ours, as NAME.BRANCH
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
    /// The branch
    pub name: String,
    /// Only tell what would go
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}
