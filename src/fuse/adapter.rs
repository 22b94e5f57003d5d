//! The adapter between `fuser` and the engine: each handler decodes a request, and specifies the
//! call and the form of the reply. [`RequestExecutor`] executes it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};

use super::answer::{self, SendReply};
use super::backing::FuseDevice;
use super::convert::{self, caller, errno, handle, node};
use super::init_handshake::{self, NegotiatedFeatures};
use super::listing;
use super::server::{RequestContext, RequestExecutor};
use super::xattrs::Xattrs;
use ckptfs_core::engine::counts::RequestKind as Kind;
use ckptfs_core::engine::request::{Caller, Service};
use ckptfs_sys::{Errno, wait};

/// Maximum length of one COPY_FILE_RANGE: its reply has 32 bits, and the kernel requires whole
/// pages.
const COPY_BYTES_MAX: u64 = 0xffff_f000;

/// Serves a [`Service`] to the kernel.
pub struct Adapter {
    requests: RequestExecutor,
    passthrough: bool,
    xattrs: Xattrs,
    /// The negotiated capabilities, once the session exists.
    agreed: Option<NegotiatedFeatures>,
}

impl Adapter {
    pub fn new(
        service: Arc<dyn Service>,
        passthrough: bool,
        xattrs: Xattrs,
        readers: usize,
    ) -> Self {
        Self {
            requests: RequestExecutor::new(service, readers),
            passthrough,
            xattrs,
            agreed: None,
        }
    }

    /// Returns the slot for `/dev/fuse`, to be set when the session exists.
    pub fn device(&self) -> Arc<FuseDevice> {
        Arc::clone(&self.requests.server.device)
    }

    /// Returns a function that takes over the open files of the predecessor. It must be called
    /// after the session is created and before it serves requests.
    pub fn adopter(&self) -> impl FnOnce() + use<> {
        let server = Arc::clone(&self.requests.server);
        move || server.adopt()
    }
}

/// The caller and the name of a request.
fn named(request: &Request, name: &OsStr) -> (Caller, Vec<u8>) {
    (caller(request), name.as_bytes().to_vec())
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let service = &self.requests.server.service;
        let agreed = init_handshake::greet(config, self.passthrough, service.ledger().as_deref());
        service.started(agreed.passthrough);
        self.agreed = Some(agreed);
        Ok(())
    }

    fn destroy(&mut self) {
        let RequestExecutor { server, dispatcher } = &self.requests;
        if self.agreed.is_some() {
            dispatcher.wait_idle();
            dispatcher.here(Kind::Destroy, || server.service.ended());
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = named(request, name);
        self.requests.answer(Kind::Lookup, reply, move |service| {
            service.lookup(caller, node(parent), &name)
        });
    }

    /// BATCH_FORGET also arrives here, through the trait's default `batch_forget`.
    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        if let Some(node) = convert::forgotten(ino) {
            self.requests.serve(Kind::Forget, move |server| {
                server.service.forget(node, nlookup)
            });
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.requests.answer(Kind::Getattr, reply, move |service| {
            service.getattr(node(ino), fh.map(handle))
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
        let attempt = move |service: &dyn Service| {
            let fh = fh.map(handle);
            service.setattr(caller, node(ino), fh, set)
        };
        self.requests.patiently(Kind::Setattr, reply, attempt);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.requests.answer(Kind::Readlink, reply, move |service| {
            service.readlink(node(ino))
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
        let ((caller, name), parent) = (named(request, name), node(parent));
        let make = move |service: &dyn Service| {
            let new = convert::new_node(mode, umask, rdev).ok_or(Errno::EINVAL)?;
            service.make(caller, parent, &name, new)
        };
        self.requests.change(Kind::Mknod, parent, reply, make);
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
        let ((caller, name), parent) = (named(request, name), node(parent));
        let new = convert::new_dir(mode, umask);
        let make = move |service: &dyn Service| service.make(caller, parent, &name, new);
        self.requests.change(Kind::Mkdir, parent, reply, make);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ((caller, name), parent) = (named(request, name), node(parent));
        let attempt = move |service: &dyn Service| service.unlink(caller, parent, &name);
        self.requests.removal(Kind::Unlink, parent, reply, attempt);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ((caller, name), parent) = (named(request, name), node(parent));
        let attempt = move |service: &dyn Service| service.rmdir(caller, parent, &name);
        self.requests.removal(Kind::Rmdir, parent, reply, attempt);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let ((caller, name), parent) = (named(request, name), node(parent));
        let target = target.as_os_str().as_bytes().to_vec();
        let make = move |service: &dyn Service| service.symlink(caller, parent, &name, &target);
        self.requests.change(Kind::Symlink, parent, reply, make);
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
        let ((caller, name), parent) = (named(request, name), node(parent));
        let (new_parent, new_name) = (node(new_parent), new_name.as_bytes().to_vec());
        let attempt = move |service: &dyn Service| {
            let how = convert::rename_how(flags).ok_or(Errno::EINVAL)?;
            service.rename(caller, parent, &name, new_parent, &new_name, how)
        };
        self.requests.removal(Kind::Rename, parent, reply, attempt);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (caller, new_name) = named(request, new_name);
        let attempt = move |service: &dyn Service| {
            service.link(caller, node(ino), node(new_parent), &new_name)
        };
        self.requests.patiently(Kind::Link, reply, attempt);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, node) = (caller(request), node(ino));
        let attempt = move |server: &RequestContext| {
            server.undo_open(caller);
            server.service.open(caller, node, flags.0)
        };
        self.requests
            .serve_patiently(Kind::Open, attempt, move |server, done| match done {
                Ok(opened) => {
                    let id = server.enter(caller, node, &opened, flags.0);
                    answer::opened(reply, &opened, id.as_deref());
                }
                Err(error) => reply.error(errno(error)),
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
        let ((caller, name), parent) = (named(request, name), node(parent));
        self.requests.serve(Kind::Create, move |server| {
            server.undo_open(caller);
            let made = server
                .service
                .create(caller, parent, &name, mode, umask, flags);
            match made {
                Ok((entry, opened)) => {
                    let id = server.enter(caller, entry.node, &opened, flags);
                    answer::created(reply, &entry, &opened, id.as_deref());
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
        let for_cache = lock_owner.is_none();
        self.requests.answer(Kind::Read, reply, move |service| {
            service.read(node(ino), handle(fh), offset, size, for_cache)
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
        let write = move |server: &RequestContext, data: &[u8]| {
            server
                .service
                .write(caller, node(ino), handle(fh), offset, data, from_cache)
        };
        let RequestExecutor { server, dispatcher } = &self.requests;
        if dispatcher.hands_on(Kind::Write) {
            let data = data.to_vec();
            return self.requests.apart(Kind::Write, move |server| {
                reply.answer(write(server, &data))
            });
        }
        let mut again = None;
        // The data is still in the receive buffer, and is not copied.
        dispatcher.here(Kind::Write, || match wait::never(|| write(server, data)) {
            Err(Errno::LATER) => again = Some(reply),
            done => reply.answer(done),
        });
        if let Some(reply) = again {
            let (server, data) = (Arc::clone(server), data.to_vec());
            dispatcher.again(Kind::Write, move || reply.answer(write(&server, &data)));
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
        self.requests.answer(Kind::Flush, reply, move |service| {
            service.flush(node(ino), handle(fh))
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
        self.requests.serve(Kind::Release, move |server| {
            server.release(node(ino), handle(fh));
            reply.ok();
        });
    }

    fn fsync(&self, _: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.requests.answer(Kind::Fsync, reply, move |service| {
            service.fsync(node(ino), handle(fh), datasync)
        });
    }

    /// Replies ENOSYS if the kernel supports that: it then opens directories without a request, as
    /// with [`convert::dir_flags`].
    fn opendir(&self, _: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let unasked = self.agreed.is_some_and(|agreed| agreed.dirs_unasked);
        self.requests.serve(Kind::Opendir, move |_| {
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
        self.requests.serve(Kind::Readdir, move |server| {
            let add = |listed: &_| listing::add(&mut reply, listed);
            let done = listing::fill(&*server.service, node(ino), offset, add);
            reply.answer(done);
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
        self.requests.serve(Kind::Readdirplus, move |server| {
            let service = &*server.service;
            let add = |listed: &_| listing::add_plus(service, node(ino), &mut reply, listed);
            let done = listing::fill(service, node(ino), offset, add);
            reply.answer(done);
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
        self.requests.answer(Kind::Releasedir, reply, |_| Ok(()));
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.requests.answer(Kind::Fsyncdir, reply, move |service| {
            service.fsyncdir(node(ino), datasync)
        });
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.requests.answer(Kind::Statfs, reply, move |service| {
            service.statfs(node(ino))
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
        let ((caller, name), served) = (named(request, name), self.xattrs);
        let value = value.to_vec();
        let attempt = move |service: &dyn Service| {
            served.check(&name, Errno::EOPNOTSUPP)?;
            let how = convert::xattr_how(flags, position).ok_or(Errno::EINVAL)?;
            service.setxattr(caller, node(ino), &name, &value, how)
        };
        self.requests.patiently(Kind::Setxattr, reply, attempt);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (name, served) = (name.as_bytes().to_vec(), self.xattrs);
        let get = move |service: &dyn Service| {
            served.check(&name, Errno::NO_XATTR)?;
            service.getxattr(node(ino), &name)
        };
        self.requests.answer(Kind::Getxattr, (reply, size), get);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let (caller, served) = (caller(request), self.xattrs);
        let list = move |service: &dyn Service| {
            let names = served.list(|| service.listxattr(caller, node(ino)))?;
            Ok(convert::joined(&names))
        };
        self.requests.answer(Kind::Listxattr, (reply, size), list);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ((caller, name), served) = (named(request, name), self.xattrs);
        let attempt = move |service: &dyn Service| {
            served.check(&name, Errno::EOPNOTSUPP)?;
            service.removexattr(caller, node(ino), &name)
        };
        self.requests.patiently(Kind::Removexattr, reply, attempt);
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let caller = caller(request);
        self.requests.answer(Kind::Access, reply, move |service| {
            service.access(caller, node(ino), mask.bits())
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
        self.requests
            .answer(Kind::Fallocate, reply, move |service| {
                service.fallocate(caller, node(ino), handle(fh), offset, length, mode)
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
        self.requests.answer(Kind::Lseek, reply, move |service| {
            let seek = convert::seek(whence).ok_or(Errno::EINVAL)?;
            let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            let found = service.lseek(node(ino), handle(fh), from, seek)?;
            i64::try_from(found).map_err(|_| Errno::EOVERFLOW)
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
        let length = length.min(COPY_BYTES_MAX);
        let copy = move |service: &dyn Service| {
            let from = (node(ino_in), handle(fh_in), offset_in);
            let to = (node(ino_out), handle(fh_out), offset_out);
            let copied = service.copy_file_range(caller, from, to, length)?;
            u32::try_from(copied).map_err(|_| Errno::EIO)
        };
        self.requests.answer(Kind::CopyFileRange, reply, copy);
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
        self.requests
            .serve(Kind::Ioctl, move |_| reply.error(errno(Errno::ENOTTY)));
    }

    /// ENOSYS: the kernel stops sending such requests.
    fn bmap(&self, _: &Request, _ino: INodeNo, _block_size: u32, _block: u64, reply: ReplyBmap) {
        self.requests
            .serve(Kind::Bmap, move |_| reply.error(errno(Errno::ENOSYS)));
    }

    /// ENOSYS: the kernel stops sending such requests, and every file is always ready.
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
        self.requests
            .serve(Kind::Poll, move |_| reply.error(errno(Errno::ENOSYS)));
    }
}
