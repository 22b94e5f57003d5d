//! The plain types that this layer's calls take and give, besides those of [`super::types`].

use std::collections::HashSet;
use std::path::PathBuf;

use super::types::{Kind, Time};

/// How a file is opened (`flags` of open(2)). Neither `read` nor `write` set means for reading.
///
/// Every open adds `O_NOFOLLOW`, `O_NONBLOCK` and `O_CLOEXEC`: the last component is never a link
/// that leads elsewhere, a FIFO does not hang the daemon, and no child inherits the descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Open {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Writes go to the end (`O_APPEND`). pwrite(2) on Linux then ignores its offset.
    pub append: bool,
    /// Empties the file (`O_TRUNC`).
    pub truncate: bool,
    /// Goes past the page cache (`O_DIRECT`; `F_NOCACHE` on macOS).
    pub direct: bool,
    /// Each write is durable when it returns (`O_SYNC`).
    pub sync: bool,
    /// Each write's data is durable when it returns (`O_DSYNC`).
    pub dsync: bool,
    /// Reads leave the access time alone (`O_NOATIME`): EPERM unless owner or privileged. Does
    /// nothing on macOS.
    pub noatime: bool,
}

impl Open {
    /// For reading only.
    pub const READ: Open = Open {
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
    pub const WRITE: Open = Open {
        read: false,
        write: true,
        ..Open::READ
    };
    /// For reading and writing.
    pub const READ_WRITE: Open = Open {
        write: true,
        ..Open::READ
    };
}

/// What kind of descriptor [`super::open_beneath`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenKind {
    /// One that names the inode only, of any kind, a link included (`O_PATH`).
    Path,
    /// A directory, for reading.
    Dir,
    /// A file.
    File(Open),
}

/// What `rename_at` does with the target's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces what is there (rename(2)).
    Replace,
    /// Fails with EEXIST when something is there (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swaps the two, both of which must exist (`RENAME_EXCHANGE`).
    Exchange,
    /// As `Replace`, and leaves a device node 0/0 where it was (`RENAME_WHITEOUT`).
    Whiteout,
    /// Both of `NoReplace` and `Whiteout`.
    NoReplaceWhiteout,
}

impl RenameMode {
    /// A device node 0/0 is left behind.
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameMode::Whiteout | RenameMode::NoReplaceWhiteout)
    }
}

/// What `utimens_fd` does with one of the two times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Leaves it (`UTIME_OMIT`).
    Omit,
    /// Sets it to the kernel's clock (`UTIME_NOW`).
    Now,
    /// Sets it to this time; the filesystem clamps what it cannot keep.
    At(Time),
}

/// What `setxattr` demands of the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Nothing: creates or replaces.
    Any,
    /// That it is new: EEXIST otherwise (`XATTR_CREATE`).
    Create,
    /// That it exists: [`super::Errno::NO_XATTR`] otherwise (`XATTR_REPLACE`).
    Replace,
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: one component, not necessarily UTF-8.
    pub name: Vec<u8>,
    /// Inode number on the backing filesystem. At a mount point it is the covered directory's.
    pub ino: u64,
    /// Kind, where the filesystem says it in the listing; otherwise stat it.
    pub kind: Option<Kind>,
    /// Where the listing goes on after this name: stays right while other names come and go.
    pub next: u64,
}

/// What statfs(2) says of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Size, in units of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// Inodes; 0 where they are not limited.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred size of I/O in bytes.
    pub bsize: u32,
    /// Size of a block in bytes.
    pub frsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
    /// The filesystem's magic number (`f_type`); `fs_name` names it.
    pub fs_type: u64,
}

/// One mount of this process's mount namespace (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The mount's number; reused after unmounting.
    pub id: u64,
    /// Number of the mount that it is mounted on.
    pub parent: u64,
    /// Device of its filesystem, as `st_dev` encodes it.
    pub dev: u64,
    /// What of the filesystem is mounted, as a path inside it.
    pub root: PathBuf,
    /// Where it is mounted.
    pub at: PathBuf,
    /// Nobody can write there through this mount; the filesystem may be mounted elsewhere for
    /// writing.
    pub read_only: bool,
    /// Type, such as `xfs` or `fuse.ckptfs`.
    pub fs_type: String,
    /// Source, such as `/dev/vda1`; filesystems without a device put any word here.
    pub source: String,
    /// Who answers for what is in it, where that is a user and not the kernel: the one who mounted
    /// it (FUSE, `user_id=`).
    pub owner: Option<u32>,
}

/// What of one filesystem is watched by somebody (inotify(7), fanotify(7)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// All of it.
    pub all: bool,
    /// Inodes, by number.
    pub inodes: HashSet<u64>,
}

impl Watched {
    /// Whether this inode is watched.
    pub fn has(&self, ino: u64) -> bool {
        self.all || self.inodes.contains(&ino)
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        !self.all && self.inodes.is_empty()
    }
}
