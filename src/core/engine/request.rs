//! The kernel interface of the engine in plain types; `fuse/` decodes requests into it.
//!
//! It is independent of FUSE's wire format and `fuser`. A node id is the kernel's `nodeid`. It
//! equals `st_ino`, because `fuser` 0.18 sends one number for both (docs/adr/0002-node-ids.md).

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::counts::RequestCounts;
use ckptfs_api::Actor;
use ckptfs_sys::{self as sys, Errno, Kind, Ledger, RequesterIds, Stat, SysResult};
pub use ckptfs_sys::{FsInfo, RenameMode, SetTime, XattrMode};

/// Timeout of cached data. The mount covers the backing directory, so every change passes us: the
/// kernel may cache until it is notified.
pub(super) const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

/// A node id: a live slot; with bit 62 an inode of a view; with bit 61 a control node (`.snapshots`
/// and its entries).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// Returns whether it belongs to the live tree.
    pub fn is_live(self) -> bool {
        self.0 >> 61 == 0
    }
}

/// A handle of an open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fh(pub u64);

/// The calling process of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Filesystem user id.
    pub uid: u32,
    /// Filesystem group id.
    pub gid: u32,
    /// Id of the calling thread; 0 if the kernel does not report it.
    pub pid: u32,
    /// Unique number of the request.
    pub request: u64,
    /// The request was sent to a worker that died, and may have been executed.
    pub again: bool,
}

impl Caller {
    /// Returns the caller, for checks of rights that a request does not contain.
    pub fn asker(&self) -> RequesterIds {
        RequesterIds {
            uid: self.uid,
            gid: self.gid,
            thread: self.pid,
        }
    }

    /// Returns the caller, for records.
    pub fn actor(&self) -> Actor {
        Actor {
            uid: self.uid,
            gid: self.gid,
            pid: self.pid,
            process: sys::process_name(self.pid).unwrap_or_default(),
        }
    }
}

/// An open file handed over to the next worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOverFile {
    /// The handle.
    pub fh: Fh,
    /// The node.
    pub node: NodeId,
    /// Flags of open(2).
    pub flags: i32,
    /// The file uses passthrough.
    pub passthrough: bool,
    /// As in [`Opened`].
    pub by: u64,
}

/// Kind of ledger rows of open files, which `fuse/` writes; other kinds have other numbers (2:
/// `live`, 3: nodes of views, 4: `live`).
pub const LEFT_OPEN: u64 = 1;
/// Ledger note: pid of the event thread.
pub const NOTE_VOICE: usize = 0;
/// Ledger note: capabilities of the kernel.
pub const NOTE_CAPABILITIES: usize = 1;
/// Ledger note: protocol version of the kernel.
pub const NOTE_PROTOCOL: usize = 2;
/// Ledger note: number of the connection, plus one.
pub const NOTE_CONNECTION: usize = 3;

/// A node and its timeout.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The node id; equals `stat.ino`.
    pub node: NodeId,
    /// Distinguishes inodes that reuse a number.
    pub generation: u64,
    /// Attributes; `ino` is the node id.
    pub stat: Stat,
    /// Timeout of both name and attributes, because `fuser` sends one.
    pub ttl: Duration,
}

/// An entry of READDIRPLUS.
#[derive(Clone, Copy, Debug)]
pub struct Plus {
    /// The entry.
    pub entry: Entry,
    /// The kernel may cache the attributes. Otherwise it only gets number and type, and returns the
    /// lookup with a FORGET.
    pub told: bool,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug)]
pub enum LookupResult {
    /// The name exists.
    Found(Entry),
    /// The name does not exist; the timeout of a negative dentry.
    Absent(Duration),
}

/// Attributes and their timeout.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// Attributes; `ino` is the node id.
    pub stat: Stat,
    /// The timeout.
    pub ttl: Duration,
}

/// Attributes to set; `None`: unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// An opened file.
#[derive(Debug)]
pub struct Opened {
    /// The handle.
    pub fh: Fh,
    /// The kernel may keep cached pages (`FOPEN_KEEP_CACHE`).
    pub keep_cache: bool,
    /// I/O bypasses the page cache (`FOPEN_DIRECT_IO`).
    pub direct_io: bool,
    /// close(2) sends no FLUSH (`FOPEN_NOFLUSH`).
    pub no_flush: bool,
    /// The backing file for passthrough (`FOPEN_PASSTHROUGH`). All concurrent opens of a node get
    /// the same choice, and the adapter gives them the same backing id. If the kernel refuses the
    /// file, the adapter calls [`Service::no_passthrough`] and replies without.
    pub passthrough: Option<Arc<File>>,
    /// Word that identifies the process that opened it for writing (`live::opener_word`); 0 if
    /// unknown or opened for reading.
    pub by: u64,
}

/// A part of a listing.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The names, in order.
    pub names: Vec<Listed>,
    /// The listing ends with them.
    pub last: bool,
}

/// A name of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name, including `.` and `..`.
    pub name: Vec<u8>,
    /// `d_ino`.
    pub node: NodeId,
    /// `d_type`.
    pub kind: Kind,
    /// Internal: the past inode, so that [`Service::plus`] needs no lookup.
    pub slot: u64,
    /// Offset at which the listing continues.
    pub next: u64,
}

/// A node to create.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// Directory, fifo, socket, device node or regular file.
    pub kind: Kind,
    /// Permission bits before the umask.
    pub mode: u32,
    /// The caller's umask: applied unless the directory has a default ACL.
    pub umask: u32,
    /// Device number, for device nodes.
    pub rdev: u64,
}

/// Argument of lseek(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`).
    Hole,
}

/// Invalidation of the kernel's caches. Called from threads that serve no request, because it may
/// block until the kernel is done.
pub trait Caches: Send + Sync {
    /// Invalidates all of these, in order.
    fn forget(&self, what: Vec<CacheInvalidation>);
    /// Invalidates the attributes of `node`. Never blocks, so threads that serve requests may call
    /// it.
    fn forget_attributes(&self, node: NodeId);
    /// Invalidates the dentry of `name` in `parent`, positive or negative.
    fn forget_entry(&self, parent: NodeId, name: &[u8]) {
        self.forget(vec![CacheInvalidation::Entry {
            parent,
            name: name.to_vec(),
        }]);
    }
    /// As [`Caches::forget_entry`], for a name of `child`, which has lost its last name: watchers
    /// are notified.
    fn delete_entry(&self, parent: NodeId, child: NodeId, name: &[u8]) {
        self.forget(vec![CacheInvalidation::Deleted {
            parent,
            child,
            name: name.to_vec(),
        }]);
    }
    /// Writes back and invalidates the cached data (or listing) of `node`, and its attributes.
    fn forget_data(&self, node: NodeId) {
        self.forget(vec![CacheInvalidation::Data(node)]);
    }
}

/// An invalidation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CacheInvalidation {
    /// A dentry, positive or negative.
    Entry { parent: NodeId, name: Vec<u8> },
    /// As [`CacheInvalidation::Entry`], for a name whose inode has lost its last name.
    Deleted {
        parent: NodeId,
        child: NodeId,
        name: Vec<u8>,
    },
    /// Cached data or listing, and attributes.
    Data(NodeId),
}

/// A method for each request of the kernel. All are called concurrently.
///
/// The error is the errno for the caller. `flags` of [`Service::open`] and [`Service::create`] are
/// those of open(2).
#[allow(missing_docs, clippy::too_many_arguments)]
pub trait Service: Send + Sync {
    /// Returns the request counters.
    fn counts(&self) -> &Arc<RequestCounts>;
    /// Returns the ledger for the next worker, if a takeover is possible.
    fn ledger(&self) -> Option<Arc<Ledger>> {
        None
    }
    /// Takes over an open file of the previous worker.
    fn adopt(&self, _left: &HandedOverFile) -> SysResult<()> {
        Err(Errno::ESTALE)
    }
    /// All were taken over.
    fn adopted(&self) {}
    /// The session has started. `passthrough`: the kernel granted it.
    fn started(&self, passthrough: bool);
    /// The session has ended: no request follows.
    fn ended(&self);
    /// The kernel refused the backing file of `fh`. The daemon serves its inode and all files
    /// opened later.
    fn no_passthrough(&self, fh: Fh);

    /// Returns whether a change below `parent` may wait for other requests: it must not block the
    /// thread that reads them.
    fn waits(&self, parent: NodeId) -> bool;
    fn lookup(&self, caller: Caller, parent: NodeId, name: &[u8]) -> SysResult<LookupResult>;
    fn forget(&self, node: NodeId, lookups: u64);
    fn getattr(&self, node: NodeId, fh: Option<Fh>) -> SysResult<Attr>;
    fn setattr(
        &self,
        caller: Caller,
        node: NodeId,
        fh: Option<Fh>,
        set: SetAttr,
    ) -> SysResult<Attr>;
    fn readlink(&self, node: NodeId) -> SysResult<Vec<u8>>;
    fn make(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewNode) -> SysResult<Entry>;
    fn symlink(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> SysResult<Entry>;
    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> SysResult<Entry>;
    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> SysResult<()>;
    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> SysResult<()>;
    fn rename(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        how: RenameMode,
    ) -> SysResult<()>;
    fn open(&self, caller: Caller, node: NodeId, flags: i32) -> SysResult<Opened>;
    /// The entry may be cached, but not always its attributes: the adapter calls
    /// [`Service::created`] after the reply.
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> SysResult<(Entry, Opened)>;
    /// The kernel has received the reply of a CREATE.
    fn created(&self, node: NodeId);
    /// `for_cache`: the kernel will cache the data, rather than only pass it to the reader (no
    /// `FUSE_READ_LOCKOWNER`: `fuse_send_read` in fs/fuse/file.c).
    fn read(
        &self,
        node: NodeId,
        fh: Fh,
        offset: u64,
        size: u32,
        for_cache: bool,
    ) -> SysResult<Vec<u8>>;
    /// `from_cache`: writeback of dirty pages of a mapping (`FUSE_WRITE_CACHE`).
    fn write(
        &self,
        caller: Caller,
        node: NodeId,
        fh: Fh,
        offset: u64,
        data: &[u8],
        from_cache: bool,
    ) -> SysResult<u32>;
    fn flush(&self, node: NodeId, fh: Fh) -> SysResult<()>;
    fn release(&self, node: NodeId, fh: Fh);
    fn fsync(&self, node: NodeId, fh: Fh, data_only: bool) -> SysResult<()>;
    /// Returns a batch of names from `offset` on, at least one before the end. An offset remains
    /// valid for all readers while names are created and removed. Directories have no handles,
    /// because the kernel caches listings and may skip OPENDIR.
    fn readdir(&self, node: NodeId, offset: u64) -> SysResult<Names>;
    /// Returns the entry of a listed name for READDIRPLUS. It counts as a lookup if the adapter
    /// sends it; for an entry that did not fit, the adapter calls [`Service::forget`]. `None`:
    /// removed, or on another filesystem; it is listed without attributes.
    fn plus(&self, parent: NodeId, listed: &Listed) -> Option<Plus>;
    fn fsyncdir(&self, node: NodeId, data_only: bool) -> SysResult<()>;
    fn statfs(&self, node: NodeId) -> SysResult<FsInfo>;
    fn setxattr(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
    ) -> SysResult<()>;
    fn getxattr(&self, node: NodeId, name: &[u8]) -> SysResult<Vec<u8>>;
    fn listxattr(&self, caller: Caller, node: NodeId) -> SysResult<Vec<Vec<u8>>>;
    fn removexattr(&self, caller: Caller, node: NodeId, name: &[u8]) -> SysResult<()>;
    fn access(&self, caller: Caller, node: NodeId, mask: i32) -> SysResult<()>;
    /// `mode`: flags of fallocate(2).
    fn fallocate(
        &self,
        caller: Caller,
        node: NodeId,
        fh: Fh,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> SysResult<()>;
    fn lseek(&self, node: NodeId, fh: Fh, offset: u64, seek: Seek) -> SysResult<u64>;
    fn copy_file_range(
        &self,
        caller: Caller,
        from: (NodeId, Fh, u64),
        to: (NodeId, Fh, u64),
        length: u64,
    ) -> SysResult<u64>;
}
