//! What the kernel is told to forget.
//!
//! Each call is a write to `/dev/fuse` that returns when the kernel has done it. It may wait for a
//! directory's lock, or for pages to be written back, and so for requests to be answered: a thread
//! that serves requests must not make it. Nor must one that has the daemon's descriptors: where it
//! waits, it cannot be killed, and the holder would not see that the daemon has died (its
//! descriptors would stay open). So threads of their own make the calls, each with a table of
//! descriptors that has `/dev/fuse` in it and nothing else of ours. There are as many as calls at
//! once: one that waits must not be in the way of another, on which it may depend.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use fuser::{INodeNo, Notifier};

use crate::engine::request::{Caches, NodeId, Stale};
use crate::sys;
use crate::sys::lock::Mutex;
use crate::sys::tasks;

/// Threads that are kept for the next call.
const IDLE_MAX: usize = 2;

/// What is to be forgotten; and whom to tell when it is.
struct Job {
    notifier: Notifier,
    what: Vec<Stale>,
    done: Sender<()>,
}

/// The kernel's caches of one session.
pub struct KernelCaches {
    /// `None` once the session has ended. A notifier holds `/dev/fuse` open, and with it a
    /// connection that nobody serves any more.
    notifier: Mutex<Option<Notifier>>,
    /// The number of `/dev/fuse`.
    device: i32,
    /// Threads that wait for something to do.
    idle: Mutex<Vec<Sender<Job>>>,
}

impl KernelCaches {
    /// Those of the session with this `/dev/fuse`.
    pub fn new(notifier: Notifier, device: BorrowedFd<'_>) -> Self {
        Self {
            notifier: Mutex::new(Some(notifier)),
            device: device.as_raw_fd(),
            idle: Mutex::default(),
        }
    }

    /// Lets go of the connection; later calls do nothing.
    pub fn close(&self) {
        self.notifier.lock().take();
        self.idle.lock().clear();
    }
}

/// Starts a thread with a table of its own. The session must have `/dev/fuse` open until this
/// returns.
fn start(device: i32) -> io::Result<Sender<Job>> {
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

/// Does what it is told to until nobody can tell it any more.
fn work(queue: &Receiver<Job>) {
    while let Ok(Job {
        notifier,
        what,
        done,
    }) = queue.recv()
    {
        what.iter().for_each(|stale| forget(&notifier, stale));
        // Before whoever waits goes on and lets go of the last other one: a descriptor must be
        // closed in the table of the others.
        drop(notifier);
        let _ = done.send(());
    }
}

/// The kernel answers ENOENT for what it does not know; `fuser` takes that for success, as it is.
fn forget(notifier: &Notifier, stale: &Stale) {
    let told = match stale {
        Stale::Entry { parent, name } => {
            notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name))
        }
        // The kernel compares the number, drops the link count to 0 and the name with it, which
        // makes IN_DELETE_SELF (fuse_reverse_inval_entry in fs/fuse/dir.c); where it does not, the
        // name is forgotten all the same.
        Stale::Deleted {
            parent,
            child,
            name,
        } => notifier.delete(INodeNo(parent.0), INodeNo(child.0), OsStr::from_bytes(name)),
        // Length 0 is all of it.
        Stale::Data(node) => notifier.inval_inode(INodeNo(node.0), 0, 0),
    };
    if let Err(error) = told {
        tracing::debug!(?stale, %error, "the kernel did not take an invalidation");
    }
}

impl Caches for KernelCaches {
    fn forget(&self, what: Vec<Stale>) {
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
            .send(Job {
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

    /// A negative offset leaves the pages alone (fuse_reverse_inval_inode in fs/fuse/inode.c), and
    /// waits for nothing.
    fn forget_attributes(&self, node: NodeId) {
        let Some(notifier) = self.notifier.lock().clone() else {
            return;
        };
        if let Err(error) = notifier.inval_inode(INodeNo(node.0), -1, 0) {
            tracing::debug!(node = node.0, %error, "the kernel did not take an invalidation");
        }
    }
}
