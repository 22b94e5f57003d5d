//! Takeover from a dead worker (docs/adr/0009-the-mount-outlives-its-daemon.md).

use std::sync::Arc;

use super::Engine;
use super::past::PAST_HANDLE;
use super::request::{HandedOverFile, NodeId};
use super::service::open_flags;
use crate::live::{HandleId, HandoverState, IoMode};
use ckptfs_store::ids::Slot;
use ckptfs_sys::{Errno, SysResult};

impl Engine {
    /// Returns whether this worker took over from a dead one.
    pub(super) fn took_over(&self) -> bool {
        self.succession
            .as_ref()
            .is_some_and(|succession| succession.orphans.is_some())
    }
}

/// Handles reserved for each worker: more than it can open in its lifetime.
const HANDLES_BITS: u32 = 40;

/// Returns the number below the first handle after the nth takeover.
fn first_handle(takeovers: u32) -> u64 {
    (u64::from(takeovers) << HANDLES_BITS) & !PAST_HANDLE
}

/// The takeover from a dead worker, and the handover to the next.
pub(super) struct Takeover<'a> {
    engine: &'a Engine,
}

impl<'a> Takeover<'a> {
    pub(super) fn new(engine: &'a Engine) -> Takeover<'a> {
        Takeover { engine }
    }

    /// Records the state for the next worker from now on, and numbers handles in this worker's
    /// range.
    pub(super) fn hand_over(&self) {
        if let Some(succession) = &self.engine.succession {
            let first = first_handle(succession.takeovers);
            self.engine.live.handles.number_from(first);
            self.engine.views.past.number_from(first);
            self.engine.live.handover.hand_over(HandoverState::new(
                Arc::clone(&succession.ledger),
                Arc::clone(&succession.keeper),
            ));
            self.engine.views.past.hand_over(&succession.ledger);
        }
    }

    /// Finds the inodes that the kernel may have cached.
    pub(super) fn adopt_tree(&self) -> SysResult<()> {
        if self.engine.took_over() {
            let started = std::time::Instant::now();
            let inodes = self.engine.live.adoption.adopt_tree(|name| {
                let root = NodeId(Slot::ROOT.0);
                self.engine.serving.is_reserved(root, name)
            })?;
            tracing::info!(inodes, took = ?started.elapsed(), "the tree was walked");
        }
        Ok(())
    }

    /// See [`super::request::Service::adopt`].
    pub(super) fn adopt_open(&self, left: &HandedOverFile) -> SysResult<()> {
        let Some(orphans) = self
            .engine
            .succession
            .as_ref()
            .and_then(|succession| succession.orphans.as_ref())
        else {
            return Err(Errno::ESTALE);
        };
        if left.fh.0 & PAST_HANDLE != 0 {
            return match self.adopt_past(left) {
                // The checkpoint was deleted, or the file is closed: the kernel sends FORGET after
                // the last close, and the worker died between the two.
                Err(Errno::ESTALE | Errno::ENOENT) => Ok(()),
                adopted => adopted,
            };
        }
        let io = if left.passthrough {
            IoMode::Passthrough
        } else {
            IoMode::Daemon
        };
        let change = crate::live::ChangeCtx::by(self.engine.live.writers.opener(left.by));
        self.engine.live.adoption.adopt_open(
            &change,
            HandleId(left.fh.0),
            Slot(left.node.0),
            open_flags(left.flags, None),
            io,
            orphans,
        )
    }

    fn adopt_past(&self, left: &HandedOverFile) -> SysResult<()> {
        let views = &self.engine.views;
        let node = views.past_node(left.node)?;
        let view = self.engine.states.view(node.state());
        views.past.adopt(&view, node, left.fh)
    }

    /// See [`super::request::Service::adopted`].
    pub(super) fn adopt_rest(&self) {
        if let Some(orphans) = self
            .engine
            .succession
            .as_ref()
            .and_then(|succession| succession.orphans.as_ref())
        {
            self.engine.live.adoption.adopt_rest(orphans);
        }
    }
}
