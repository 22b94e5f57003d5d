//! Invalidation of kernel caches.
//!
//! Each call is a write to `/dev/fuse` that returns when the kernel has finished. It may wait for
//! the lock of a directory or for writeback, and so for replies to other requests: a thread that
//! serves requests must not make it. The calling thread must also not share the daemon's table of
//! descriptors. While it waits it cannot be killed, so those descriptors would stay open and the
//! holder would not detect the death of the daemon. Dedicated threads make the calls, each with a
//! separate table of descriptors that contains only `/dev/fuse`. Each concurrent call has its own
//! thread, because a waiting call must not block another one on which it may depend.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use fuser::{INodeNo, Notifier};

use ckptfs_core::engine::request::{CacheInvalidation, Caches, NodeId};
use ckptfs_sys as sys;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::tasks;

/// Maximum number of idle threads kept for later calls.
const IDLE_MAX: usize = 2;

/// A list of invalidations, and a channel that reports completion.
struct InvalidationJob {
    notifier: Notifier,
    what: Vec<CacheInvalidation>,
    done: Sender<()>,
}

/// The kernel's caches of one session.
pub struct KernelCaches {
    /// `None` after the end of the session. A notifier keeps `/dev/fuse` open, and with it a
    /// connection that is no longer served.
    notifier: Mutex<Option<Notifier>>,
    /// Descriptor number of `/dev/fuse`.
    device: i32,
    /// Idle threads.
    idle: Mutex<Vec<Sender<InvalidationJob>>>,
}

impl KernelCaches {
    /// Creates the caches of the session with this `/dev/fuse`.
    pub fn new(notifier: Notifier, device: BorrowedFd<'_>) -> Self {
        Self {
            notifier: Mutex::new(Some(notifier)),
            device: device.as_raw_fd(),
            idle: Mutex::default(),
        }
    }

    /// Releases the connection; later calls have no effect.
    pub fn close(&self) {
        self.notifier.lock().take();
        self.idle.lock().clear();
    }
}

/// Starts a thread with a separate table of descriptors. The session must keep `/dev/fuse` open
/// until this returns.
fn start(device: i32) -> io::Result<Sender<InvalidationJob>> {
    let (jobs, queue) = channel();
    let (ready, started) = channel();
    thread::Builder::new().name("fuse-caches".to_owned()).spawn(move || {
        if let Err(error) = sys::keep_descriptor(device) {
            tracing::debug!(%error, "a thread that tells the kernel what to forget has the descriptors of all");
        }
        let _ = ready.send(());
        work(&queue);
    })?;
    let _ = started.recv();
    Ok(jobs)
}

/// Executes jobs until the channel is closed.
fn work(queue: &Receiver<InvalidationJob>) {
    while let Ok(InvalidationJob {
        notifier,
        what,
        done,
    }) = queue.recv()
    {
        what.iter().for_each(|stale| forget(&notifier, stale));
        // Dropped before the caller continues and drops its copy: the descriptor must be closed
        // while the other tables still have it.
        drop(notifier);
        let _ = done.send(());
    }
}

/// Sends one invalidation. The kernel returns ENOENT for entries that it has not cached, which
/// `fuser` correctly treats as success.
fn forget(notifier: &Notifier, stale: &CacheInvalidation) {
    let told = match stale {
        CacheInvalidation::Entry { parent, name } => {
            notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name))
        }
        // The kernel compares the number, sets the link count to 0 and drops the name, which
        // generates IN_DELETE_SELF (fuse_reverse_inval_entry in fs/fuse/dir.c). If the number
        // differs, it only invalidates the name.
        CacheInvalidation::Deleted {
            parent,
            child,
            name,
        } => notifier.delete(INodeNo(parent.0), INodeNo(child.0), OsStr::from_bytes(name)),
        // Length 0 means the whole file.
        CacheInvalidation::Data(node) => notifier.inval_inode(INodeNo(node.0), 0, 0),
    };
    if let Err(error) = told {
        tracing::debug!(?stale, %error, "the kernel did not take an invalidation");
    }
}

impl Caches for KernelCaches {
    fn forget(&self, what: Vec<CacheInvalidation>) {
        let Some(notifier) = self.notifier.lock().clone() else {
            return;
        };
        let idle = self.idle.lock().pop();
        let jobs = match idle.map_or_else(|| start(self.device), Ok) {
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::warn!(%error, "no thread for it: one that has the descriptors of all tells the kernel what to forget");
                let (done, wait) = channel::<()>();
                let tell = move || {
                    what.iter().for_each(|stale| forget(&notifier, stale));
                    drop((notifier, done));
                };
                if let Err(error) = tasks::once(Duration::ZERO, tell) {
                    tracing::error!(%error, "the kernel is not told what to forget");
                }
                let _ = wait.recv();
                return;
            }
        };
        let (done, wait) = channel();
        if jobs
            .send(InvalidationJob {
                notifier: notifier.clone(),
                what,
                done,
            })
            .is_ok()
        {
            let _ = wait.recv();
        }
        drop(notifier);
        let open = self.notifier.lock().is_some();
        let mut idle = self.idle.lock();
        if open && idle.len() < IDLE_MAX {
            idle.push(jobs);
        }
    }

    /// A negative offset skips the pages (fuse_reverse_inval_inode in fs/fuse/inode.c), and the
    /// call never waits.
    fn forget_attributes(&self, node: NodeId) {
        let Some(notifier) = self.notifier.lock().clone() else {
            return;
        };
        if let Err(error) = notifier.inval_inode(INodeNo(node.0), -1, 0) {
            tracing::debug!(node = node.0, %error, "the kernel did not take an invalidation");
        }
    }
}
