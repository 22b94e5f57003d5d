//! The adapter between `fuser` and the engine: each handler decodes, calls, replies.
//!
//! A panic in a handler would end its thread without a word; it is caught, and the dropped reply answers EIO (`Drop for ReplyRaw` in `fuser`).
//! Locks: none here; [`Backings`] has its own.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BackingId, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::backing::Backings;
use super::convert::{self, caller, errno, handle, node};
use super::listing;
use crate::engine::counts::{RequestCounts, RequestKind as Kind};
use crate::engine::request::{Attr, Entry, Looked, NodeId, Opened, Service};
use crate::sys::{Errno, SysResult};

/// The largest read or write in one request. The kernel has no more pages for one by default (`fuse.max_pages_limit` is 256).
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Requests that nobody waits for (readahead, releases) and that the kernel may have under way at once; it slows down at three quarters.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// The most that one COPY_FILE_RANGE may ask for: its reply counts in 32 bits, and the kernel wants whole pages.
const COPY_BYTES_MAX: u64 = 0xffff_f000;

/// What is asked of the kernel, where it can. Left out on purpose:
/// - AUTO_INVAL_DATA: nothing changes behind the mount, caches are dropped by [`Caches`](crate::engine::request::Caches) only;
/// - WRITEBACK_CACHE: its dirty pages die with the daemon, and it excludes passthrough;
/// - POSIX_LOCKS, FLOCK_LOCKS: without them the kernel keeps locks itself;
/// - EXPORT_SUPPORT: needs look-ups of `.` in nodes long forgotten;
/// - NO_OPEN_SUPPORT, NO_OPENDIR_SUPPORT: every open is wanted;
/// - SETXATTR_EXT, SECURITY_CTX, CREATE_SUPP_GROUP, ALLOW_IDMAP, OVER_IO_URING: `fuser` 0.18.0 accepts them and does not serve them.
///
/// DONT_MASK with POSIX_ACL: the mode comes as asked for, with the umask beside it, because a default ACL takes the umask's place.
/// HANDLE_KILLPRIV_V2: the engine clears set-id bits, so the kernel need not ask for `security.capability` before each write.
/// DIRECT_IO_ALLOW_MMAP: a file opened with FOPEN_DIRECT_IO can be mapped like any other.
const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_ATOMIC_O_TRUNC)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);

/// Serves a [`Service`] to the kernel.
pub struct Adapter {
    service: Arc<dyn Service>,
    counts: Arc<RequestCounts>,
    passthrough: bool,
    started: bool,
    backings: Backings<BackingId>,
}

fn answer_empty(result: SysResult<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_entry(result: SysResult<Entry>, reply: ReplyEntry) {
    match result {
        Ok(entry) => reply.entry(&entry.ttl, &convert::file_attr(&entry.stat), convert::generation(&entry)),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_attr(result: SysResult<Attr>, reply: ReplyAttr) {
    match result {
        Ok(attr) => reply.attr(&attr.ttl, &convert::file_attr(&attr.stat)),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_written(result: SysResult<u32>, reply: ReplyWrite) {
    match result {
        Ok(bytes) => reply.written(bytes),
        Err(error) => reply.error(errno(error)),
    }
}

/// Size 0 asks for the size; a buffer that is too small gets ERANGE (getxattr(2)).
fn answer_xattr(result: SysResult<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(errno(Errno::ERANGE)),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}

impl Adapter {
    pub fn new(service: Arc<dyn Service>, passthrough: bool) -> Self {
        let counts = Arc::clone(service.counts());
        Self { service, counts, passthrough, started: false, backings: Backings::new() }
    }

    /// Counts a request and runs its handler. If that panics the reply that it owned has answered EIO by the time this returns.
    fn guarded(&self, kind: Kind, handler: impl FnOnce()) {
        self.counts.count(kind);
        if catch_unwind(AssertUnwindSafe(handler)).is_err() {
            tracing::error!(request = kind.name(), "a request panicked and was answered with EIO");
        }
    }

    /// The backing id for an open that the engine wants passed through; `None` if it does not, or if the kernel refuses the file.
    fn backing_id(&self, node: NodeId, opened: &Opened, register: impl FnOnce(&File) -> io::Result<BackingId>) -> Option<Arc<BackingId>> {
        let file = opened.passthrough.as_ref()?;
        match self.backings.attach(node, opened.fh, || register(file)) {
            Ok(id) => Some(id),
            Err(error) => {
                tracing::debug!(node = node.0, %error, "the kernel refused a backing file");
                self.service.no_passthrough(opened.fh);
                None
            }
        }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = if cfg!(target_os = "linux") { config.capabilities() } else { InitFlags::empty() };
        let passthrough = self.passthrough && offered.contains(InitFlags::FUSE_PASSTHROUGH) && config.set_max_stack_depth(1).is_ok();
        let wanted = if passthrough { WANTED | InitFlags::FUSE_PASSTHROUGH } else { WANTED };
        let refused = config.add_capabilities(wanted & offered).err();
        debug_assert!(refused.is_none(), "the kernel offers what it refuses");
        // The setters answer a value out of range with the nearest one that they take.
        let _ = config.set_max_write(TRANSFER_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        tracing::debug!(offered = ?offered, passthrough, "the kernel's greeting");
        self.started = true;
        self.service.started(passthrough);
        Ok(())
    }

    fn destroy(&mut self) {
        if self.started {
            self.guarded(Kind::Destroy, || self.service.ended());
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.guarded(Kind::Lookup, || match self.service.lookup(caller(request), node(parent), name.as_bytes()) {
            Ok(Looked::Found(entry)) => answer_entry(Ok(entry), reply),
            Ok(Looked::Absent(ttl)) => reply.entry(&ttl, &convert::absent_attr(), fuser::Generation(0)),
            Err(error) => reply.error(errno(error)),
        });
    }

    /// BATCH_FORGET comes here too, through the trait's own `batch_forget`.
    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        if let Some(node) = convert::forgotten(ino) {
            self.guarded(Kind::Forget, || self.service.forget(node, nlookup));
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.guarded(Kind::Getattr, || answer_attr(self.service.getattr(node(ino), fh.map(handle)), reply));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.guarded(Kind::Setattr, || {
            let set = convert::set_attr(mode, uid, gid, size, atime, mtime);
            answer_attr(self.service.setattr(caller(request), node(ino), fh.map(handle), set), reply);
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.guarded(Kind::Readlink, || match self.service.readlink(node(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        self.guarded(Kind::Mknod, || {
            let new = convert::new_node(mode, umask, rdev).ok_or(Errno::EINVAL);
            answer_entry(new.and_then(|new| self.service.make(caller(request), node(parent), name.as_bytes(), new)), reply);
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.guarded(Kind::Mkdir, || {
            let new = convert::new_dir(mode, umask);
            answer_entry(self.service.make(caller(request), node(parent), name.as_bytes(), new), reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guarded(Kind::Unlink, || answer_empty(self.service.unlink(caller(request), node(parent), name.as_bytes()), reply));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guarded(Kind::Rmdir, || answer_empty(self.service.rmdir(caller(request), node(parent), name.as_bytes()), reply));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.guarded(Kind::Symlink, || {
            let target = target.as_os_str().as_bytes();
            answer_entry(self.service.symlink(caller(request), node(parent), name.as_bytes(), target), reply);
        });
    }

    fn rename(&self, _: &Request, parent: INodeNo, name: &OsStr, new_parent: INodeNo, new_name: &OsStr, flags: RenameFlags, reply: ReplyEmpty) {
        self.guarded(Kind::Rename, || {
            let how = convert::rename_how(flags).ok_or(Errno::EINVAL);
            let rename = |how| self.service.rename(node(parent), name.as_bytes(), node(new_parent), new_name.as_bytes(), how);
            answer_empty(how.and_then(rename), reply);
        });
    }

    fn link(&self, _: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        self.guarded(Kind::Link, || answer_entry(self.service.link(node(ino), node(new_parent), new_name.as_bytes()), reply));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.guarded(Kind::Open, || match self.service.open(caller(request), node(ino), flags.0) {
            Ok(opened) => {
                let fh = FileHandle(opened.fh.0);
                match self.backing_id(node(ino), &opened, |file| reply.open_backing(file)) {
                    Some(id) => reply.opened_passthrough(fh, convert::passthrough_flags(&opened), &id),
                    None => reply.opened(fh, convert::open_flags(&opened)),
                }
            }
            Err(error) => reply.error(errno(error)),
        });
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let mode = convert::create_mode(mode);
        self.guarded(Kind::Create, || match self.service.create(caller(request), node(parent), name.as_bytes(), mode, umask, flags) {
            Ok((entry, opened)) => {
                let (attr, generation, fh) = (convert::file_attr(&entry.stat), convert::generation(&entry), FileHandle(opened.fh.0));
                match self.backing_id(entry.node, &opened, |file| reply.open_backing(file)) {
                    Some(id) => reply.created_passthrough(&entry.ttl, &attr, generation, fh, convert::passthrough_flags(&opened), &id),
                    None => reply.created(&entry.ttl, &attr, generation, fh, convert::open_flags(&opened)),
                }
            }
            Err(error) => reply.error(errno(error)),
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.guarded(Kind::Read, || match self.service.read(node(ino), handle(fh), offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.guarded(Kind::Write, || {
            let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
            answer_written(self.service.write(caller(request), node(ino), handle(fh), offset, data, from_cache), reply);
        });
    }

    fn flush(&self, _: &Request, ino: INodeNo, fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        self.guarded(Kind::Flush, || answer_empty(self.service.flush(node(ino), handle(fh)), reply));
    }

    fn release(&self, _: &Request, ino: INodeNo, fh: FileHandle, _flags: OpenFlags, _lock_owner: Option<LockOwner>, _flush: bool, reply: ReplyEmpty) {
        self.guarded(Kind::Release, || {
            self.backings.detach(handle(fh));
            self.service.release(node(ino), handle(fh));
            reply.ok();
        });
    }

    fn fsync(&self, _: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.guarded(Kind::Fsync, || answer_empty(self.service.fsync(node(ino), handle(fh), datasync), reply));
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.guarded(Kind::Opendir, || match self.service.opendir(node(ino)) {
            Ok(opened) => reply.opened(FileHandle(opened.fh.0), convert::dir_flags(&opened)),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.guarded(Kind::Readdir, || {
            match listing::fill(&*self.service, node(ino), handle(fh), offset, |listed| listing::add(&mut reply, listed)) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.guarded(Kind::Readdirplus, || {
            let add = |listed: &_| listing::add_plus(&*self.service, node(ino), &mut reply, listed);
            match listing::fill(&*self.service, node(ino), handle(fh), offset, add) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn releasedir(&self, _: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.guarded(Kind::Releasedir, || {
            self.service.releasedir(handle(fh));
            reply.ok();
        });
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.guarded(Kind::Fsyncdir, || answer_empty(self.service.fsyncdir(node(ino), handle(fh), datasync), reply));
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.guarded(Kind::Statfs, || match self.service.statfs(node(ino)) {
            Ok(s) => reply.statfs(s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32, reply: ReplyEmpty) {
        self.guarded(Kind::Setxattr, || {
            let how = convert::xattr_how(flags, position).ok_or(Errno::EINVAL);
            answer_empty(how.and_then(|how| self.service.setxattr(caller(request), node(ino), name.as_bytes(), value, how)), reply);
        });
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.guarded(Kind::Getxattr, || answer_xattr(self.service.getxattr(node(ino), name.as_bytes()), size, reply));
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.guarded(Kind::Listxattr, || answer_xattr(self.service.listxattr(node(ino)).map(|names| convert::joined(&names)), size, reply));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guarded(Kind::Removexattr, || answer_empty(self.service.removexattr(caller(request), node(ino), name.as_bytes()), reply));
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.guarded(Kind::Access, || answer_empty(self.service.access(caller(request), node(ino), mask.bits()), reply));
    }

    fn fallocate(&self, request: &Request, ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        self.guarded(Kind::Fallocate, || answer_empty(self.service.fallocate(caller(request), node(ino), handle(fh), offset, length, mode), reply));
    }

    fn lseek(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.guarded(Kind::Lseek, || {
            let from = u64::try_from(offset).map_err(|_| Errno::ENXIO);
            let seek = convert::seek(whence).ok_or(Errno::EINVAL);
            let found = seek.and_then(|seek| self.service.lseek(node(ino), handle(fh), from?, seek));
            match found.and_then(|found| i64::try_from(found).map_err(|_| Errno::EOVERFLOW)) {
                Ok(found) => reply.offset(found),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.guarded(Kind::CopyFileRange, || {
            let from = (node(ino_in), handle(fh_in), offset_in);
            let to = (node(ino_out), handle(fh_out), offset_out);
            let copied = self.service.copy_file_range(caller(request), from, to, length.min(COPY_BYTES_MAX));
            answer_written(copied.and_then(|bytes| u32::try_from(bytes).map_err(|_| Errno::EIO)), reply);
        });
    }

    fn ioctl(&self, _: &Request, _ino: INodeNo, _fh: FileHandle, _flags: IoctlFlags, _command: u32, _data: &[u8], _out_size: u32, reply: ReplyIoctl) {
        self.guarded(Kind::Ioctl, || reply.error(errno(Errno::ENOTTY)));
    }

    /// ENOSYS: the kernel does not ask again.
    fn bmap(&self, _: &Request, _ino: INodeNo, _block_size: u32, _block: u64, reply: ReplyBmap) {
        self.guarded(Kind::Bmap, || reply.error(errno(Errno::ENOSYS)));
    }

    /// ENOSYS: the kernel does not ask again, and every file is ready at all times.
    fn poll(&self, _: &Request, _ino: INodeNo, _fh: FileHandle, _notifier: PollNotifier, _events: PollEvents, _flags: PollFlags, reply: ReplyPoll) {
        self.guarded(Kind::Poll, || reply.error(errno(Errno::ENOSYS)));
    }
}
