//! Taking back what one process changed: a restore of chosen names alone.

use std::time::Instant;

use super::super::Engine;
use super::super::api::who::{OnlyBy, RestoredOnly};
use super::super::api::{Restored, Times, TreePath, VerbResult};
use super::super::asker::still_wanted;
use super::super::who::{Selection, Selector};
use super::plan::{Plan, Which};
use super::spared::Spared;
use super::stage::Stage;
use super::{Asked, took};
use crate::history::touched::Touched;
use crate::live::Freeze;
use crate::store::ids::CheckpointId;
use crate::store::record::{Actor, Reason};
use crate::sys::lock::MutexGuard;

/// Nothing changes, and nobody else makes a checkpoint.
struct Frozen<'a> {
    gate: Freeze<'a>,
    flushed: bool,
    one_at_a_time: MutexGuard<'a, ()>,
}

impl Engine {
    /// Restores what the selected processes changed since a checkpoint. What was chosen is in the journal before anything changes, so that a restore that
    /// is cut short is finished with the same names.
    pub(in crate::engine) fn restore_selected(&self, by: &Actor, target: CheckpointId, options: &OnlyBy, who: &Selector) -> VerbResult<RestoredOnly> {
        let started = Instant::now();
        let failed = |errno| self.failed("the restore failed", errno);
        let unknown: Vec<TreePath> = self.changed_unserved(target).map_err(failed)?.iter().map(|change| change.path.clone()).collect();
        let done = |guard, changes, shared, spared: Spared| {
            let (changes, dropped) = (spared.filter(changes), spared.told());
            let restored = Restored {
                restored: target,
                guard,
                changes,
                unknown: unknown.clone(),
                dropped,
                split: Vec::new(),
                dry_run: options.dry_run,
                duration_us: took(started),
            };
            RestoredOnly { restored, shared }
        };
        if options.dry_run {
            self.settle();
            let touched = self.touched(target, None).map_err(failed)?;
            let chosen = self.selection(target, &touched, options, who)?;
            let spared = self.spared(target, Which::Only(&chosen.paths)).map_err(failed)?;
            return Ok(done(None, chosen.changes, chosen.shared, spared));
        }
        let one_at_a_time = self.wait_turn()?;
        let (gate, flushed) = self.freeze().map_err(failed)?;
        let touched = self.touched_frozen(target).map_err(failed)?;
        let chosen = self.selection(target, &touched, options, who)?;
        if chosen.paths.is_empty() {
            let spared = self.spared(target, Which::Only(&chosen.paths)).map_err(failed)?;
            return Ok(done(None, chosen.changes, chosen.shared, spared));
        }
        let note = format!("before restoring {target}, only what {} changed", options.who);
        let frozen = Frozen { gate, flushed, one_at_a_time };
        let spared = self.spared(target, Which::Only(&chosen.paths)).map_err(failed)?;
        let times = Times::or_default(options.times, true);
        let guard = self.restore_chosen((by, None), target, &note, touched, &chosen, (frozen, times))?;
        Ok(done(Some(guard), chosen.changes, chosen.shared, spared))
    }

    /// Restores these names alone: what an operation restored so is made as it was before. What they are part of and what is below them stays; so does
    /// one of them that cannot be restored without more.
    pub(in crate::engine) fn restore_names(
        &self,
        asked: Asked<'_>,
        target: CheckpointId,
        names: &[Vec<u8>],
        one_at_a_time: MutexGuard<'_, ()>,
    ) -> VerbResult<Restored> {
        let failed = |errno| self.failed("the restore failed", errno);
        let Asked { by, undoes, started, unknown, times } = asked;
        let (gate, flushed) = self.freeze().map_err(failed)?;
        let touched = self.touched_frozen(target).map_err(failed)?;
        let chosen = Selection { names: names.to_vec(), ..self.selection_of(target, &touched, names).map_err(failed)? };
        let note = format!("before restoring {target}");
        let frozen = Frozen { gate, flushed, one_at_a_time };
        let spared = self.spared(target, Which::Only(&chosen.paths)).map_err(failed)?;
        let guard = self.restore_chosen((by, undoes), target, &note, touched, &chosen, (frozen, times))?;
        let (changes, dropped) = (spared.filter(chosen.changes), spared.told());
        Ok(Restored {
            restored: target,
            guard: Some(guard),
            changes,
            unknown,
            dropped,
            split: Vec::new(),
            dry_run: false,
            duration_us: took(started),
        })
    }

    /// Restores what was chosen.
    fn restore_chosen(
        &self,
        by: (&Actor, Option<u64>),
        target: CheckpointId,
        note: &str,
        touched: Touched,
        chosen: &Selection,
        (frozen, times): (Frozen<'_>, Times),
    ) -> VerbResult<CheckpointId> {
        let failed = |errno| self.failed("the restore failed", errno);
        let plan = Plan::make(self, target, Which::Only(&chosen.paths), touched, times).map_err(failed)?;
        self.clear_way(&plan).map_err(failed)?;
        let mut stage = Stage::new(self);
        stage.fill(&plan, true).map_err(failed)?;
        still_wanted()?;
        let Frozen { gate, flushed, one_at_a_time } = frozen;
        let (guard, opened) = self.seal(Some(by.0), note, Vec::new(), Reason::Guard { restored: target }, flushed).map_err(failed)?;
        let tree = self.live.tree.write();
        let applied = self.carry_out(Some(by), (&plan, stage), guard.id, Which::Only(&chosen.paths), &chosen.names);
        drop(tree);
        drop(gate);
        self.tell_open(guard.id, opened);
        drop(one_at_a_time);
        self.told_after(&plan, guard.id, applied)?;
        Ok(guard.id)
    }
}
