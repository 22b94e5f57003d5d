//! The table of nodes, behind its mutex, and what is asked of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::legacy::Handover;
use super::nodes::{IoMode, Node, Nodes, generation_of};
use crate::store::ids::Slot;
use crate::sys::lock::{Condvar, Mutex, MutexGuard, Rank};
use crate::sys::{self, Kind, Stat};

/// How long a close that is on its way is waited for.
const CLOSE_WAIT: Duration = Duration::from_micros(80);

/// The nodes that the kernel knows.
pub struct NodeTable {
    nodes: Mutex<Nodes>,
    /// A handle was closed.
    closed: Condvar,
    handover: Arc<Handover>,
}

/// The kernel does the I/O of this file for such handles.
fn is_held_through(nodes: &Nodes, slot: Slot, handles: impl Fn(&Node) -> u32) -> bool {
    nodes.get(slot).is_some_and(|node| {
        node.kind == Kind::File && node.io() == Some(IoMode::Passthrough) && handles(node) > 0
    })
}

/// Handles through which a file may be read, or mapped.
fn readers(node: &Node) -> u32 {
    node.handles().saturating_sub(node.writers()) + node.mappable()
}

impl NodeTable {
    /// With the root alone, which has these attributes.
    pub(super) fn new(root: &Stat, handover: Arc<Handover>) -> NodeTable {
        let mut nodes = Nodes::default();
        nodes.learn(Slot::ROOT, Kind::Dir, generation_of(root), None, 1);
        NodeTable {
            nodes: Mutex::ranked(Rank::Nodes, nodes),
            closed: Condvar::default(),
            handover,
        }
    }

    /// The nodes, for a moment.
    pub(super) fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock()
    }

    /// A process may hold the lock of this file for as long as it likes: it has it open, and the
    /// kernel does its I/O. The caller holds the file's stripe, or the tree for writing, so that
    /// nobody opens it meanwhile.
    pub(super) fn may_wait(&self, slot: Slot) -> bool {
        is_held_through(&self.lock(), slot, Node::handles)
    }

    /// As [`NodeTable::may_wait`], for what the kernel asked for: it lets nobody write to the file
    /// meanwhile, but it does let them read.
    pub(super) fn may_wait_for_reader(&self, slot: Slot) -> bool {
        is_held_through(&self.lock(), slot, readers)
    }

    /// Most files are closed just before their name is changed, and the kernel tells of the close
    /// beside.
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

    /// Files that the daemon serves and that may be mapped to be written: their dirty pages are in
    /// the kernel's cache.
    pub fn mapped_through_daemon(&self) -> Vec<Slot> {
        self.lock()
            .matching(|node| node.mappable() > 0 && node.io() == Some(IoMode::Daemon))
    }

    /// Takes back look-ups that the kernel has forgotten.
    pub fn forget(&self, slot: Slot, lookups: u64) {
        self.with_unclosed(|nodes| nodes.forget(slot, lookups));
    }

    /// What holds an inode without a name is closed: see `closer`.
    pub(super) fn close_apart(&self, held: impl Send + 'static) {
        self.with_unclosed(|nodes| nodes.close(held));
    }

    /// The directory that a directory is in, if the kernel was told of it.
    pub fn parent(&self, slot: Slot) -> Option<Slot> {
        self.lock()
            .get(slot)
            .and_then(|node| node.links().next().map(|place| place.parent))
    }

    /// Whether the tables gave much memory back to the allocator since this was last asked.
    pub fn take_shrunk(&self) -> bool {
        self.lock().take_shrunk()
    }

    /// Number of nodes known to the kernel.
    pub fn count(&self) -> usize {
        self.lock().count()
    }

    /// An inode that the kernel knows has lost its last name, and nobody has it open.
    pub fn is_dead_and_closed(&self, slot: Slot) -> bool {
        self.lock()
            .get(slot)
            .is_some_and(|node| node.dead && node.handles() == 0)
    }

    /// Generation and attributes of an inode that has lost its last name and that the kernel knows;
    /// counts one look-up.
    pub fn look_up_dead(&self, slot: Slot) -> Option<(u64, Stat)> {
        // Its number is taken for as long as it is held, so it cannot have become another's.
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

    /// An inode that the kernel knows has lost its last name.
    pub fn is_dead(&self, slot: Slot) -> bool {
        self.lock().get(slot).is_some_and(|node| node.dead)
    }

    /// Counts a handle of a node that was opened; `io`: who does its I/O. An inode that has lost its
    /// last name before must not die with this worker either.
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

    /// An open inode is about to lose its last name: it must not die with this worker.
    pub(super) fn leave_orphan(&self, slot: Slot, held: Option<&Arc<OwnedFd>>) {
        let Some(held) = held else { return };
        if self.lock().get(slot).is_some_and(|node| node.handles() > 0) {
            self.handover.keep(slot, held);
        }
    }

    /// A handle of an inode was closed: if it was the last, nobody needs to hold the inode.
    pub(super) fn drop_orphan(&self, slot: Slot) {
        if self.handover.keeps(slot) && self.lock().get(slot).is_none_or(|node| node.handles() == 0)
        {
            self.handover.let_go(slot);
            // Who opens it at this moment may have had it kept just before.
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

    /// A handle was closed.
    pub(super) fn note_closed(&self) {
        self.closed.notify_all();
    }
}
