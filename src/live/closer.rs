//! Closes what inodes without a name were held by.
//!
//! The last close of such an inode frees its extents, and waits for those of its pages that are
//! being written to the disk (`xfs_fs_evict_inode`, `btrfs_evict_inode`). Nobody should wait for
//! that, least of all a thread that serves others, or one that holds a lock.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

/// What waits to be closed at most.
const WAITING_MAX: usize = 256;

/// Owns the descriptors, in one way or another.
type Held = Box<dyn Send>;

/// A thread that closes; it is started when there is something to be closed, and ends with this.
#[derive(Debug, Default)]
pub(super) struct Closer {
    sender: OnceLock<Option<SyncSender<Held>>>,
}

impl Closer {
    /// Has it closed. Gives back what cannot be taken just now, to be closed by the caller when it
    /// holds no lock.
    pub(super) fn take(&self, held: impl Send + 'static) -> Option<Held> {
        let held: Held = Box::new(held);
        match self.sender.get_or_init(start) {
            None => Some(held),
            Some(sender) => sender.try_send(held).err().map(|refused| match refused {
                TrySendError::Full(held) | TrySendError::Disconnected(held) => held,
            }),
        }
    }
}

fn start() -> Option<SyncSender<Held>> {
    let (sender, receiver) = sync_channel::<Held>(WAITING_MAX);
    let started = thread::Builder::new()
        .name("closer".to_owned())
        .spawn(move || receiver.into_iter().for_each(drop));
    started
        .inspect_err(|error| tracing::warn!(%error, "descriptors are closed by whoever serves"))
        .ok()
        .map(|_| sender)
}
