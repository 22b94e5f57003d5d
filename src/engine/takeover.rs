//! Taking over from a worker that died (docs/adr/0009-the-mount-outlives-its-daemon.md).

use std::sync::Arc;

use super::Engine;
use super::past::{PAST_HANDLE, PastNode};
use super::request::{LeftOpen, NodeId};
use super::service::open_flags;
use crate::history::present::Trail;
use crate::live::{HandleId, IoMode, Keeper, Legacy, Orphans};
use crate::store::ids::Slot;
use crate::sys::{Errno, Ledger, SysResult};

/// Directories of a view above each other that are found again at most.
const DEPTH_MAX: u32 = 1000;

/// Who takes over from this worker, and from whom it takes over.
pub struct Succession {
    /// What the next worker shall know; it has what the one before left.
    pub ledger: Arc<Ledger>,
    /// Holds descriptors for the next worker.
    pub keeper: Arc<dyn Keeper>,
    /// What it held for the one before; `None`: there was none.
    pub orphans: Option<Orphans>,
    /// The process that would start the next.
    pub holder: u32,
    /// How often one has taken over.
    pub takeovers: u32,
    /// When that was last: RFC 3339, UTC.
    pub taken_over: Option<String>,
}

impl std::fmt::Debug for Succession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Succession").field("holder", &self.holder).field("takeovers", &self.takeovers).finish_non_exhaustive()
    }
}

impl Succession {
    /// The holder, our parent, lives.
    pub fn is_held(&self) -> bool {
        std::os::unix::process::parent_id() == self.holder
    }
}

impl Engine {
    /// This worker goes on where another died.
    pub(super) fn took_over(&self) -> bool {
        self.succession.as_ref().is_some_and(|succession| succession.orphans.is_some())
    }

    /// From now on everything that the next worker must know is left to it.
    pub(super) fn hand_over(&self) {
        if let Some(succession) = &self.succession {
            self.live.handover.hand_over(Legacy::new(Arc::clone(&succession.ledger), Arc::clone(&succession.keeper)));
            self.past.hand_over(&succession.ledger);
        }
    }

    /// Finds what the kernel may know of the tree.
    pub(super) fn adopt_tree(&self) -> SysResult<()> {
        if self.took_over() {
            let started = std::time::Instant::now();
            let inodes = self.live.adoption.adopt_tree(|name| Engine::is_reserved(NodeId(Slot::ROOT.0), name))?;
            tracing::info!(inodes, took = ?started.elapsed(), "the tree was walked");
        }
        Ok(())
    }

    /// See [`super::request::Service::adopt`].
    pub(super) fn adopt_open(&self, left: &LeftOpen) -> SysResult<()> {
        let Some(orphans) = self.succession.as_ref().and_then(|succession| succession.orphans.as_ref()) else { return Err(Errno::ESTALE) };
        if left.fh.0 & PAST_HANDLE != 0 {
            let node = self.past_node(left.node)?;
            return self.past.adopt(&self.view(node.state()), node, left.fh);
        }
        let io = if left.passthrough { IoMode::Passthrough } else { IoMode::Daemon };
        let _acting = crate::history::timeline::Timeline::acting(self.live.writers.opener(left.by));
        self.live.adoption.adopt_open(HandleId(left.fh.0), Slot(left.node.0), open_flags(left.flags, None), io, orphans)
    }

    /// See [`super::request::Service::adopted`].
    pub(super) fn adopt_rest(&self) {
        if let Some(orphans) = self.succession.as_ref().and_then(|succession| succession.orphans.as_ref()) {
            self.live.adoption.adopt_rest(orphans);
        }
    }

    /// A node of a view that the kernel knows, from us or from a worker before us.
    pub(super) fn past_node(&self, id: NodeId) -> SysResult<PastNode> {
        match self.past.get(id) {
            Err(Errno::ESTALE) => self.revive(id, 0),
            found => found,
        }
    }

    /// Finds a node of a view that a worker before us told the kernel of: its directory first, and there its name.
    fn revive(&self, id: NodeId, depth: u32) -> SysResult<PastNode> {
        let left = self.past.left(id).filter(|_| depth < DEPTH_MAX).ok_or(Errno::ESTALE)?;
        let trail = if left.child.slot == Slot::ROOT {
            Trail::root()
        } else {
            let up = match self.past.get(left.up) {
                Err(Errno::ESTALE) => self.revive(left.up, depth + 1)?,
                found => found?,
            };
            let names = self.view(up.state()).list(&up.trail)?;
            let (name, _) = names.into_iter().find(|(_, child)| *child == left.child).ok_or(Errno::ESTALE)?;
            up.trail.step(&name, left.child.slot)
        };
        let node = self.past.learn(left.checkpoint, left.named, left.child, trail, 0)?;
        self.past.no_longer_left(id);
        Ok(node)
    }
}
