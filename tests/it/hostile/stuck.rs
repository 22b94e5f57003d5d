//! Another user's filesystem that does not reply: a process that copies from or to a mapping of its
//! file waits in the kernel, with all its locks there.
//!
//! Root mounts it here, for all users. An ordinary user mounts one with fusermount3, or in a user
//! namespace.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry,
    ReplyOpen, Request, SessionACL,
};
use tempfile::TempDir;

use crate::common::fuse_replies::attributes;
use crate::common::scratch;

const FOR_EVER: Duration = Duration::from_secs(86_400);
const FILE: u64 = 2;
const SIZE: u64 = 64 << 20;

/// The pending requests; `None` once every request is answered.
type PendingReads = Arc<Mutex<Option<Vec<(ReplyData, u32)>>>>;

/// The filesystem; dropping it unmounts it.
pub struct UnresponsiveFs {
    asked: PendingReads,
    // Dropped before its mount point.
    _session: BackgroundSession,
    dir: TempDir,
}

struct Served(PendingReads);

impl UnresponsiveFs {
    pub fn start() -> UnresponsiveFs {
        let dir = scratch();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
        let asked: PendingReads = Arc::new(Mutex::new(Some(Vec::new())));
        let mut config = Config::default();
        config.acl = SessionACL::All;
        let session = fuser::spawn_mount(Served(Arc::clone(&asked)), dir.path(), &config)
            .expect("it can be mounted");
        UnresponsiveFs {
            asked,
            _session: session,
            dir,
        }
    }

    /// Returns the file whose reads block.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    /// Returns the number of pending reads.
    pub fn waiting(&self) -> usize {
        self.asked.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    /// Answers the pending requests and all later ones.
    pub fn release(&self) {
        for (reply, size) in self.asked.lock().unwrap().take().into_iter().flatten() {
            reply.data(&vec![b'S'; size as usize]);
        }
    }
}

impl Drop for UnresponsiveFs {
    fn drop(&mut self) {
        self.release();
    }
}

fn attr(ino: u64) -> FileAttr {
    let (kind, perm, size) = if ino == FILE {
        (FileType::RegularFile, 0o644, SIZE)
    } else {
        (FileType::Directory, 0o755, 0)
    };
    attributes(ino, kind, perm, size)
}

impl Filesystem for Served {
    /// Permits many pending requests: readahead counts as background.
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.set_max_background(1000);
        let _ = config.set_max_readahead(0);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "file" {
            reply.entry(&FOR_EVER, &attr(FILE), Generation(0))
        } else {
            reply.error(Errno::ENOENT)
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_EVER, &attr(ino.0));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    #[allow(clippy::too_many_arguments)]
    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match &mut *self.0.lock().unwrap() {
            Some(asked) => asked.push((reply, size)),
            None => reply.data(&vec![b'S'; size as usize]),
        }
    }
}
