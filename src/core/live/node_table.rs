//! The node table behind its mutex, and queries on it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handover::HandoverLog;
use super::nodes::{IoMode, Node, Nodes, generation_of};
use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::{Condvar, Mutex, MutexGuard, Rank};
use ckptfs_sys::{self as sys, Kind, Stat};

/// Longest wait for a close that is already under way.
const CLOSE_WAIT: Duration = Duration::from_micros(80);

/// The nodes that the kernel has references to.
pub struct NodeTable {
    nodes: Mutex<Nodes>,
    /// Notified when a handle is closed.
    closed: Condvar,
    handover: Arc<HandoverLog>,
}

/// Returns whether the file has passthrough handles among those that `handles` counts.
fn is_held_through(nodes: &Nodes, slot: Slot, handles: impl Fn(&Node) -> u32) -> bool {
    nodes.get(slot).is_some_and(|node| {
        node.kind == Kind::File && node.io() == Some(IoMode::Passthrough) && handles(node) > 0
    })
}

/// Number of handles through which a file may be read or mapped.
fn readers(node: &Node) -> u32 {
    node.handles().saturating_sub(node.writers()) + node.mappable()
}

impl NodeTable {
    /// Creates a table that has only the root, with these attributes.
    pub(super) fn new(root: &Stat, handover: Arc<HandoverLog>) -> NodeTable {
        let mut nodes = Nodes::default();
        nodes.learn(Slot::ROOT, Kind::Dir, generation_of(root), None, 1);
        NodeTable {
            nodes: Mutex::ranked(Rank::Nodes, nodes),
            closed: Condvar::default(),
            handover,
        }
    }

    /// Locks the table. Held only briefly.
    pub(super) fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock()
    }

    /// Returns whether a process may hold the inode lock of this file for an unlimited time: it is
    /// open with passthrough. The caller holds the file's stripe, or the tree for writing, so that
    /// the file cannot be opened concurrently.
    pub(super) fn may_wait(&self, slot: Slot) -> bool {
        is_held_through(&self.lock(), slot, Node::handles)
    }

    /// As [`NodeTable::may_wait`], for an operation that the kernel requested: the kernel blocks
    /// concurrent writes to the file, but not reads.
    pub(super) fn may_wait_for_reader(&self, slot: Slot) -> bool {
        is_held_through(&self.lock(), slot, readers)
    }

    /// Waits briefly for the readers of a file to close it, and returns whether they did. Most
    /// files are closed just before a change of their name, and the kernel sends the release
    /// asynchronously.
    pub(super) fn is_closed_soon(&self, slot: Slot) -> bool {
        let until = Instant::now() + CLOSE_WAIT;
        let mut nodes = self.lock();
        while is_held_through(&nodes, slot, readers) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.closed.wait_for(&mut nodes, left);
        }
        true
    }

    pub(super) fn orphan(&self, slot: Slot) -> Option<Arc<OwnedFd>> {
        self.lock()
            .get(slot)
            .and_then(|node| node.orphan().cloned())
    }

    /// Returns the files with daemon I/O that may be mapped for writing. Their dirty pages are in
    /// the kernel's cache.
    pub fn mapped_through_daemon(&self) -> Vec<Slot> {
        self.lock()
            .matching(|node| node.mappable() > 0 && node.io() == Some(IoMode::Daemon))
    }

    /// Subtracts lookups that the kernel has forgotten.
    pub fn forget(&self, slot: Slot, lookups: u64) {
        self.with_unclosed(|nodes| nodes.forget(slot, lookups));
    }

    /// Closes the descriptor of an unlinked inode on another thread: see `closer`.
    pub(super) fn close_apart(&self, held: impl Send + 'static) {
        self.with_unclosed(|nodes| nodes.close(held));
    }

    /// Returns the parent of a directory, if the kernel has looked it up.
    pub fn parent(&self, slot: Slot) -> Option<Slot> {
        self.lock()
            .get(slot)
            .and_then(|node| node.links().next().map(|place| place.parent))
    }

    /// Returns whether the tables freed much memory since the last call.
    pub fn take_shrunk(&self) -> bool {
        self.lock().take_shrunk()
    }

    /// Returns the number of nodes that the kernel has references to.
    pub fn count(&self) -> usize {
        self.lock().count()
    }

    /// Returns whether a known inode has no name and no open handle.
    pub fn is_dead_and_closed(&self, slot: Slot) -> bool {
        self.lock()
            .get(slot)
            .is_some_and(|node| node.dead && node.handles() == 0)
    }

    /// Returns generation and attributes of a known inode that has no name, and counts one lookup.
    pub fn look_up_dead(&self, slot: Slot) -> Option<(u64, Stat)> {
        // The descriptor pins the inode, so its number cannot have been reused.
        let held = self.orphan(slot)?;
        let stat = Stat {
            nlink: 0,
            ..sys::stat_fd(&held).ok()?
        };
        let mut nodes = self.lock();
        let node = nodes
            .get_mut(slot)
            .filter(|node| node.dead && node.is_known())?;
        node.lookups += 1;
        Some((node.generation, stat))
    }

    /// Returns whether a known inode has lost its last name.
    pub fn is_dead(&self, slot: Slot) -> bool {
        self.lock().get(slot).is_some_and(|node| node.dead)
    }

    /// Counts an opened handle with the I/O mode `io`. If the inode has no name, its descriptor is
    /// also passed to the holder, so that the inode survives this worker.
    pub(super) fn opened(&self, slot: Slot, read: bool, write: bool, io: IoMode) {
        let held = {
            let mut nodes = self.lock();
            nodes.opened(slot, read, write, io);
            nodes.get(slot).and_then(|node| node.orphan().cloned())
        };
        if let Some(held) = held {
            self.handover.keep(slot, &held);
        }
    }

    /// Passes the descriptor of an open inode that is about to lose its last name to the holder, so
    /// that the inode survives this worker.
    pub(super) fn leave_orphan(&self, slot: Slot, held: Option<&Arc<OwnedFd>>) {
        let Some(held) = held else { return };
        if self.lock().get(slot).is_some_and(|node| node.handles() > 0) {
            self.handover.keep(slot, held);
        }
    }

    /// Called after a handle was closed: if it was the last one, the holder drops its descriptor of
    /// the inode.
    pub(super) fn drop_orphan(&self, slot: Slot) {
        if self.handover.keeps(slot) && self.lock().get(slot).is_none_or(|node| node.handles() == 0)
        {
            self.handover.let_go(slot);
            // A concurrent open may have stored the descriptor just before.
            self.leave_orphan(slot, self.orphan(slot).as_ref());
        }
    }

    fn with_unclosed(&self, change: impl FnOnce(&mut Nodes)) {
        let unclosed = {
            let mut nodes = self.lock();
            change(&mut nodes);
            nodes.take_unclosed()
        };
        drop(unclosed);
    }

    /// Wakes threads that wait for a close.
    pub(super) fn note_closed(&self) {
        self.closed.notify_all();
    }
}
