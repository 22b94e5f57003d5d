//! Requests and answers of `export`: the tree of a checkpoint in parts, each with the descriptors
//! of its files.

use serde::{Deserialize, Serialize};

use crate::checkpoint::StateName;
use crate::ids::CheckpointId;
use crate::tree_path::TreePath;
use crate::verb::Verb;
use ckptfs_sys::{self as sys, Errno, Kind, Stat, SysResult, Time, Xattrs, is_own_xattr};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportAsk {
    /// Begins to export a checkpoint. The answer contains no entries yet.
    Begin {
        /// The checkpoint.
        state: StateName,
        /// Send only the differences from this checkpoint. If it no longer exists, the answer has
        /// `from: None`, and everything is sent.
        from: Option<CheckpointId>,
    },
    /// Begins to export a whole checkpoint in the order of its names: the entries of a directory
    /// directly follow it, sorted by the bytes of their names. The answer contains no entries yet.
    Whole {
        /// The checkpoint.
        state: StateName,
        /// A file with the same path and content in this checkpoint is [`ExportData::Kept`]. If the
        /// checkpoint no longer exists, the answer has `from: None`.
        since: Option<CheckpointId>,
    },
    /// Continues an export.
    Next {
        /// The number of the export, from an answer.
        run: u64,
        /// Parts whose files were copied. The daemon now proves that these were unchanged since the
        /// checkpoint, or sends them again.
        done: Vec<u64>,
    },
    /// As [`ExportAsk::Next`], while the previous part is still being copied: returns immediately
    /// if no work is ready.
    Ahead {
        /// The number of the export.
        run: u64,
        /// As in [`ExportAsk::Next`].
        done: Vec<u64>,
    },
    /// Cancels an export.
    End {
        /// The number of the export.
        run: u64,
    },
}

/// A part of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportPart {
    /// The number of the export.
    pub run: u64,
    /// The exported checkpoint.
    pub checkpoint: CheckpointId,
    /// The checkpoint that the entries are a difference from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<CheckpointId>,
    /// The store of the checkpoint.
    pub store: String,
    /// The number of this part, to be confirmed; 0: it is empty.
    pub part: u64,
    /// Paths to remove, with everything below them, before anything of this part or a later one is
    /// created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<TreePath>,
    /// Entries to create, directories before their contents. In a difference also entries to
    /// replace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<ExportEntry>,
    /// Paths that the checkpoint cannot show.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// Paths of confirmed parts that changed while they were copied. They are sent again, in this
    /// part or a later one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unproven: Vec<TreePath>,
    /// The number of entries in all parts, if known in advance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// All parts were sent and confirmed.
    pub finished: bool,
}

/// A path that cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The path.
    pub path: TreePath,
    /// The error number of reading it; EIO if it was changed bypassing the mount.
    pub errno: i32,
}

/// The source of the content of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportData {
    /// No content: not a regular file, or empty.
    #[default]
    None,
    /// The next descriptor that came with the part.
    File,
    /// The same content as in the state that this is a difference from, or that
    /// [`ExportAsk::Whole`] named: only attributes are set.
    Kept,
    /// A hard link to the inode at another path, whose content is unchanged.
    Link(TreePath),
}

impl ExportData {
    fn is_none(&self) -> bool {
        *self == ExportData::None
    }
}

/// One path of an export. The names in JSON are short because a tree has many entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportEntry {
    /// The path; empty for the root.
    #[serde(rename = "p")]
    pub path: TreePath,
    /// The file type.
    #[serde(rename = "k")]
    pub kind: Kind,
    /// Permission bits.
    #[serde(rename = "m")]
    pub mode: u32,
    /// Owner.
    #[serde(rename = "u")]
    pub uid: u32,
    /// Group.
    #[serde(rename = "g")]
    pub gid: u32,
    /// Device number of a device node.
    #[serde(rename = "r", default, skip_serializing_if = "is_zero")]
    pub rdev: u64,
    /// Size in bytes.
    #[serde(rename = "s")]
    pub size: u64,
    /// atime and mtime, each in seconds and nanoseconds.
    #[serde(rename = "t")]
    pub times: [i64; 4],
    /// ctime, in seconds and nanoseconds.
    #[serde(rename = "c", default)]
    pub ctime: [i64; 2],
    /// The inode number: entries that share it and have several names are hard links.
    #[serde(rename = "i")]
    pub inode: u64,
    /// Link count.
    #[serde(rename = "n")]
    pub nlink: u32,
    /// The target of a symbolic link.
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TreePath>,
    /// Extended attributes: name, value.
    #[serde(rename = "x", default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<(TreePath, TreePath)>,
    /// Content.
    #[serde(rename = "d", default, skip_serializing_if = "ExportData::is_none")]
    pub data: ExportData,
    /// The entry was sent before, and the file changed while it was copied: it must be copied
    /// again.
    #[serde(rename = "a", default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Set-user-id and set-group-id (inode(7)).
const SET_ID: u32 = 0o6000;

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ExportEntry {
    /// Creates an entry without content, and without the extended attributes that ckptfs adds.
    pub fn new(
        path: Vec<u8>,
        stat: &Stat,
        inode: u64,
        target: Option<Vec<u8>>,
        xattrs: Xattrs,
    ) -> ExportEntry {
        let times = [
            stat.atime.sec,
            i64::from(stat.atime.nsec),
            stat.mtime.sec,
            i64::from(stat.mtime.nsec),
        ];
        ExportEntry {
            path: TreePath(path),
            kind: stat.kind,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
            size: stat.size,
            times,
            ctime: [stat.ctime.sec, i64::from(stat.ctime.nsec)],
            inode,
            nlink: stat.nlink,
            target: target.map(TreePath),
            xattrs: xattrs
                .into_iter()
                .filter(|(name, _)| !is_own_xattr(name))
                .map(|(name, value)| (TreePath(name), TreePath(value)))
                .collect(),
            data: ExportData::None,
            again: false,
        }
    }

    /// Restricts an entry of a filesystem that another user serves to the trust in that user's
    /// files. It gets the caller as owner, no set-id bits, and no extended attributes that only the
    /// system or root sets.
    ///
    /// # Errors
    /// EPERM for a device node.
    pub fn of_stranger(mut self) -> SysResult<ExportEntry> {
        if matches!(self.kind, Kind::CharDev | Kind::BlockDev) {
            return Err(Errno::EPERM);
        }
        (self.uid, self.gid) = sys::ids();
        self.mode &= !SET_ID;
        self.xattrs
            .retain(|(name, _)| name.0.starts_with(b"user.") || name.0.starts_with(b"system."));
        Ok(self)
    }

    /// Returns the atime.
    pub fn atime(&self) -> Time {
        Time {
            sec: self.times[0],
            nsec: u32::try_from(self.times[1]).unwrap_or(0),
        }
    }

    /// Returns the mtime.
    pub fn mtime(&self) -> Time {
        Time {
            sec: self.times[2],
            nsec: u32::try_from(self.times[3]).unwrap_or(0),
        }
    }

    /// Returns the approximate size in a message, in bytes.
    pub fn weight(&self) -> usize {
        let xattrs: usize = self
            .xattrs
            .iter()
            .map(|(name, value)| name.0.len() + value.0.len() + 32)
            .sum();
        200 + 2
            * (self.path.0.len() + self.target.as_ref().map_or(0, |target| target.0.len()) + xattrs)
    }

    /// Returns whether the inode has, or may have, other names, which become hard links.
    pub fn is_linked(&self) -> bool {
        self.nlink > 1 && self.kind != Kind::Dir
    }
}

impl Verb for ExportAsk {
    type Answer = ExportPart;
    const ONLY_ASKS: bool = true;
}
