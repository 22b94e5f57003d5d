//! What the tools answer: short forms of the verbs' answers, each with an end. The comments are
//! what an agent reads of each field.

use rmcp::schemars::{self, JsonSchema};
use serde::Serialize;

use super::super::output::escape;
use super::super::show;
use crate::engine::api::{self, ChangeKind, CheckpointInfo, TreePath, VersionKind};

/// Characters of a note that are told.
const NOTE_CHARS_MAX: usize = 1000;
/// Bytes of all names in one list.
const NAMES_BYTES_MAX: usize = 128 << 10;
/// Warnings that are told.
const WARNINGS_MAX: usize = 20;

/// A checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Checkpoint {
    /// Its number, by which other tools take it
    pub id: u64,
    /// When it was made: RFC 3339, UTC
    pub created: String,
    pub tags: Vec<String>,
    /// Its note, the beginning of a long one
    pub note: String,
    /// Why it was made
    pub reason: String,
    /// It is not to be deleted
    pub pinned: bool,
    /// How many paths it changed, where that is known
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
            reason: show::reason(info),
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

/// What happened to a path.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    Added,
    Modified,
    Deleted,
    Renamed,
    TypeChanged,
    /// It was changed while nothing was mounted, and nobody knows how
    Unknown,
}

impl From<ChangeKind> for How {
    fn from(kind: ChangeKind) -> How {
        match kind {
            ChangeKind::Added => How::Added,
            ChangeKind::Modified => How::Modified,
            ChangeKind::Deleted => How::Deleted,
            ChangeKind::Renamed => How::Renamed,
            ChangeKind::TypeChanged => How::TypeChanged,
            ChangeKind::Unknown => How::Unknown,
        }
    }
}

impl From<VersionKind> for How {
    fn from(kind: VersionKind) -> How {
        match kind {
            VersionKind::Added => How::Added,
            VersionKind::Modified => How::Modified,
            VersionKind::Deleted => How::Deleted,
            VersionKind::TypeChanged => How::TypeChanged,
            VersionKind::Unknown => How::Unknown,
        }
    }
}

/// One path that differs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Change {
    /// From the top of the tree. Control characters, and what is not UTF-8, are shown escaped, as
    /// \n or \xff; to restore such a path, name the directory that it is in
    pub path: String,
    pub change: How,
    /// The path that it had, if it was renamed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Paths that differ, the first of them.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Changes {
    /// The first of the paths that differ, sorted
    pub changes: Vec<Change>,
    /// How many more there are
    pub changes_left_out: u64,
}

impl Changes {
    /// The first so many.
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

/// A path as it is told.
pub fn name(path: &TreePath) -> String {
    if path.0.is_empty() {
        return ".".to_owned();
    }
    escape(&path.0)
}

/// Paths as they are told, the first of them.
pub fn names(paths: &[TreePath], limit: usize) -> Vec<String> {
    paths.iter().take(limit).map(name).collect()
}

/// The first warnings.
pub fn warnings(mut said: Vec<String>) -> Vec<String> {
    said.truncate(WARNINGS_MAX);
    said.iter()
        .map(|text| beginning(text, NOTE_CHARS_MAX))
        .collect()
}

/// What is served, and what has changed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// Where the tree is mounted
    pub mount: String,
    /// The checkpoint that the tree comes from, with which it is compared; absent: there is none yet
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// The newest checkpoint that somebody asked for
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<u64>,
    /// How many checkpoints there are
    pub checkpoints: u64,
    #[serde(flatten)]
    pub changed: Changes,
    /// Branches of the tree
    pub branches: Vec<String>,
    /// What somebody should know
    pub warnings: Vec<String>,
}

/// The checkpoint that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Made {
    pub checkpoint: Checkpoint,
    /// It was made now; false: nothing had changed, and this is the newest there was
    pub made: bool,
}

/// Checkpoints, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Log {
    pub checkpoints: Vec<Checkpoint>,
    /// There are older ones: ask again with `before`
    pub more: bool,
}

/// What differs between two states.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Diff {
    /// The older state: a checkpoint's number
    pub from: String,
    /// The newer state: a checkpoint's number, or "live"
    pub to: String,
    #[serde(flatten)]
    pub changed: Changes,
    /// A patch in git's format, if it was asked for
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// The patch was longer, and its rest is left out: ask for fewer paths
    pub patch_cut: bool,
    /// What the patch lacks, and why
    pub warnings: Vec<String>,
}

/// A file as it was.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Past {
    /// The checkpoint's number, or "live"
    pub checkpoint: String,
    pub path: String,
    /// Bytes of the whole file
    pub size: u64,
    /// Where what follows begins in it
    pub offset: u64,
    /// The content, if it is text (UTF-8)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The content, if it is not text
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Bytes behind it that are left out: ask again with `next_offset`
    pub bytes_left_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
}

/// One version of a path.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Version {
    /// The first checkpoint that has it; absent: only the live tree does
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
    /// When that was made: RFC 3339, UTC
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// How it differs from the version before
    pub change: How,
    /// Bytes, if it is a file
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// It has the text in it; absent: that was not asked, or it was not looked at
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contains: Option<bool>,
}

/// The versions of a path, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Versions {
    pub path: String,
    pub versions: Vec<Version>,
    /// How many older ones there are
    pub versions_left_out: u64,
    /// Versions that were not looked at for the text, because they are too large or too many
    pub not_looked_at: u64,
}

/// A path that stays as it is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Kept {
    pub path: String,
    /// Why it stays
    pub why: String,
}

/// What a restore did, or would do.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Restored {
    /// The checkpoint that was gone back to
    pub restored: u64,
    /// The checkpoint of what was there before, made first; absent: nothing was changed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<u64>,
    #[serde(flatten)]
    pub changed: Changes,
    /// Paths that stay as they are although they were meant, and why; the first of them
    pub kept: Vec<Kept>,
    /// How many more stay
    pub kept_left_out: u64,
    /// What somebody should know
    pub warnings: Vec<String>,
    /// It was only asked what would change
    pub dry_run: bool,
}

/// One operation that was undone, or left out.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Step {
    /// Its number
    pub operation: u64,
    /// What it was, and what came of undoing it
    pub what: String,
    /// The checkpoint of what was there before this, if the tree was changed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<u64>,
}

/// What was undone.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Undone {
    pub steps: Vec<Step>,
    /// Why the rest was not undone
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// What somebody should know
    pub warnings: Vec<String>,
    /// It was only asked what would be undone
    pub dry_run: bool,
}

/// A branch.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Branch {
    pub name: String,
    /// The directory to work in
    pub path: String,
    /// The checkpoint that it began as; absent: one that would be made
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    pub mounted: bool,
    /// How many paths it has changed, where that is known
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<u64>,
    /// How many of them no merge has brought here, where that is known
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

/// The branch that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BranchMade {
    pub branch: Branch,
    /// What somebody should know
    pub warnings: Vec<String>,
    /// It was only asked what would be made
    pub dry_run: bool,
}

/// The branches of the tree.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Branches {
    pub branches: Vec<Branch>,
}

/// Something that more than one has changed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Conflict {
    pub path: String,
    /// The branches that changed it
    pub branches: Vec<String>,
    /// This tree changed it too
    pub this_tree: bool,
    /// What would clash in a merge; empty: all of it merges cleanly; absent: that was not asked
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clashes: Option<Vec<String>>,
}

/// What more than one branch has changed, or a branch and this tree.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Conflicts {
    pub conflicts: Vec<Conflict>,
    /// How many more there are
    pub conflicts_left_out: u64,
}

/// What a merge did, or would do.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Merged {
    /// Nothing was changed, or would be: there are conflicts that nothing was said of
    pub refused: bool,
    /// The checkpoint of what was there before; absent: nothing was changed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<u64>,
    #[serde(flatten)]
    pub changed: Changes,
    /// What both sides changed, each in another way, the first of it
    pub conflicts: Vec<Kept>,
    /// How many more such there are
    pub conflicts_left_out: u64,
    /// It was only asked what would change
    pub dry_run: bool,
}

/// The branch that was dropped.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Dropped {
    pub branch: Branch,
    /// The first of the paths that it had changed and no merge has brought here
    pub unmerged: Vec<String>,
    /// What somebody should know
    pub warnings: Vec<String>,
    /// It was only asked what would go
    pub dry_run: bool,
}
