//! The argument and result types of this layer, in addition to those of [`super::types`].

use std::collections::HashSet;
use std::path::PathBuf;

use super::types::{Kind, Time};

/// The mode of opening a file (`flags` of open(2)). If neither `read` nor `write` is set, the file
/// is opened for reading.
///
/// Every open adds `O_NOFOLLOW`, `O_NONBLOCK` and `O_CLOEXEC`: it follows no symbolic link in the
/// last component, does not block on a FIFO, and no child inherits the descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Writes append (`O_APPEND`). On Linux pwrite(2) then ignores its offset.
    pub append: bool,
    /// Truncates the file (`O_TRUNC`).
    pub truncate: bool,
    /// Bypasses the page cache (`O_DIRECT`; `F_NOCACHE` on macOS).
    pub direct: bool,
    /// Each write is durable when it returns (`O_SYNC`).
    pub sync: bool,
    /// Each write's data is durable when it returns (`O_DSYNC`).
    pub dsync: bool,
    /// Reads leave the access time unchanged (`O_NOATIME`): EPERM unless owner or privileged. No
    /// effect on macOS.
    pub noatime: bool,
}

impl Access {
    /// For reading only.
    pub const READ: Access = Access {
        read: true,
        write: false,
        append: false,
        truncate: false,
        direct: false,
        sync: false,
        dsync: false,
        noatime: false,
    };
    /// For writing only.
    pub const WRITE: Access = Access {
        read: false,
        write: true,
        ..Access::READ
    };
    /// For reading and writing.
    pub const READ_WRITE: Access = Access {
        write: true,
        ..Access::READ
    };
}

/// The kind of descriptor that [`super::open_beneath`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenKind {
    /// One that only names the inode, of any kind, including a symbolic link (`O_PATH`).
    Path,
    /// A directory, for reading.
    Dir,
    /// A file.
    File(Access),
}

/// How `rename_at` treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it (rename(2)).
    Replace,
    /// Fails with EEXIST (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchanges the two names, both of which must exist (`RENAME_EXCHANGE`).
    Exchange,
    /// As `Replace`, and leaves a whiteout, a character device 0/0, under the old name
    /// (`RENAME_WHITEOUT`).
    Whiteout,
    /// `NoReplace` and `Whiteout` combined.
    NoReplaceWhiteout,
}

impl RenameMode {
    /// Returns whether the rename leaves a whiteout.
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameMode::Whiteout | RenameMode::NoReplaceWhiteout)
    }
}

/// How `utimens_fd` sets one of the two times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Leaves it unchanged (`UTIME_OMIT`).
    Omit,
    /// Sets it to the kernel's clock (`UTIME_NOW`).
    Now,
    /// Sets it to this time; the filesystem clamps values outside its range.
    At(Time),
}

/// The precondition of `setxattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// None: creates or replaces.
    Any,
    /// The attribute is new: EEXIST otherwise (`XATTR_CREATE`).
    Create,
    /// The attribute exists: [`super::Errno::NO_XATTR`] otherwise (`XATTR_REPLACE`).
    Replace,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: one component, not necessarily UTF-8.
    pub name: Vec<u8>,
    /// Inode number on the backing filesystem. At a mount point it is that of the covered
    /// directory.
    pub ino: u64,
    /// Kind, if the listing contains it; otherwise use stat.
    pub kind: Option<Kind>,
    /// Position after this entry; it stays valid while other names are added and removed.
    pub next: u64,
}

/// The result of statfs(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Size, in units of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// Inodes; 0 if they are not limited.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred I/O size in bytes.
    pub bsize: u32,
    /// Block size in bytes.
    pub frsize: u32,
    /// Maximum length of a name in bytes.
    pub namelen: u32,
    /// The filesystem's magic number (`f_type`); `fs_name` names it.
    pub fs_type: u64,
}

/// A mount in the mount namespace of this process (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// ID of the mount; reused after unmounting.
    pub id: u64,
    /// ID of the parent mount.
    pub parent: u64,
    /// Device of its filesystem, as `st_dev` encodes it.
    pub dev: u64,
    /// The mounted part of the filesystem, as a path inside it.
    pub root: PathBuf,
    /// The mount point.
    pub at: PathBuf,
    /// This mount is read-only; another mount of the filesystem may be writable.
    pub read_only: bool,
    /// Type, such as `xfs` or `fuse.ckptfs`.
    pub fs_type: String,
    /// Source, such as `/dev/vda1`; an arbitrary word for filesystems without a device.
    pub source: String,
    /// The user who mounted it and thereby controls its content (FUSE, `user_id=`); `None` if the
    /// kernel serves it.
    pub owner: Option<u32>,
}

/// The inodes of one filesystem with watches (inotify(7), fanotify(7)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The whole filesystem is watched.
    pub all: bool,
    /// Inode numbers.
    pub inodes: HashSet<u64>,
}

impl Watched {
    /// Returns whether this inode is watched.
    pub fn has(&self, ino: u64) -> bool {
        self.all || self.inodes.contains(&ino)
    }

    /// Returns whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        !self.all && self.inodes.is_empty()
    }
}
