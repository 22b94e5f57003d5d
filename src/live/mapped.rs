//! Files that the daemon serves and that may be mapped to be written: proof that the tree holds
//! every store made through a mapping.
//!
//! Dirty pages of such mappings are in the kernel's cache. Before a freeze the kernel is told to
//! forget the data of these files, which brings the dirty pages in as writes and leaves no page: a
//! store after that must first ask for its page, and the daemon sees it (a **touch**). So, once all
//! is flushed and the freeze lock is held, the tree is of one instant if no change was made after
//! the first touch since the **watch** began, and that instant is the first touch, or the freeze. A
//! pwrite into such a file is a touch as well, for it may leave a page; so is an open that makes
//! one more file mappable.
//!
//! What the kernel itself does to a file (passthrough) is no change that is counted: with files of
//! both kinds only a freeze without any touch counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::tables::{HotFiles, Locks, NodeTable, Tables};
use crate::store::ids::Slot;

/// No touch yet.
const NONE: u64 = u64::MAX;

/// Tells whether a store through a mapping may be missing from the tree. See the module.
pub struct Mapped {
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    /// A watch is under way.
    on: AtomicBool,
    /// How many changes had begun at the first touch.
    first_touch: AtomicU64,
}

impl Mapped {
    pub(super) fn new(tables: &Tables) -> Arc<Mapped> {
        Arc::new(Mapped {
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            hot: Arc::clone(&tables.hot),
            on: AtomicBool::new(false),
            first_touch: AtomicU64::new(NONE),
        })
    }

    /// Begins a watch. The kernel must then be told to forget the data of all files that the daemon
    /// serves and that may be mapped.
    pub fn watch_stores(&self) {
        self.first_touch.store(NONE, Ordering::SeqCst);
        self.on.store(true, Ordering::SeqCst);
    }

    /// Ends the watch.
    pub fn unwatch_stores(&self) {
        self.on.store(false, Ordering::SeqCst);
    }

    /// Since the watch began nothing happened that could make the tree hold a later change and lack
    /// an earlier store. It stays so for as long as the freeze lock is held for writing; asked
    /// without it this is a guess.
    pub fn stores_are_flushed(&self) -> bool {
        let touch = self.first_touch.load(Ordering::SeqCst);
        touch == NONE || (touch == self.locks.changes() && self.hot.lock().is_empty())
    }

    /// The kernel asked for, or was left with, a page of a file that may be mapped.
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
