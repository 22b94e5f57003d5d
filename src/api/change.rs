//! Differences between two states.

use serde::{Deserialize, Serialize};

use crate::checkpoint::StateName;
use crate::tree_path::TreePath;
use crate::verb::Verb;
/// The change of a path between two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The path did not exist.
    #[serde(rename = "A")]
    Added,
    /// The content, attributes or extended attributes differ.
    #[serde(rename = "M")]
    Modified,
    /// The path no longer exists.
    #[serde(rename = "D")]
    Deleted,
    /// The path was renamed.
    #[serde(rename = "R")]
    Renamed,
    /// The path has another file type.
    #[serde(rename = "T")]
    TypeChanged,
    /// The change is unknown.
    #[serde(rename = "?")]
    Unknown,
}

/// Reason why a former or current state of a path is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Changed while nothing was mounted, or directly in the backing directory.
    ChangedUnseen,
    /// Unreadable: a version is lost or damaged.
    Unreadable,
}

impl Why {
    /// Returns the text for messages.
    pub fn words(self) -> &'static str {
        match self {
            Why::ChangedUnseen => "it was changed while nothing was mounted, or behind the mount",
            Why::Unreadable => "it cannot be read: a version of it is lost or damaged",
        }
    }
}

impl ChangeKind {
    /// Returns the status letter.
    pub fn letter(self) -> char {
        match self {
            ChangeKind::Added => 'A',
            ChangeKind::Modified => 'M',
            ChangeKind::Deleted => 'D',
            ChangeKind::Renamed => 'R',
            ChangeKind::TypeChanged => 'T',
            ChangeKind::Unknown => '?',
        }
    }
}

/// A path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Path in the newer state; in the older one if it was deleted.
    pub path: TreePath,
    /// Kind of change.
    pub change: ChangeKind,
    /// For a rename: the former path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<TreePath>,
    /// File type in the newer state (in the older one if deleted): `file`, `dir`, ...
    pub kind: ckptfs_sys::Kind,
    /// Size of a regular file in the older state, in bytes, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_size: Option<u64>,
    /// Size in the newer state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// For an unknown change: the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
}

impl Change {
    /// Returns a change without sizes.
    pub fn new(path: Vec<u8>, change: ChangeKind, kind: ckptfs_sys::Kind) -> Change {
        Change {
            path: TreePath(path),
            change,
            from: None,
            kind,
            old_size: None,
            size: None,
            why: None,
        }
    }

    /// Returns an unknown change.
    pub fn unknown(path: Vec<u8>, kind: ckptfs_sys::Kind, why: Why) -> Change {
        Change {
            why: Some(why),
            ..Change::new(path, ChangeKind::Unknown, kind)
        }
    }
}

/// A number of files and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Number of files.
    pub files: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Count {
    /// Adds one file.
    pub fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds another count.
    pub fn join(&mut self, other: Count) {
        self.files += other.files;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Compares two states; the differences are sorted by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    /// The older state.
    pub from: StateName,
    /// The newer state; defaults to the live tree.
    pub to: Option<StateName>,
    /// Include file sizes.
    #[serde(default)]
    pub sizes: bool,
}

impl Verb for Compare {
    type Answer = Vec<Change>;
    const ONLY_ASKS: bool = true;
}
