//! Mapped files with daemon I/O: proof that the tree contains every store made through a mapping.
//!
//! Dirty pages of such mappings are in the kernel's cache. Before a freeze the kernel invalidates
//! the data of these files. It sends the dirty pages as writes and drops all pages. A later store
//! must first fault in its page, and the daemon receives a read (a **touch**). A **watch** starts
//! before the invalidation. With everything flushed and the freeze lock held, the tree is a
//! consistent image if no change followed the first touch since the start of the watch. Its instant
//! is the first touch, or else the freeze. A pwrite to such a file is also a touch, because it may
//! leave a page in the cache; so is an open that makes another file mappable.
//!
//! Passthrough writes are not counted as changes. If files of both kinds are open, only a freeze
//! without any touch is consistent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::shared_tables::{HotFiles, Locks, NodeTable, SharedTables};
use ckptfs_store::ids::Slot;

/// No touch yet.
const NONE: u64 = u64::MAX;

/// Detects whether a store through a mapping may be missing from the tree. See the module.
pub struct MappedWatch {
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    /// A watch is active.
    on: AtomicBool,
    /// Number of changes begun before the first touch.
    first_touch: AtomicU64,
}

impl MappedWatch {
    pub(super) fn new(tables: &SharedTables) -> Arc<MappedWatch> {
        Arc::new(MappedWatch {
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            hot: Arc::clone(&tables.hot),
            on: AtomicBool::new(false),
            first_touch: AtomicU64::new(NONE),
        })
    }

    /// Starts a watch. The caller must then invalidate the kernel's cached data of all files with
    /// daemon I/O that may be mapped.
    pub fn watch_stores(&self) {
        self.first_touch.store(NONE, Ordering::SeqCst);
        self.on.store(true, Ordering::SeqCst);
    }

    /// Ends the watch.
    pub fn unwatch_stores(&self) {
        self.on.store(false, Ordering::SeqCst);
    }

    /// Returns whether the tree cannot contain a change that is later than a missing store since
    /// the start of the watch. The result stays valid while the freeze lock is held for writing;
    /// without the lock it is a hint.
    pub fn stores_are_flushed(&self) -> bool {
        let touch = self.first_touch.load(Ordering::SeqCst);
        touch == NONE || (touch == self.locks.changes() && self.hot.lock().is_empty())
    }

    /// Records that the kernel read, or may have cached, a page of a mappable file.
    pub(super) fn touch(&self, slot: Slot) {
        if !self.on.load(Ordering::SeqCst) {
            return;
        }
        if self
            .nodes
            .lock()
            .get(slot)
            .is_some_and(|node| node.mappable() > 0)
        {
            let changes = self.locks.changes();
            let _ = self.first_touch.compare_exchange(
                NONE,
                changes,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }
}
