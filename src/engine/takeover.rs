//! Taking over from a worker that died (docs/adr/0009-the-mount-outlives-its-daemon.md).

use std::sync::Arc;

use super::Engine;
use super::past::PAST_HANDLE;
use super::request::{LeftOpen, NodeId};
use super::service::open_flags;
use crate::live::{HandleId, IoMode, Legacy};
use crate::store::ids::Slot;
use crate::sys::{Errno, SysResult};

impl Engine {
    /// This worker goes on where another died.
    pub(super) fn took_over(&self) -> bool {
        self.succession
            .as_ref()
            .is_some_and(|succession| succession.orphans.is_some())
    }
}

/// Handles that one worker may open: more than it can in its time.
const HANDLES_BITS: u32 = 40;

/// The number below the handles of the worker that has taken over for the nth time.
fn first_handle(takeovers: u32) -> u64 {
    (u64::from(takeovers) << HANDLES_BITS) & !PAST_HANDLE
}

/// What a worker does to go on where another died, and for another to go on where it does.
pub(super) struct Takeover<'a> {
    engine: &'a Engine,
}

impl<'a> Takeover<'a> {
    pub(super) fn new(engine: &'a Engine) -> Takeover<'a> {
        Takeover { engine }
    }

    /// From now on everything that the next worker must know is left to it, and handles have
    /// numbers of this worker.
    pub(super) fn hand_over(&self) {
        if let Some(succession) = &self.engine.succession {
            let first = first_handle(succession.takeovers);
            self.engine.live.handles.number_from(first);
            self.engine.views.past.number_from(first);
            self.engine.live.handover.hand_over(Legacy::new(
                Arc::clone(&succession.ledger),
                Arc::clone(&succession.keeper),
            ));
            self.engine.views.past.hand_over(&succession.ledger);
        }
    }

    /// Finds what the kernel may know of the tree.
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
    pub(super) fn adopt_open(&self, left: &LeftOpen) -> SysResult<()> {
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
                // The checkpoint was deleted, or the file is closed: the kernel forgets an inode
                // after its last close, and the worker died between the two.
                Err(Errno::ESTALE | Errno::ENOENT) => Ok(()),
                adopted => adopted,
            };
        }
        let io = if left.passthrough {
            IoMode::Passthrough
        } else {
            IoMode::Daemon
        };
        let change = crate::live::Change::by(self.engine.live.writers.opener(left.by));
        self.engine.live.adoption.adopt_open(
            &change,
            HandleId(left.fh.0),
            Slot(left.node.0),
            open_flags(left.flags, None),
            io,
            orphans,
        )
    }

    fn adopt_past(&self, left: &LeftOpen) -> SysResult<()> {
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
