//! Answers of the tools: bounded summaries of the verbs' answers. The doc comments are the
//! descriptions that an agent reads.

use rmcp::schemars::{self, JsonSchema};
use serde::Serialize;

use ckptfs_api::{self as api, ChangeKind, CheckpointInfo, TreePath, VersionKind};
use ckptfs_ui::details;
use ckptfs_ui::output::escape;

/// Maximum length of a note or warning, characters.
const NOTE_CHARS_MAX: usize = 1000;
/// Maximum size of all paths in one list, bytes.
const NAMES_BYTES_MAX: usize = 128 << 10;
/// Maximum number of warnings.
const WARNINGS_MAX: usize = 20;

/// A checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Checkpoint {
    /// Its number, which identifies it in other tools
    pub id: u64,
    /// Time of creation: RFC 3339, UTC
    pub created: String,
    pub tags: Vec<String>,
    /// Its note, truncated if long
    pub note: String,
    /// Reason for the checkpoint
    pub reason: String,
    /// Whether it is protected against deletion
    pub pinned: bool,
    /// Number of paths it changed; absent: unknown
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<u64>,
}

impl From<&CheckpointInfo> for Checkpoint {
    fn from(info: &CheckpointInfo) -> Checkpoint {
        Checkpoint {
            id: info.id.0,
            created: info.created.clone(),
            tags: info.tags.clone(),
            note: beginning(&info.note, NOTE_CHARS_MAX),
            reason: details::reason(info),
            pinned: info.pinned.is_some(),
            changes: info.changes,
        }
    }
}

fn beginning(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKindLabel {
    Added,
    Modified,
    Deleted,
    Renamed,
    TypeChanged,
    /// Changed while the tree was not mounted; the kind of change is unknown
    Unknown,
}

impl From<ChangeKind> for ChangeKindLabel {
    fn from(kind: ChangeKind) -> ChangeKindLabel {
        match kind {
            ChangeKind::Added => ChangeKindLabel::Added,
            ChangeKind::Modified => ChangeKindLabel::Modified,
            ChangeKind::Deleted => ChangeKindLabel::Deleted,
            ChangeKind::Renamed => ChangeKindLabel::Renamed,
            ChangeKind::TypeChanged => ChangeKindLabel::TypeChanged,
            ChangeKind::Unknown => ChangeKindLabel::Unknown,
        }
    }
}

impl From<VersionKind> for ChangeKindLabel {
    fn from(kind: VersionKind) -> ChangeKindLabel {
        match kind {
            VersionKind::Added => ChangeKindLabel::Added,
            VersionKind::Modified => ChangeKindLabel::Modified,
            VersionKind::Deleted => ChangeKindLabel::Deleted,
            VersionKind::TypeChanged => ChangeKindLabel::TypeChanged,
            VersionKind::Unknown => ChangeKindLabel::Unknown,
        }
    }
}

/// A path that differs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Change {
    /// Path relative to the top of the tree. Control characters and invalid UTF-8 are escaped, as
    /// \n or \xff; to restore such a path, name its directory
    pub path: String,
    pub change: ChangeKindLabel,
    /// Former path of a renamed file
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Paths that differ, possibly truncated.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Changes {
    /// The first of the paths that differ, sorted
    pub changes: Vec<Change>,
    /// Number of omitted paths
    pub changes_left_out: u64,
}

impl Changes {
    /// Returns the first `limit` changes, fewer if their paths are too long.
    pub fn first(all: &[api::Change], limit: usize) -> Changes {
        let mut bytes = 0;
        let fits = |change: &&api::Change| {
            let from = change.from.as_ref().map_or(0, |from| from.0.len());
            bytes += change.path.0.len() + from;
            bytes <= NAMES_BYTES_MAX
        };
        let changes: Vec<Change> = all
            .iter()
            .take(limit)
            .take_while(fits)
            .map(change)
            .collect();
        Changes {
            changes_left_out: (all.len() - changes.len()) as u64,
            changes,
        }
    }
}

fn change(change: &api::Change) -> Change {
    Change {
        path: name(&change.path),
        change: change.change.into(),
        from: change.from.as_ref().map(name),
    }
}

/// Returns the printable form of a path.
pub fn name(path: &TreePath) -> String {
    if path.0.is_empty() {
        return ".".to_owned();
    }
    escape(&path.0)
}

/// Returns the printable form of the first `limit` paths.
pub fn names(paths: &[TreePath], limit: usize) -> Vec<String> {
    paths.iter().take(limit).map(name).collect()
}

/// Returns the first warnings, truncated.
pub fn warnings(mut said: Vec<String>) -> Vec<String> {
    said.truncate(WARNINGS_MAX);
    said.iter()
        .map(|text| beginning(text, NOTE_CHARS_MAX))
        .collect()
}

/// The mounted tree and its changes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// Mount point of the tree
    pub mount: String,
    /// Checkpoint that the tree is based on and compared with; absent: no checkpoint exists
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Newest checkpoint made on request
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<u64>,
    /// Number of checkpoints
    pub checkpoints: u64,
    #[serde(flatten)]
    pub changed: Changes,
    /// Branches of the tree
    pub branches: Vec<String>,
    /// Warnings for the user
    pub warnings: Vec<String>,
}

/// The result of a checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CheckpointResult {
    pub checkpoint: Checkpoint,
    /// Whether it was made by this call; false: nothing had changed, and this is the newest
    /// existing one
    pub made: bool,
}

/// Checkpoints, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Log {
    pub checkpoints: Vec<Checkpoint>,
    /// Whether older ones exist: repeat the call with `before`
    pub more: bool,
}

/// The differences between two states.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Diff {
    /// Older state: a checkpoint number
    pub from: String,
    /// Newer state: a checkpoint number, or "live"
    pub to: String,
    #[serde(flatten)]
    pub changed: Changes,
    /// Patch in git's format, if requested
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// Whether the patch was truncated: request fewer paths
    pub patch_cut: bool,
    /// Paths missing from the patch, and why
    pub warnings: Vec<String>,
}

/// Content of a file at a checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileContent {
    /// Checkpoint number, or "live"
    pub checkpoint: String,
    pub path: String,
    /// Size of the whole file, bytes
    pub size: u64,
    /// Offset of the returned content
    pub offset: u64,
    /// Content of a text file (UTF-8)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Content of a binary file
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Number of bytes after the returned content: repeat the call with `next_offset`
    pub bytes_left_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
}

/// A version of a path.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Version {
    /// First checkpoint that contains it; absent: only the live tree does
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
    /// Time of that checkpoint: RFC 3339, UTC
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Change from the previous version
    pub change: ChangeKindLabel,
    /// Size of a file, bytes
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Whether it contains the text; absent: not requested, or not searched
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contains: Option<bool>,
}

/// The versions of a path, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Versions {
    pub path: String,
    pub versions: Vec<Version>,
    /// Number of omitted older versions
    pub versions_left_out: u64,
    /// Number of versions that were not searched for the text: over the size limits, or unreadable
    pub not_looked_at: u64,
}

/// A path that was not restored, or a conflict of a merge.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UnappliedPath {
    pub path: String,
    /// Reason
    pub why: String,
}

/// The result of a restore or of its dry run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Restored {
    /// The restored checkpoint
    pub restored: u64,
    /// Checkpoint of the previous state, made before the restore; absent: nothing was changed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<u64>,
    #[serde(flatten)]
    pub changed: Changes,
    /// The first of the requested paths that were not restored, with reasons
    pub kept: Vec<UnappliedPath>,
    /// Number of omitted such paths
    pub kept_left_out: u64,
    /// Warnings for the user
    pub warnings: Vec<String>,
    /// Whether this was a dry run
    pub dry_run: bool,
}

/// An operation that was undone or skipped.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UndoneOperation {
    /// Its number
    pub operation: u64,
    /// Description of the operation and of the result of its undo
    pub what: String,
    /// Checkpoint of the previous state, if the tree was changed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<u64>,
}

/// The result of an undo.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Undone {
    pub steps: Vec<UndoneOperation>,
    /// Reason why the remaining operations were not undone
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Warnings for the user
    pub warnings: Vec<String>,
    /// Whether this was a dry run
    pub dry_run: bool,
}

/// A branch.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Branch {
    pub name: String,
    /// Its directory
    pub path: String,
    /// Base checkpoint; absent in a dry run that would make one
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    pub mounted: bool,
    /// Number of paths it changed; absent: unknown
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<u64>,
    /// Number of changed paths that are not merged into this tree; absent: unknown
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmerged: Option<u64>,
}

impl From<&api::BranchInfo> for Branch {
    fn from(info: &api::BranchInfo) -> Branch {
        use std::os::unix::ffi::OsStrExt;
        Branch {
            name: info.name.clone(),
            path: escape(info.path.as_os_str().as_bytes()),
            base: info.base.map(|base| base.0),
            mounted: info.mounted,
            changed: info.changed,
            unmerged: info.unmerged,
        }
    }
}

/// The result of making a branch.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BranchMade {
    pub branch: Branch,
    /// Warnings for the user
    pub warnings: Vec<String>,
    /// Whether this was a dry run
    pub dry_run: bool,
}

/// The branches of the tree.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Branches {
    pub branches: Vec<Branch>,
}

/// A path that several branches, or a branch and this tree, changed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Conflict {
    pub path: String,
    /// The branches that changed it
    pub branches: Vec<String>,
    /// Whether this tree changed it
    pub this_tree: bool,
    /// Conflicts of a merge; empty: it merges cleanly; absent: not requested
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clashes: Option<Vec<String>>,
}

/// Paths that several branches, or a branch and this tree, changed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Conflicts {
    pub conflicts: Vec<Conflict>,
    /// Number of omitted paths
    pub conflicts_left_out: u64,
}

/// The result of a merge or of its dry run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Merged {
    /// Whether unresolved conflicts prevented the merge, which changed nothing
    pub refused: bool,
    /// Checkpoint of the previous state; absent: nothing was changed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<u64>,
    #[serde(flatten)]
    pub changed: Changes,
    /// The first of the paths that both sides changed differently
    pub conflicts: Vec<UnappliedPath>,
    /// Number of omitted conflicts
    pub conflicts_left_out: u64,
    /// Whether this was a dry run
    pub dry_run: bool,
}

/// The result of dropping a branch.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Dropped {
    pub branch: Branch,
    /// The first of the changed paths that are not merged into this tree
    pub unmerged: Vec<String>,
    /// Warnings for the user
    pub warnings: Vec<String>,
    /// Whether this was a dry run
    pub dry_run: bool,
}
