//! Taking back what one process changed: a restore of chosen names alone.

use std::time::Instant;

use super::super::Engine;
use super::super::api::who::{OnlyBy, RestoredOnly};
use super::super::api::{Restored, TreePath, VerbResult};
use super::super::error;
use super::super::who::Selector;
use super::plan::{Plan, Which};
use crate::store::ids::CheckpointId;
use crate::store::record::{Actor, Reason};

impl Engine {
    /// Restores what the selected processes changed since a checkpoint. What was chosen is in the journal before anything changes, so that a restore that
    /// is cut short is finished with the same names.
    pub(in crate::engine) fn restore_selected(&self, by: &Actor, target: CheckpointId, options: &OnlyBy, who: &Selector) -> VerbResult<RestoredOnly> {
        let started = Instant::now();
        let failed = |errno| error::failed("the restore failed", errno);
        let unknown: Vec<TreePath> = self.changed_unserved(target).map_err(failed)?.iter().map(|change| change.path.clone()).collect();
        let done = |guard, changes, shared| {
            let duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            let restored = Restored { restored: target, guard, changes, unknown: unknown.clone(), dry_run: options.dry_run, duration_us };
            RestoredOnly { restored, shared }
        };
        if options.dry_run {
            self.settle();
            let touched = self.touched(target, None).map_err(failed)?;
            let chosen = self.selection(target, &touched, options, who)?;
            return Ok(done(None, chosen.changes, chosen.shared));
        }
        let one_at_a_time = self.checkpointing.lock();
        let (gate, flushed) = self.freeze();
        let touched = self.touched(target, None).map_err(failed)?;
        let chosen = self.selection(target, &touched, options, who)?;
        if chosen.paths.is_empty() {
            return Ok(done(None, chosen.changes, chosen.shared));
        }
        let plan = Plan::make(self, target, Which::Only(&chosen.paths), touched).map_err(failed)?;
        let note = format!("before restoring {target}, only what {} changed", options.who);
        let (guard, opened) = self.seal(Some(by), &note, Vec::new(), Reason::Guard { restored: target }, flushed).map_err(failed)?;
        let tree = self.live.tree.write();
        let applied = self.carry_out(Some(by), &plan, guard.id, Which::Only(&chosen.paths));
        drop(tree);
        drop(gate);
        self.tell_open(guard.id, opened);
        drop(one_at_a_time);
        self.told_after(&plan, guard.id, applied)?;
        Ok(done(Some(guard.id), chosen.changes, chosen.shared))
    }
}
