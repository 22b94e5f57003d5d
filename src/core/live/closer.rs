//! Closes descriptors of unlinked inodes on a separate thread.
//!
//! The last close of such an inode frees its extents and waits for pages under writeback
//! (`xfs_fs_evict_inode`, `btrfs_evict_inode`). No thread that serves requests or holds a lock
//! should wait for that.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

/// Longest queue of pending closes.
const WAITING_MAX: usize = 256;

/// Owns one or more descriptors, directly or indirectly.
type PendingClose = Box<dyn Send>;

/// The closing thread. It is started on first use and ends when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Closer {
    sender: OnceLock<Option<SyncSender<PendingClose>>>,
}

impl Closer {
    /// Queues `held` for closing. If the queue is full or the thread is missing, returns it: the
    /// caller drops it after releasing its locks.
    pub(super) fn take(&self, held: impl Send + 'static) -> Option<PendingClose> {
        let held: PendingClose = Box::new(held);
        match self.sender.get_or_init(start) {
            None => Some(held),
            Some(sender) => sender.try_send(held).err().map(|refused| match refused {
                TrySendError::Full(held) | TrySendError::Disconnected(held) => held,
            }),
        }
    }
}

fn start() -> Option<SyncSender<PendingClose>> {
    let (sender, receiver) = sync_channel::<PendingClose>(WAITING_MAX);
    let started = thread::Builder::new()
        .name("closer".to_owned())
        .spawn(move || receiver.into_iter().for_each(drop));
    started
        .inspect_err(|error| tracing::warn!(%error, "descriptors are closed by whoever serves"))
        .ok()
        .map(|_| sender)
}
