//! What `export` asks and answers: a checkpoint's tree in parts, each with the descriptors of the
//! files in it.

use serde::{Deserialize, Serialize};

use crate::engine::api::{StateName, TreePath};
use crate::store::ids::CheckpointId;
use crate::store::layout::is_own_xattr;
use crate::sys::{self, Errno, Kind, Stat, SysResult, Time, Xattrs};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportAsk {
    /// Begin to export a checkpoint. The answer has nothing in it yet.
    Begin {
        /// Which.
        state: StateName,
        /// Only what differs from this one. If it is not kept any more the answer says
        /// `from: None`, and is everything.
        from: Option<CheckpointId>,
    },
    /// Begin to export all of a checkpoint in the order of its names: what is in a directory comes
    /// directly after it, sorted by the bytes of the names. The answer has nothing in it yet.
    Whole {
        /// Which.
        state: StateName,
        /// A file that had the same path in this one, and the same content, is
        /// [`ExportData::Kept`]. If it is not kept any more the answer says `from: None`.
        since: Option<CheckpointId>,
    },
    /// Go on.
    Next {
        /// The export, by the number that an answer gave.
        run: u64,
        /// Parts whose files were copied: now it is proven that they were still what they were at
        /// the checkpoint, or they are given again.
        done: Vec<u64>,
    },
    /// As [`ExportAsk::Next`], while the part before is still being copied: where there is nothing
    /// to tell yet, that is answered at once.
    Ahead {
        /// The export.
        run: u64,
        /// As of [`ExportAsk::Next`].
        done: Vec<u64>,
    },
    /// It is given up.
    End {
        /// Which.
        run: u64,
    },
}

/// A part of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportPart {
    /// Number of the export.
    pub run: u64,
    /// What is exported.
    pub checkpoint: CheckpointId,
    /// What it is told as a difference from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<CheckpointId>,
    /// The store that the checkpoint is in.
    pub store: String,
    /// Number of this part, to be confirmed; 0: there is nothing in it.
    pub part: u64,
    /// Paths to be removed, with everything below, before anything of this part or a later one is
    /// made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<TreePath>,
    /// What to make, directories before what is in them; of a difference: also what to make anew in
    /// the place of what is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<ExportEntry>,
    /// What the checkpoint cannot show.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// Paths of the parts that were confirmed which were changed while they were copied: they are
    /// told again, in this part or a later one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unproven: Vec<TreePath>,
    /// Entries in all parts, where that is known in advance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Everything was given, and every part confirmed.
    pub finished: bool,
}

/// A path that cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Which.
    pub path: TreePath,
    /// The error number of reading it: EIO if it was changed behind our back.
    pub errno: i32,
}

/// Where the content of an entry comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportData {
    /// There is none: it is no file, or an empty one.
    #[default]
    None,
    /// From the next descriptor that came with the part.
    File,
    /// It is what it was in the state that this is a difference from, or that was named with
    /// [`ExportAsk::Whole`]: only attributes are to be set.
    Kept,
    /// It is the inode at another path, whose content is kept: one more name for it.
    Link(TreePath),
}

impl ExportData {
    fn is_none(&self) -> bool {
        *self == ExportData::None
    }
}

/// One path of an export. Short names: a tree has many of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportEntry {
    /// The path; empty for the root.
    #[serde(rename = "p")]
    pub path: TreePath,
    /// What it is.
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
    /// Seconds and nanoseconds of the last access, and of the last change of content.
    #[serde(rename = "t")]
    pub times: [i64; 4],
    /// Seconds and nanoseconds of the last change of the inode.
    #[serde(rename = "c", default)]
    pub ctime: [i64; 2],
    /// Which inode: of the entries with one number and more than one name all are the same.
    #[serde(rename = "i")]
    pub inode: u64,
    /// Names that it had.
    #[serde(rename = "n")]
    pub nlink: u32,
    /// Where a link leads.
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TreePath>,
    /// Extended attributes: name, value.
    #[serde(rename = "x", default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<(TreePath, TreePath)>,
    /// Content.
    #[serde(rename = "d", default, skip_serializing_if = "ExportData::is_none")]
    pub data: ExportData,
    /// It was given before, and the file was changed while it was copied: what was made of it is to
    /// be made again.
    #[serde(rename = "a", default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Set-user-id and set-group-id (inode(7)).
const SET_ID: u32 = 0o6000;

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ExportEntry {
    /// An entry without content, and without what ckptfs notes of inodes.
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

    /// What is told by a filesystem that somebody else answers for is worth no more than their own
    /// files are: it belongs to the caller, is set-id for nobody, and has no attribute that only
    /// the system or root sets.
    ///
    /// # Errors
    /// EPERM of a device node.
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

    /// Last access.
    pub fn atime(&self) -> Time {
        Time {
            sec: self.times[0],
            nsec: u32::try_from(self.times[1]).unwrap_or(0),
        }
    }

    /// Last change of content.
    pub fn mtime(&self) -> Time {
        Time {
            sec: self.times[2],
            nsec: u32::try_from(self.times[3]).unwrap_or(0),
        }
    }

    /// Bytes that it takes in a message, about.
    pub fn weight(&self) -> usize {
        let xattrs: usize = self
            .xattrs
            .iter()
            .map(|(name, value)| name.0.len() + value.0.len() + 32)
            .sum();
        200 + 2
            * (self.path.0.len() + self.target.as_ref().map_or(0, |target| target.0.len()) + xattrs)
    }

    /// The inode has other names, or may have: all of them are to be one.
    pub fn is_linked(&self) -> bool {
        self.nlink > 1 && self.kind != Kind::Dir
    }
}
