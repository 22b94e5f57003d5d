//! Basic types for all layers: error numbers, kinds of inodes, times and stat records.
//!
//! They are defined here because only `sys/` names `libc` and `rustix`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error number of the kernel (errno(3)); positive, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

/// The result of a call that fails with an [`Errno`].
pub type SysResult<T> = Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "` of errno(3).")] pub const $name: Errno = Errno(libc::$name);)*

            /// Returns the symbolic name, if this program returns or tests the number.
            pub fn name(self) -> Option<&'static str> {
                $(if self.0 == libc::$name { return Some(stringify!($name)); })*
                None
            }
        }
    };
}

errnos!(
    EPERM,
    ENOENT,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EFAULT,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ENFILE,
    EMFILE,
    ENOTTY,
    ETXTBSY,
    EFBIG,
    ENOSPC,
    ESPIPE,
    EROFS,
    EMLINK,
    EPIPE,
    ECONNRESET,
    ERANGE,
    ENAMETOOLONG,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    EOVERFLOW,
    EOPNOTSUPP,
    ENOTCONN,
    ECONNABORTED,
    ETIMEDOUT,
    ESTALE,
    EDQUOT,
    ECANCELED,
    ECONNREFUSED,
    EADDRINUSE,
    ENODATA,
);

impl Errno {
    /// Nothing was done: the call would have to wait, and this thread must not (see
    /// [`super::wait`]). It is no kernel error and never reaches the kernel.
    pub const LATER: Errno = Errno(i32::MAX);
    /// "No such extended attribute": ENODATA on Linux, ENOATTR on macOS.
    #[cfg(target_os = "linux")]
    pub const NO_XATTR: Errno = Errno(libc::ENODATA);
    /// "No such extended attribute": ENODATA on Linux, ENOATTR on macOS.
    #[cfg(not(target_os = "linux"))]
    pub const NO_XATTR: Errno = Errno(libc::ENOATTR);

    /// Returns whether no space is left, on the filesystem or in the user's quota.
    pub fn is_no_room(self) -> bool {
        matches!(self, Errno::ENOSPC | Errno::EDQUOT)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Errno(error.raw_os_error())
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

/// The kind of an inode (the `S_IFMT` bits of inode(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDev,
    /// A block device.
    BlockDev,
}

/// The thread that an operation serves, from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterIds {
    /// Its filesystem user ID.
    pub uid: u32,
    /// Its filesystem group ID.
    pub gid: u32,
    /// Its thread ID; 0 if it has none in our PID namespace.
    pub thread: u32,
}

/// A process as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Process ID.
    pub pid: u32,
    /// Start time: with the ID, it identifies one process uniquely.
    pub start: u64,
    /// ID of the parent process.
    pub parent: u32,
    /// Session ID.
    pub session: u32,
    /// The name that the process set for itself.
    pub name: String,
    /// Control group, as a path from the root of the hierarchy; empty if it has none.
    pub cgroup: String,
}

/// Resources used by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMemory {
    /// Resident set size in bytes.
    pub rss_bytes: u64,
    /// Number of threads.
    pub threads: u64,
}

/// Seconds and nanoseconds since 1970 (`struct timespec`); `nsec` is below 1,000,000,000 even if
/// `sec` is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z; negative before.
    pub sec: i64,
    /// Nanoseconds after `sec`.
    pub nsec: u32,
}

impl Time {
    /// Returns the nanoseconds since 1970-01-01T00:00:00Z, saturating.
    pub fn nanoseconds(self) -> i64 {
        self.sec
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::from(self.nsec))
    }
}

/// Restrictions of an inode that apply to every user (chattr(1)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// None beyond its mode.
    #[default]
    None,
    /// Only appending data, or adding names to a directory, is permitted (`FS_APPEND_FL`).
    AppendOnly,
    /// No change is permitted (`FS_IMMUTABLE_FL`).
    Immutable,
}

/// The result of stat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device of the filesystem.
    pub dev: u64,
    /// Inode number on that filesystem.
    pub ino: u64,
    /// Kind of inode.
    pub kind: Kind,
    /// Permission bits, including set-id and sticky bits: `st_mode & 0o7777`.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as stat(2) encodes it.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred block size for I/O.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last status change.
    pub ctime: Time,
    /// Birth, if the filesystem records it.
    pub btime: Option<Time>,
    /// The current restrictions; none in a view of the past.
    pub protection: Protection,
}

/// Extended attributes of an inode, sorted by name: (name, value).
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A range of the device used by a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalRange {
    /// Start in bytes.
    pub physical: u64,
    /// Length in bytes.
    pub length: u64,
    /// Part of it is shared with another file.
    pub shared: bool,
}

/// The location of a file's data on the device: file offset, device offset and length in bytes.
/// Adjacent extents are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtentMap(pub(super) Vec<(u64, u64, u64)>);

impl ExtentMap {
    /// Returns the number of extents.
    pub fn pieces(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of bytes in extents; the others are holes.
    pub fn bytes(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, (_, _, length)| sum.saturating_add(*length))
    }
}

/// The space allocated to a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Ranges of the device, in the order of the file.
    pub placed: Vec<PhysicalRange>,
    /// Bytes that only this file uses, without a comparable location: inline or compressed data.
    pub unplaced_bytes: u64,
}
