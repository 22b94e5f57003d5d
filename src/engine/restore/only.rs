//! Taking back what one process changed: a restore of chosen names alone.

use std::time::Instant;

use super::super::api::attribution::{OnlyBy, RestoredOnly};
use super::super::api::{Restored, Times, VerbResult};
use super::super::attribution::Selector;
use super::super::error;
use super::super::requester::Requester;
use super::plan::{Plan, Which};
use super::prepare::{Choice, Prepared};
use super::spared::Spared;
use super::stage::Stage;
use super::{Asked, Restorer, told};
use crate::live::Freeze;
use crate::store::ids::CheckpointId;
use crate::store::record::Reason;
use crate::sys::lock::MutexGuard;

/// What a restore of names is carried out with, and by whom: the tree is frozen, and nobody else
/// makes a checkpoint.
struct Frozen<'a> {
    requester: &'a Requester,
    /// The operation that it undoes.
    undoes: Option<u64>,
    stage: Stage<'a>,
    freeze: Freeze<'a>,
    flushed: bool,
    one_at_a_time: MutexGuard<'a, ()>,
}

impl Restorer<'_> {
    pub(in crate::engine) fn restore_only(
        &self,
        requester: &Requester,
        options: &OnlyBy,
    ) -> VerbResult<RestoredOnly> {
        let target = match &options.to {
            Some(to) => self.engine.states.whole_id(to)?,
            None => self.timeline().base().ok_or_else(error::no_checkpoint)?,
        };
        let selector =
            Selector::parse(&options.who).ok_or_else(|| error::bad_process(&options.who))?;
        self.restore_selected(requester, target, options, &selector)
    }

    /// Restores what the selected processes changed since a checkpoint. What was chosen is in the
    /// journal before anything changes, so that a restore that is cut short is finished with the
    /// same names.
    pub(in crate::engine) fn restore_selected(
        &self,
        requester: &Requester,
        target: CheckpointId,
        options: &OnlyBy,
        who: &Selector,
    ) -> VerbResult<RestoredOnly> {
        let started = Instant::now();
        let failed = |errno| self.engine.checkpoints.failed("the restore failed", errno);
        let unknown = self.unknown_in(target).map_err(failed)?;
        let done = |guard, changes, shared, spared: Spared| RestoredOnly {
            restored: Restored {
                guard,
                dry_run: options.dry_run,
                ..told(started, target, changes, unknown, &spared)
            },
            shared,
        };
        if options.dry_run {
            self.engine.checkpoints.settle();
            let touched = self.engine.states.touched(target, None).map_err(failed)?;
            let chosen = self
                .engine
                .states
                .selection(target, &touched, options, who)?;
            let spared = self
                .spared(target, Which::Only(&chosen.paths))
                .map_err(failed)?;
            return Ok(done(
                None,
                spared.filter(chosen.changes),
                chosen.shared,
                spared,
            ));
        }
        let one_at_a_time = self.engine.checkpoints.wait_turn(requester)?;
        let _index_later = self.timeline().indexer.hold();
        let mut stage = Stage::new(self.engine, requester);
        let (prepared, freeze, flushed) = self.prepared(
            target,
            Choice::By(options, who),
            Times::or_default(options.times, true),
            &mut stage,
        )?;
        let Prepared {
            plan,
            changes,
            spared,
            chosen,
            ..
        } = prepared;
        if chosen.paths.is_empty() {
            return Ok(done(None, changes, chosen.shared, spared));
        }
        let note = format!(
            "before restoring {target}, only what {} changed",
            options.who
        );
        let frozen = Frozen {
            requester,
            undoes: None,
            stage,
            freeze,
            flushed,
            one_at_a_time,
        };
        let guard = self.restore_chosen(frozen, &note, &plan, (&chosen.paths, &chosen.names))?;
        Ok(done(Some(guard), changes, chosen.shared, spared))
    }

    /// Restores these names alone: what an operation restored so is made as it was before. What
    /// they are part of and what is below them stays; so does one of them that cannot be restored
    /// without more.
    pub(in crate::engine) fn restore_names(
        &self,
        asked: Asked<'_>,
        target: CheckpointId,
        names: &[Vec<u8>],
        one_at_a_time: MutexGuard<'_, ()>,
    ) -> VerbResult<Restored> {
        let Asked {
            requester,
            undoes,
            started,
            unknown,
            times,
        } = asked;
        let _index_later = self.timeline().indexer.hold();
        let mut stage = Stage::new(self.engine, requester);
        let (prepared, freeze, flushed) =
            self.prepared(target, Choice::Names(names), times, &mut stage)?;
        let Prepared {
            plan,
            changes,
            spared,
            chosen,
            ..
        } = prepared;
        let frozen = Frozen {
            requester,
            undoes,
            stage,
            freeze,
            flushed,
            one_at_a_time,
        };
        let guard = self.restore_chosen(
            frozen,
            &format!("before restoring {target}"),
            &plan,
            (&chosen.paths, &chosen.names),
        )?;
        Ok(Restored {
            guard: Some(guard),
            ..told(started, target, changes, unknown, &spared)
        })
    }

    /// Restores what was chosen: these paths. The journal is told of `names`.
    fn restore_chosen(
        &self,
        frozen: Frozen<'_>,
        note: &str,
        plan: &Plan,
        (paths, names): (&[Vec<u8>], &[Vec<u8>]),
    ) -> VerbResult<CheckpointId> {
        let failed = |errno| self.engine.checkpoints.failed("the restore failed", errno);
        let Frozen {
            requester,
            undoes,
            stage,
            freeze,
            flushed,
            one_at_a_time,
        } = frozen;
        requester.still_wants()?;
        let by = requester.by();
        let (guard, opened) = self
            .engine
            .checkpoints
            .close_epoch(
                Some(by),
                note,
                Vec::new(),
                Reason::Guard {
                    restored: plan.target,
                },
                flushed,
            )
            .map_err(failed)?;
        let tree = self.engine.live.locks.tree.write();
        let applied = self.carry_out(
            Some((by, undoes)),
            (plan, stage),
            guard.id,
            Which::Only(paths),
            names,
        );
        drop(tree);
        drop(freeze);
        self.engine.checkpoints.tell_open(guard.id, opened);
        drop(one_at_a_time);
        self.told_after(plan, guard.id, applied)?;
        Ok(guard.id)
    }
}
