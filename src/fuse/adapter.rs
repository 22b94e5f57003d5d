//! The adapter between `fuser` and the engine: each handler decodes, calls, replies.
//!
//! Who serves a request is for the [`Dispatcher`] to say. A panic in a handler would end its thread
//! without a word; it is caught there, and the dropped reply answers EIO (`Drop for ReplyRaw` in
//! `fuser`). Locks: none here; [`Backings`] has its own.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::backing::{Backings, Device, Registered};
use super::convert::{self, caller, errno, handle, node};
use super::dispatch::Dispatcher;
use super::listing;
use super::takeover::Opens;
use super::xattrs::Xattrs;
use crate::engine::counts::RequestKind as Kind;
use crate::engine::request::{
    Attr, Caller, Entry, Looked, NOTE_CAPABILITIES, NOTE_PROTOCOL, NodeId, Opened, Service,
};
use crate::sys::{self, Errno, SysResult, wait};

/// The largest read or write in one request. The kernel has no more pages for one by default
/// (`fuse.max_pages_limit` is 256).
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Requests that nobody waits for (readahead, releases) and that the kernel may have under way at
/// once; it slows down at three quarters.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// The most that one COPY_FILE_RANGE may ask for: its reply counts in 32 bits, and the kernel wants
/// whole pages.
const COPY_BYTES_MAX: u64 = 0xffff_f000;

/// What is asked of the kernel, where it can. Left out on purpose:
/// - AUTO_INVAL_DATA: nothing changes behind the mount, caches are dropped by
///   [`Caches`](crate::engine::request::Caches) only;
/// - WRITEBACK_CACHE: its dirty pages die with the daemon, and it excludes passthrough;
/// - POSIX_LOCKS, FLOCK_LOCKS: without them the kernel keeps locks itself;
/// - NO_OPEN_SUPPORT: every open of a file is wanted;
/// - SETXATTR_EXT, SECURITY_CTX, CREATE_SUPP_GROUP, ALLOW_IDMAP, OVER_IO_URING: `fuser` 0.18.0
///   accepts them and does not serve them.
///
/// DONT_MASK with POSIX_ACL: the mode comes as asked for, with the umask beside it, because a
/// default ACL takes the umask's place. HANDLE_KILLPRIV_V2: the engine clears set-id bits, so the
/// kernel need not ask for `security.capability` before each write. NO_EXPORT_SUPPORT: a handle
/// (name_to_handle_at(2), NFS) must lead to an inode that everybody has forgotten, and a number
/// alone does not; without this the kernel hands out handles that are ESTALE as soon as it has
/// dropped the inode. fanotify(7) can identify inodes all the same. DIRECT_IO_ALLOW_MMAP: a file
/// opened with FOPEN_DIRECT_IO can be mapped like any other.
const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_ATOMIC_O_TRUNC)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_NO_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);

/// What serves a request, on whichever thread.
struct Server {
    service: Arc<dyn Service>,
    device: Arc<Device>,
    backings: Backings<Registered>,
    opens: Opens,
}

/// Serves a [`Service`] to the kernel.
pub struct Adapter {
    server: Arc<Server>,
    dispatcher: Arc<Dispatcher>,
    passthrough: bool,
    xattrs: Xattrs,
    /// The kernel opens directories without asking once it was told to.
    dirs_unasked: bool,
    started: bool,
}

fn answer_empty(result: SysResult<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_entry(result: SysResult<Entry>, reply: ReplyEntry) {
    match result {
        Ok(entry) => reply.entry(
            &entry.ttl,
            &convert::file_attr(&entry.stat),
            convert::generation(&entry),
        ),
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

impl Server {
    /// The backing id for an open that the engine wants passed through; `None` if it does not, or
    /// if the kernel refuses the file.
    fn backing_id(&self, node: NodeId, opened: &Opened) -> Option<Arc<Registered>> {
        let file = opened.passthrough.as_ref()?;
        match self
            .backings
            .attach(node, opened.fh, || Registered::new(&self.device, file))
        {
            Ok(id) => Some(id),
            Err(error) => {
                tracing::debug!(node = node.0, %error, "the kernel refused a backing file");
                self.service.no_passthrough(opened.fh);
                None
            }
        }
    }
}

impl Server {
    /// A worker before us may have done this open and died before the kernel heard of it: nobody
    /// will ever close that handle.
    fn undo_open(&self, caller: Caller) {
        if let Some((node, fh)) = self.opens.unanswered(caller) {
            self.opens.part(fh);
            self.backings.detach(fh);
            self.service.release(node, fh);
            self.opens.remove(fh);
        }
    }

    fn adopt(&self) {
        for (left, backing) in self.opens.left() {
            if let Err(error) = self.service.adopt(&left) {
                tracing::warn!(node = left.node.0, fh = left.fh.0, %error, "an open file cannot be taken over");
            }
            if let Some(number) = backing {
                let adopted = self.backings.attach(left.node, left.fh, || {
                    Ok::<_, ()>(Registered::adopt(&self.device, number))
                });
                debug_assert!(adopted.is_ok(), "nothing can fail");
            }
        }
        self.service.adopted();
    }
}

impl Adapter {
    pub fn new(
        service: Arc<dyn Service>,
        passthrough: bool,
        xattrs: Xattrs,
        readers: usize,
    ) -> Self {
        let dispatcher = Arc::new(Dispatcher::new(Arc::clone(service.counts()), readers));
        let opens = Opens::new(service.ledger());
        let server = Server {
            service,
            device: Arc::default(),
            backings: Backings::new(),
            opens,
        };
        Self {
            server: Arc::new(server),
            dispatcher,
            passthrough,
            xattrs,
            dirs_unasked: false,
            started: false,
        }
    }

    /// What the session's `/dev/fuse` is to be told to, once there is one.
    pub fn device(&self) -> Arc<Device> {
        Arc::clone(&self.server.device)
    }

    /// What takes over the open files of the worker before, when the session is there and before it
    /// serves anything.
    pub fn adopter(&self) -> impl FnOnce() + use<> {
        let server = Arc::clone(&self.server);
        move || server.adopt()
    }

    /// Serves a request, here or on another thread.
    fn serve(&self, kind: Kind, handler: impl FnOnce(&Server) + Send + 'static) {
        if self.dispatcher.hands_on(kind) {
            self.apart(kind, handler)
        } else {
            self.dispatcher.here(kind, || handler(&self.server))
        }
    }

    fn apart(&self, kind: Kind, handler: impl FnOnce(&Server) + Send + 'static) {
        let server = Arc::clone(&self.server);
        self.dispatcher.apart(kind, move || handler(&server));
    }

    /// As [`Adapter::serve`], for what may have to wait for somebody else's process, or to take its
    /// time before it changes anything: that is found out by trying.
    fn serve_patiently<T>(
        &self,
        kind: Kind,
        attempt: impl Fn(&Server) -> SysResult<T> + Send + 'static,
        answer: impl FnOnce(&Server, SysResult<T>) + Send + 'static,
    ) {
        if self.dispatcher.hands_on(kind) {
            return self.apart(kind, move |server| answer(server, attempt(server)));
        }
        let mut again = None;
        self.dispatcher
            .here(kind, || match wait::never(|| attempt(&self.server)) {
                Err(Errno::LATER) => again = Some((attempt, answer)),
                done => answer(&self.server, done),
            });
        if let Some((attempt, answer)) = again {
            let server = Arc::clone(&self.server);
            self.dispatcher
                .again(kind, move || answer(&server, attempt(&server)));
        }
    }

    /// As [`Adapter::serve`], for a change below `parent`, which may have to wait for other
    /// requests.
    fn serve_change(
        &self,
        kind: Kind,
        parent: INodeNo,
        handler: impl FnOnce(&Server) + Send + 'static,
    ) {
        if self.server.service.waits(node(parent)) {
            self.apart(kind, handler)
        } else {
            self.serve(kind, handler)
        }
    }
}

impl Adapter {
    /// As [`Adapter::serve_change`], for what takes a name from a file.
    fn serve_removal(
        &self,
        kind: Kind,
        parent: INodeNo,
        attempt: impl Fn(&Server) -> SysResult<()> + Send + 'static,
        reply: ReplyEmpty,
    ) {
        if self.server.service.waits(node(parent)) {
            return self.apart(kind, move |server| answer_empty(attempt(server), reply));
        }
        self.serve_patiently(kind, attempt, |_, done| answer_empty(done, reply));
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = if cfg!(target_os = "linux") {
            config.capabilities()
        } else {
            InitFlags::empty()
        };
        let passthrough = self.passthrough
            && offered.contains(InitFlags::FUSE_PASSTHROUGH)
            && config.set_max_stack_depth(1).is_ok();
        let wanted = if passthrough {
            WANTED | InitFlags::FUSE_PASSTHROUGH
        } else {
            WANTED
        };
        let refused = config.add_capabilities(wanted & offered).err();
        debug_assert!(refused.is_none(), "the kernel offers what it refuses");
        // The setters answer a value out of range with the nearest one that they take.
        let _ = config.set_max_write(TRANSFER_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        tracing::debug!(offered = ?offered, passthrough, "the kernel's greeting");
        self.dirs_unasked = offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        if let Some(ledger) = self.server.service.ledger() {
            let fuser::Version(major, minor) = config.kernel_abi();
            ledger.note(NOTE_CAPABILITIES, config.capabilities().bits());
            ledger.note(NOTE_PROTOCOL, u64::from(major) << 32 | u64::from(minor));
        }
        self.started = true;
        self.server.service.started(passthrough);
        Ok(())
    }

    fn destroy(&mut self) {
        if self.started {
            self.dispatcher.wait_idle();
            self.dispatcher
                .here(Kind::Destroy, || self.server.service.ended());
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = (caller(request), name.as_bytes().to_vec());
        self.serve(Kind::Lookup, move |server| {
            match server.service.lookup(caller, node(parent), &name) {
                Ok(Looked::Found(entry)) => answer_entry(Ok(entry), reply),
                Ok(Looked::Absent(ttl)) => {
                    reply.entry(&ttl, &convert::absent_attr(), fuser::Generation(0))
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// BATCH_FORGET comes here too, through the trait's own `batch_forget`.
    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        if let Some(node) = convert::forgotten(ino) {
            self.serve(Kind::Forget, move |server| {
                server.service.forget(node, nlookup)
            });
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.serve(Kind::Getattr, move |server| {
            answer_attr(server.service.getattr(node(ino), fh.map(handle)), reply)
        });
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
        let caller = caller(request);
        let set = convert::set_attr(mode, uid, gid, size, atime, mtime);
        let attempt = move |server: &Server| {
            server
                .service
                .setattr(caller, node(ino), fh.map(handle), set)
        };
        self.serve_patiently(Kind::Setattr, attempt, |_, done| answer_attr(done, reply));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.serve(Kind::Readlink, move |server| {
            match server.service.readlink(node(ino)) {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes().to_vec();
        let caller = caller(request);
        self.serve_change(Kind::Mknod, parent, move |server| {
            let new = convert::new_node(mode, umask, rdev).ok_or(Errno::EINVAL);
            answer_entry(
                new.and_then(|new| server.service.make(caller, node(parent), &name, new)),
                reply,
            );
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes().to_vec();
        let caller = caller(request);
        self.serve_change(Kind::Mkdir, parent, move |server| {
            let new = convert::new_dir(mode, umask);
            answer_entry(server.service.make(caller, node(parent), &name, new), reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request), name.as_bytes().to_vec());
        let attempt = move |server: &Server| server.service.unlink(caller, node(parent), &name);
        self.serve_removal(Kind::Unlink, parent, attempt, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request), name.as_bytes().to_vec());
        let attempt = move |server: &Server| server.service.rmdir(caller, node(parent), &name);
        self.serve_removal(Kind::Rmdir, parent, attempt, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes().to_vec();
        let target = target.as_os_str().as_bytes().to_vec();
        let caller = caller(request);
        self.serve_change(Kind::Symlink, parent, move |server| {
            answer_entry(
                server.service.symlink(caller, node(parent), &name, &target),
                reply,
            );
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes().to_vec();
        let new_name = new_name.as_bytes().to_vec();
        let caller = caller(request);
        let attempt = move |server: &Server| {
            let how = convert::rename_how(flags).ok_or(Errno::EINVAL)?;
            server.service.rename(
                caller,
                node(parent),
                &name,
                node(new_parent),
                &new_name,
                how,
            )
        };
        self.serve_removal(Kind::Rename, parent, attempt, reply);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let new_name = new_name.as_bytes().to_vec();
        let caller = caller(request);
        let attempt = move |server: &Server| {
            server
                .service
                .link(caller, node(ino), node(new_parent), &new_name)
        };
        self.serve_patiently(Kind::Link, attempt, |_, done| answer_entry(done, reply));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(request);
        let attempt = move |server: &Server| {
            server.undo_open(caller);
            server.service.open(caller, node(ino), flags.0)
        };
        self.serve_patiently(Kind::Open, attempt, move |server, done| {
            match done {
                Ok(opened) => {
                    let fh = FileHandle(opened.fh.0);
                    let id = server.backing_id(node(ino), &opened);
                    server.opens.enter(
                        caller,
                        node(ino),
                        &opened,
                        flags.0,
                        id.as_deref().map(|id| id.number),
                    );
                    match id {
                        Some(id) => {
                            let wrapped =
                                sys::wrap_number(ReplyOpen::wrap_backing, &reply, id.number);
                            reply.opened_passthrough(
                                fh,
                                convert::passthrough_flags(&opened),
                                &wrapped,
                            );
                            // It stays registered: it is ours, and the reply borrowed it.
                            wrapped.into_raw();
                        }
                        None => reply.opened(fh, convert::open_flags(&opened)),
                    }
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mode = convert::create_mode(mode);
        let name = name.as_bytes().to_vec();
        let caller = caller(request);
        self.serve(Kind::Create, move |server| {
            server.undo_open(caller);
            match server
                .service
                .create(caller, node(parent), &name, mode, umask, flags)
            {
                Ok((entry, opened)) => {
                    let (attr, generation, fh) = (
                        convert::file_attr(&entry.stat),
                        convert::generation(&entry),
                        FileHandle(opened.fh.0),
                    );
                    let id = server.backing_id(entry.node, &opened);
                    server.opens.enter(
                        caller,
                        entry.node,
                        &opened,
                        flags,
                        id.as_deref().map(|id| id.number),
                    );
                    match id {
                        Some(id) => {
                            let wrapped =
                                sys::wrap_number(ReplyCreate::wrap_backing, &reply, id.number);
                            reply.created_passthrough(
                                &entry.ttl,
                                &attr,
                                generation,
                                fh,
                                convert::passthrough_flags(&opened),
                                &wrapped,
                            );
                            wrapped.into_raw();
                        }
                        None => reply.created(
                            &entry.ttl,
                            &attr,
                            generation,
                            fh,
                            convert::open_flags(&opened),
                        ),
                    }
                    server.service.created(entry.node);
                }
                Err(error) => reply.error(errno(error)),
            }
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
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve(Kind::Read, move |server| {
            match server
                .service
                .read(node(ino), handle(fh), offset, size, lock_owner.is_none())
            {
                Ok(data) => reply.data(&data),
                Err(error) => reply.error(errno(error)),
            }
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
        let caller = caller(request);
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let write = move |server: &Server, data: &[u8]| {
            server
                .service
                .write(caller, node(ino), handle(fh), offset, data, from_cache)
        };
        if self.dispatcher.hands_on(Kind::Write) {
            let data = data.to_vec();
            return self.apart(Kind::Write, move |server| {
                answer_written(write(server, &data), reply)
            });
        }
        let mut again = None;
        // The data is still where it was read, and is not copied.
        self.dispatcher.here(Kind::Write, || {
            match wait::never(|| write(&self.server, data)) {
                Err(Errno::LATER) => again = Some(reply),
                done => answer_written(done, reply),
            }
        });
        if let Some(reply) = again {
            let (server, data) = (Arc::clone(&self.server), data.to_vec());
            self.dispatcher.again(Kind::Write, move || {
                answer_written(write(&server, &data), reply)
            });
        }
    }

    fn flush(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.serve(Kind::Flush, move |server| {
            answer_empty(server.service.flush(node(ino), handle(fh)), reply)
        });
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.serve(Kind::Release, move |server| {
            server.opens.part(handle(fh));
            server.backings.detach(handle(fh));
            server.service.release(node(ino), handle(fh));
            server.opens.remove(handle(fh));
            reply.ok();
        });
    }

    fn fsync(&self, _: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.serve(Kind::Fsync, move |server| {
            answer_empty(server.service.fsync(node(ino), handle(fh), datasync), reply)
        });
    }

    /// ENOSYS where the kernel understands it: directories are opened without asking from then on,
    /// as with [`convert::dir_flags`].
    fn opendir(&self, _: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let unasked = self.dirs_unasked;
        self.serve(Kind::Opendir, move |_| {
            if unasked {
                reply.error(errno(Errno::ENOSYS))
            } else {
                reply.opened(FileHandle(0), convert::dir_flags())
            }
        });
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.serve(Kind::Readdir, move |server| {
            match listing::fill(&*server.service, node(ino), offset, |listed| {
                listing::add(&mut reply, listed)
            }) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.serve(Kind::Readdirplus, move |server| {
            let add =
                |listed: &_| listing::add_plus(&*server.service, node(ino), &mut reply, listed);
            match listing::fill(&*server.service, node(ino), offset, add) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.serve(Kind::Releasedir, move |_| reply.ok());
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.serve(Kind::Fsyncdir, move |server| {
            answer_empty(server.service.fsyncdir(node(ino), datasync), reply)
        });
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.serve(Kind::Statfs, move |server| {
            match server.service.statfs(node(ino)) {
                Ok(s) => reply.statfs(
                    s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
                ),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        position: u32,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes().to_vec();
        let value = value.to_vec();
        let (caller, served) = (caller(request), self.xattrs);
        let attempt = move |server: &Server| {
            served.check(&name, Errno::EOPNOTSUPP)?;
            let how = convert::xattr_how(flags, position).ok_or(Errno::EINVAL)?;
            server
                .service
                .setxattr(caller, node(ino), &name, &value, how)
        };
        self.serve_patiently(Kind::Setxattr, attempt, |_, done| answer_empty(done, reply));
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (name, served) = (name.as_bytes().to_vec(), self.xattrs);
        self.serve(Kind::Getxattr, move |server| {
            let value = served
                .check(&name, Errno::NO_XATTR)
                .and_then(|()| server.service.getxattr(node(ino), &name));
            answer_xattr(value, size, reply);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let (caller, served) = (caller(request), self.xattrs);
        self.serve(Kind::Listxattr, move |server| {
            let names = served.list(|| server.service.listxattr(caller, node(ino)));
            answer_xattr(names.map(|names| convert::joined(&names)), size, reply)
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        let (caller, served) = (caller(request), self.xattrs);
        let attempt = move |server: &Server| {
            served.check(&name, Errno::EOPNOTSUPP)?;
            server.service.removexattr(caller, node(ino), &name)
        };
        self.serve_patiently(Kind::Removexattr, attempt, |_, done| {
            answer_empty(done, reply)
        });
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let caller = caller(request);
        self.serve(Kind::Access, move |server| {
            answer_empty(server.service.access(caller, node(ino), mask.bits()), reply)
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(request);
        self.serve(Kind::Fallocate, move |server| {
            answer_empty(
                server
                    .service
                    .fallocate(caller, node(ino), handle(fh), offset, length, mode),
                reply,
            )
        });
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.serve(Kind::Lseek, move |server| {
            let from = u64::try_from(offset).map_err(|_| Errno::ENXIO);
            let seek = convert::seek(whence).ok_or(Errno::EINVAL);
            let found =
                seek.and_then(|seek| server.service.lseek(node(ino), handle(fh), from?, seek));
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
        let caller = caller(request);
        self.serve(Kind::CopyFileRange, move |server| {
            let from = (node(ino_in), handle(fh_in), offset_in);
            let to = (node(ino_out), handle(fh_out), offset_out);
            let copied =
                server
                    .service
                    .copy_file_range(caller, from, to, length.min(COPY_BYTES_MAX));
            answer_written(
                copied.and_then(|bytes| u32::try_from(bytes).map_err(|_| Errno::EIO)),
                reply,
            );
        });
    }

    fn ioctl(
        &self,
        _: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.serve(Kind::Ioctl, move |_| reply.error(errno(Errno::ENOTTY)));
    }

    /// ENOSYS: the kernel does not ask again.
    fn bmap(&self, _: &Request, _ino: INodeNo, _block_size: u32, _block: u64, reply: ReplyBmap) {
        self.serve(Kind::Bmap, move |_| reply.error(errno(Errno::ENOSYS)));
    }

    /// ENOSYS: the kernel does not ask again, and every file is ready at all times.
    fn poll(
        &self,
        _: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.serve(Kind::Poll, move |_| reply.error(errno(Errno::ENOSYS)));
    }
}
