//! What the kernel is told to forget.
//!
//! Each call is a write to `/dev/fuse` that returns when the kernel has done it. It may wait for a directory's lock, or for pages to be written
//! back, and so for requests to be answered: a thread that serves requests must not make it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use fuser::{INodeNo, Notifier};

use crate::engine::request::{Caches, NodeId};
use crate::sys::lock::Mutex;

/// The kernel's caches of one session.
pub struct KernelCaches {
    /// `None` once the session has ended. A notifier holds `/dev/fuse` open, and with it a connection that nobody serves any more.
    notifier: Mutex<Option<Notifier>>,
}

impl KernelCaches {
    pub fn new(notifier: Notifier) -> Self {
        Self { notifier: Mutex::new(Some(notifier)) }
    }

    /// Lets go of the connection; later calls do nothing.
    pub fn close(&self) {
        self.notifier.lock().take();
    }

    /// The kernel answers ENOENT for what it does not know; `fuser` takes that for success, as it is.
    fn tell(&self, what: &'static str, node: NodeId, send: impl FnOnce(&Notifier) -> io::Result<()>) {
        let Some(notifier) = self.notifier.lock().clone() else { return };
        if let Err(error) = send(&notifier) {
            tracing::debug!(what, node = node.0, %error, "the kernel did not take an invalidation");
        }
    }
}

impl Caches for KernelCaches {
    fn forget_entry(&self, parent: NodeId, name: &[u8]) {
        self.tell("entry", parent, |notifier| notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name)));
    }

    /// The kernel compares the number, drops the link count to 0 and the name with it, which makes IN_DELETE_SELF (fuse_reverse_inval_entry in
    /// fs/fuse/dir.c); where it does not, the name is forgotten all the same.
    fn delete_entry(&self, parent: NodeId, child: NodeId, name: &[u8]) {
        self.tell("deleted entry", parent, |notifier| notifier.delete(INodeNo(parent.0), INodeNo(child.0), OsStr::from_bytes(name)));
    }

    /// A negative offset leaves the pages alone (fuse_reverse_inval_inode in fs/fuse/inode.c).
    fn forget_attributes(&self, node: NodeId) {
        self.tell("attributes", node, |notifier| notifier.inval_inode(INodeNo(node.0), -1, 0));
    }

    /// Length 0 is all of it.
    fn forget_data(&self, node: NodeId) {
        self.tell("data", node, |notifier| notifier.inval_inode(INodeNo(node.0), 0, 0));
    }
}
