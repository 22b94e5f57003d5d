//! Plain types that every layer speaks: error numbers, kinds of inode, times and stat records.
//!
//! They are ours, and not `libc`'s, because `libc` and `rustix` are named in `sys/` only.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error number as the kernel gives it (errno(3)); positive, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

/// The result of a call that fails with an [`Errno`].
pub type SysResult<T> = Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "` of errno(3).")] pub const $name: Errno = Errno(libc::$name);)*

            /// The number's symbolic name, where it is one that this program gives or tests.
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
    /// Nothing was done: what must be waited for first cannot be waited for here (see
    /// [`super::wait`]). No error of the kernel, and never told to it.
    pub const LATER: Errno = Errno(i32::MAX);
    /// "No such extended attribute": ENODATA on Linux, ENOATTR on macOS.
    #[cfg(target_os = "linux")]
    pub const NO_XATTR: Errno = Errno(libc::ENODATA);
    /// "No such extended attribute": ENODATA on Linux, ENOATTR on macOS.
    #[cfg(not(target_os = "linux"))]
    pub const NO_XATTR: Errno = Errno(libc::ENOATTR);

    /// There is no room: on the filesystem, or for this user.
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

/// What an inode is (the `S_IFMT` bits of inode(7)).
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

/// The thread that something is done for, as a request tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Its user for files.
    pub uid: u32,
    /// Its group for files.
    pub gid: u32,
    /// Its number; 0 if it has none where we are.
    pub thread: u32,
}

/// What the kernel says of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Its id.
    pub pid: u32,
    /// When it started: with the id, it names one process for good.
    pub start: u64,
    /// Process that it is a child of.
    pub parent: u32,
    /// Its session.
    pub session: u32,
    /// Its name: what it calls itself.
    pub name: String,
    /// Its control group: a path from the root of the hierarchy; empty if there is none.
    pub cgroup: String,
}

/// What a process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMemory {
    /// Memory in use, in bytes (resident set size).
    pub rss_bytes: u64,
    /// Number of threads.
    pub threads: u64,
}

/// Seconds and nanoseconds since 1970 (`struct timespec`); `nsec` is below 1,000,000,000 also where
/// `sec` is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z; negative before.
    pub sec: i64,
    /// Nanoseconds after `sec`.
    pub nsec: u32,
}

impl Time {
    /// Nanoseconds since 1970-01-01T00:00:00Z, or the nearest that fits.
    pub fn nanoseconds(self) -> i64 {
        self.sec
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::from(self.nsec))
    }
}

/// What may be done to an inode, whoever asks (chattr(1)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Whatever its mode allows.
    #[default]
    None,
    /// Data is appended to it, of a directory names are added; nothing else (`FS_APPEND_FL`).
    AppendOnly,
    /// Nothing (`FS_IMMUTABLE_FL`).
    Immutable,
}

/// What stat(2) says of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device of the filesystem that holds it.
    pub dev: u64,
    /// Inode number on that filesystem.
    pub ino: u64,
    /// Kind of inode.
    pub kind: Kind,
    /// Permission bits, set-id and sticky bits included: `st_mode & 0o7777`.
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
    /// Last change of anything.
    pub ctime: Time,
    /// Birth, where the filesystem keeps it.
    pub btime: Option<Time>,
    /// As it is now; a state of the past has none.
    pub protection: Protection,
}

/// Extended attributes of an inode, sorted by name: (name, value).
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A range of the device that a file uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where it begins, in bytes.
    pub physical: u64,
    /// Its bytes.
    pub length: u64,
    /// Something else uses a part of it too.
    pub shared: bool,
}

/// Where a file's data is on the device: which bytes of the file begin where, and how many.
/// Neighbours are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtentMap(pub(super) Vec<(u64, u64, u64)>);

impl ExtentMap {
    /// Number of pieces that the data is in.
    pub fn pieces(&self) -> usize {
        self.0.len()
    }

    /// Bytes that have a place; the others are holes.
    pub fn bytes(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, (_, _, length)| sum.saturating_add(*length))
    }
}

/// The space that a file takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Where it is, in the order of the file.
    pub placed: Vec<Placed>,
    /// Bytes that are the file's alone and have no place that could be compared: inline or
    /// compressed data.
    pub unplaced_bytes: u64,
}
