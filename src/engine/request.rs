//! What the kernel asks of a filesystem, in plain types: the face of the engine that `fuse/`
//! decodes requests for.
//!
//! Nothing here knows FUSE's wire format or `fuser`. Node ids are what the kernel calls `nodeid`;
//! they equal `st_ino`, for `fuser` 0.18 sends one number for both (docs/adr/0002-node-ids.md).

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::counts::RequestCounts;
use crate::store::record::Actor;
use crate::sys::{self, Asker, Errno, Kind, Ledger, Stat, SysResult};
pub use crate::sys::{FsInfo, RenameMode, SetTime, XattrMode};

/// The mount covers what it serves, so nothing changes behind it: the kernel may remember until it
/// is told otherwise.
pub(super) const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

/// A node as the kernel knows it: a live slot; or, with bit 62 set, an inode of the past; or, with
/// bit 61 set, one of the control nodes (`.snapshots` and what it lists).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// It is of the live tree.
    pub fn is_live(self) -> bool {
        self.0 >> 61 == 0
    }
}

/// An open file or directory, as the kernel hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fh(pub u64);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Filesystem user id.
    pub uid: u32,
    /// Filesystem group id.
    pub gid: u32,
    /// Id of the calling thread; 0 if the kernel does not tell.
    pub pid: u32,
    /// Number of the request.
    pub request: u64,
    /// The request was given to a worker that has died: it may have been done.
    pub again: bool,
}

impl Caller {
    /// Who asks, for what depends on rights that the kernel does not tell with a request.
    pub fn asker(&self) -> Asker {
        Asker {
            uid: self.uid,
            gid: self.gid,
            thread: self.pid,
        }
    }

    /// Who asks, for the record.
    pub fn actor(&self) -> Actor {
        Actor {
            uid: self.uid,
            gid: self.gid,
            pid: self.pid,
            process: sys::process_name(self.pid).unwrap_or_default(),
        }
    }
}

/// An open file, as one worker leaves it to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOpen {
    /// The handle.
    pub fh: Fh,
    /// Whose.
    pub node: NodeId,
    /// open(2)'s.
    pub flags: i32,
    /// The kernel does its I/O.
    pub passthrough: bool,
    /// As in [`Opened`].
    pub by: u64,
}

/// Rows of a ledger that tell of open files are `fuse/`'s; those of other kinds have other numbers
/// (2: `live`, 3: nodes of views, 4: `live`).
pub const LEFT_OPEN: u64 = 1;
/// The note of a ledger that names the thread that was announcing.
pub const NOTE_VOICE: usize = 0;
/// The note of a ledger that has what the kernel can do.
pub const NOTE_CAPABILITIES: usize = 1;
/// The note of a ledger that has the kernel's version of the protocol.
pub const NOTE_PROTOCOL: usize = 2;
/// The note of a ledger that has the number of the connection, plus one.
pub const NOTE_CONNECTION: usize = 3;

/// A node and how long the kernel may remember it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The node; equals `stat.ino`.
    pub node: NodeId,
    /// Tells two inodes apart that had one number in turn.
    pub generation: u64,
    /// Attributes; `ino` is the node's number.
    pub stat: Stat,
    /// How long the name and the attributes may be cached (one time for both: `fuser` sends one).
    pub ttl: Duration,
}

/// An entry that comes with a listing.
#[derive(Clone, Copy, Debug)]
pub struct Plus {
    /// The entry.
    pub entry: Entry,
    /// The kernel may take its attributes. Else it takes number and kind, and gives the look-up
    /// back with a FORGET.
    pub told: bool,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug)]
pub enum Looked {
    /// The name exists.
    Found(Entry),
    /// It does not, and the kernel may remember that for so long.
    Absent(Duration),
}

/// Attributes and how long they may be cached.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// Attributes; `ino` is the node's number.
    pub stat: Stat,
    /// How long they may be cached.
    pub ttl: Duration,
}

/// The attributes that a setattr changes; `None` stays.
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

/// A file that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The handle.
    pub fh: Fh,
    /// The kernel may keep what it has cached of the file (`FOPEN_KEEP_CACHE`).
    pub keep_cache: bool,
    /// Reads and writes bypass the page cache (`FOPEN_DIRECT_IO`).
    pub direct_io: bool,
    /// No FLUSH is wanted at close(2) (`FOPEN_NOFLUSH`).
    pub no_flush: bool,
    /// The kernel does the I/O on this backing file itself (`FOPEN_PASSTHROUGH`). Every open of a
    /// node while one is open gets the same choice, and the adapter gives them the same backing id.
    /// If the kernel refuses the backing file the adapter calls [`Service::no_passthrough`] and
    /// replies without.
    pub passthrough: Option<Arc<File>>,
    /// Who opened it for writing, in one word: `live::opener_word`; 0:
    /// nobody, or it is not known.
    pub by: u64,
}

/// A part of a listing.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The names, in order.
    pub names: Vec<Listed>,
    /// None comes after them.
    pub last: bool,
}

/// One name of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name; `.` and `..` included.
    pub name: Vec<u8>,
    /// Number for `d_ino`.
    pub node: NodeId,
    /// Kind for `d_type`.
    pub kind: Kind,
    /// The engine's own: the inode of the past that [`Service::plus`] need not look up again.
    pub slot: u64,
    /// Offset that continues after this name.
    pub next: u64,
}

/// What a mutation of the namespace makes.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// What to make: a directory, a fifo, a socket, a device node or a regular file.
    pub kind: Kind,
    /// Permission bits asked for; the umask is not yet applied.
    pub mode: u32,
    /// The caller's umask: applied unless the directory has a default ACL.
    pub umask: u32,
    /// Device number, for device nodes.
    pub rdev: u64,
}

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`).
    Hole,
}

/// What the engine tells the kernel to forget. Calls come from any thread that serves no request;
/// an implementation may block until the kernel has done it.
pub trait Caches: Send + Sync {
    /// Forgets all of this, in order.
    fn forget(&self, what: Vec<Stale>);
    /// Forgets the attributes of `node`. This alone waits for nothing, and may be called by threads
    /// that serve requests.
    fn forget_attributes(&self, node: NodeId);
    /// Forgets what `name` in `parent` leads to, and that it does not exist.
    fn forget_entry(&self, parent: NodeId, name: &[u8]) {
        self.forget(vec![Stale::Entry {
            parent,
            name: name.to_vec(),
        }]);
    }
    /// As [`Caches::forget_entry`], for a name that led to `child`, which has lost its last name:
    /// whoever watches it is told.
    fn delete_entry(&self, parent: NodeId, child: NodeId, name: &[u8]) {
        self.forget(vec![Stale::Deleted {
            parent,
            child,
            name: name.to_vec(),
        }]);
    }
    /// Writes back and forgets the cached data (and listing) of `node`, and its attributes.
    fn forget_data(&self, node: NodeId) {
        self.forget(vec![Stale::Data(node)]);
    }
}

/// What the kernel is to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stale {
    /// What a name leads to, and that it does not exist.
    Entry { parent: NodeId, name: Vec<u8> },
    /// As [`Stale::Entry`], for a name whose inode has lost its last name.
    Deleted {
        parent: NodeId,
        child: NodeId,
        name: Vec<u8>,
    },
    /// Cached data or listing, and attributes.
    Data(NodeId),
}

/// One method per request of the kernel. All may be called from several threads at once.
///
/// An error is the errno for the caller. `flags` of [`Service::open`] and [`Service::create`] are
/// open(2)'s.
#[allow(missing_docs, clippy::too_many_arguments)]
pub trait Service: Send + Sync {
    /// Where requests are to be counted.
    fn counts(&self) -> &Arc<RequestCounts>;
    /// What is left to the worker that takes over, if one would.
    fn ledger(&self) -> Option<Arc<Ledger>> {
        None
    }
    /// Takes over an open file of the worker before.
    fn adopt(&self, _left: &LeftOpen) -> SysResult<()> {
        Err(Errno::ESTALE)
    }
    /// All were taken over.
    fn adopted(&self) {}
    /// The session is up. `passthrough`: the kernel granted it.
    fn started(&self, passthrough: bool);
    /// The session has ended; nothing more will be asked.
    fn ended(&self);
    /// The kernel refused a backing file of `node`: from now on that node (all nodes, if `node` is
    /// `None`) is served by the daemon.
    fn no_passthrough(&self, fh: Fh);

    /// A change below `parent` may wait until other requests have been answered: it must not keep
    /// the thread that reads them.
    fn waits(&self, parent: NodeId) -> bool;
    fn lookup(&self, caller: Caller, parent: NodeId, name: &[u8]) -> SysResult<Looked>;
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
    /// The entry may be kept, but not always its attributes: [`Service::created`] is to be called
    /// once the kernel has it.
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> SysResult<(Entry, Opened)>;
    /// The kernel knows a file that was created.
    fn created(&self, node: NodeId);
    /// `for_cache`: the kernel will keep it, and not only give it to whoever reads (no
    /// `FUSE_READ_LOCKOWNER`: `fuse_send_read` in fs/fuse/file.c).
    fn read(
        &self,
        node: NodeId,
        fh: Fh,
        offset: u64,
        size: u32,
        for_cache: bool,
    ) -> SysResult<Vec<u8>>;
    /// `from_cache`: dirty pages of a mapping that the kernel writes back (`FUSE_WRITE_CACHE`).
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
    /// The names from `offset` on, as many as the engine likes (at least one unless at the end). An
    /// offset stays right while names come and go, and whoever asks: directories have no handles,
    /// for the kernel caches listings and need not tell of each opendir(3).
    fn readdir(&self, node: NodeId, offset: u64) -> SysResult<Names>;
    /// The entry of one listed name, for readdirplus; counts as a look-up when the adapter hands it
    /// to the kernel (it calls [`Service::forget`] for an entry that did not fit). `None`: it
    /// cannot be told (gone, or another filesystem); list it without attributes.
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
    /// `mode`: fallocate(2)'s bits.
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
