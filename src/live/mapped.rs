//! Files that the daemon serves and that may be mapped to be written: proof that the tree holds every store made through a mapping.
//!
//! Dirty pages of such mappings are in the kernel's cache. Before a freeze the kernel is told to forget the data of these files, which brings the
//! dirty pages in as writes and leaves no page: a store after that must first ask for its page, and the daemon sees it (a **touch**). So, once all is
//! flushed and the freeze lock is held, the tree is of one instant if no change was made after the first touch since the **watch** began, and that instant
//! is the first touch, or the freeze. A pwrite into such a file is a touch as well, for it may leave a page; so is an open that makes one more file
//! mappable.
//!
//! What the kernel itself does to a file (passthrough) is no change that is counted: with files of both kinds only a freeze without any touch counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Live;
use super::nodes::IoMode;
use crate::store::ids::Slot;
use crate::sys::lock::RwLockReadGuard;

/// No touch yet.
const NONE: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    on: AtomicBool,
    /// Number of changes that have begun, ever.
    changes: AtomicU64,
    /// What `changes` was at the first touch.
    first_touch: AtomicU64,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { on: AtomicBool::new(false), changes: AtomicU64::new(0), first_touch: AtomicU64::new(NONE) }
    }
}

impl Live {
    /// Takes the freeze lock for a change, which is counted.
    pub(super) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        let changing = self.freeze_lock.read();
        self.watch.changes.fetch_add(1, Ordering::SeqCst);
        changing
    }

    /// Counts a change that is made with the freeze lock held for writing.
    pub fn count_change(&self) {
        self.watch.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// How many changes have begun. While the freeze lock is held for writing none is under way.
    pub fn changes(&self) -> u64 {
        self.watch.changes.load(Ordering::SeqCst)
    }

    /// Files that the daemon serves and that may be mapped to be written: their dirty pages are in the kernel's cache.
    pub fn mapped_through_daemon(&self) -> Vec<Slot> {
        self.nodes.lock().matching(|node| node.mappable() > 0 && node.io() == Some(IoMode::Daemon))
    }

    /// Begins a watch. The kernel must then be told to forget the data of all files that the daemon serves and that may be mapped.
    pub fn watch_stores(&self) {
        self.watch.first_touch.store(NONE, Ordering::SeqCst);
        self.watch.on.store(true, Ordering::SeqCst);
    }

    /// Ends the watch.
    pub fn unwatch_stores(&self) {
        self.watch.on.store(false, Ordering::SeqCst);
    }

    /// Since the watch began nothing happened that could make the tree hold a later change and lack an earlier store. It stays so for as long as
    /// the freeze lock is held for writing; asked without it this is a guess.
    pub fn stores_are_flushed(&self) -> bool {
        let touch = self.watch.first_touch.load(Ordering::SeqCst);
        touch == NONE || (touch == self.watch.changes.load(Ordering::SeqCst) && self.hot.lock().is_empty())
    }

    /// The kernel asked for, or was left with, a page of a file that may be mapped.
    pub(super) fn touch(&self, slot: Slot) {
        if !self.watch.on.load(Ordering::SeqCst) {
            return;
        }
        if self.nodes.lock().get(slot).is_some_and(|node| node.mappable() > 0) {
            let changes = self.watch.changes.load(Ordering::SeqCst);
            let _ = self.watch.first_touch.compare_exchange(NONE, changes, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}
