//! Restores only the names that selected processes changed.

use std::time::Instant;

use super::super::attribution::WriterSelector;
use super::super::error;
use super::super::requester::Requester;
use super::excluded::ExcludedPaths;
use super::mount_points::MountPoints;
use super::plan::PlanScope;
use super::prepare::RestoreScope;
use super::{RestoreRequest, Restorer, told};
use ckptfs_api::{CheckpointId, OnlyBy, Restored, RestoredOnly, Times, VerbResult};
use ckptfs_sys::lock::MutexGuard;

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
            WriterSelector::parse(&options.who).ok_or_else(|| error::bad_process(&options.who))?;
        self.restore_selected(requester, target, options, &selector)
    }

    /// Restores the changes of the selected processes since a checkpoint. The selection is in the
    /// journal before anything changes, so that an interrupted restore is finished with the same
    /// names.
    pub(in crate::engine) fn restore_selected(
        &self,
        requester: &Requester,
        target: CheckpointId,
        options: &OnlyBy,
        who: &WriterSelector,
    ) -> VerbResult<RestoredOnly> {
        let started = Instant::now();
        let failed = |errno| self.engine.checkpoints.failed("the restore failed", errno);
        let mut unknown = self.unknown_in(target).map_err(failed)?;
        unknown.retain(|path| options.takes(&path.0));
        let done = |guard, changes, shared, spared: ExcludedPaths| RestoredOnly {
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
            let covered = MountPoints::of(self.engine).map_err(failed)?;
            let spared = self
                .spared(target, PlanScope::Only(&chosen.paths), (&covered, &touched))
                .map_err(failed)?;
            return Ok(done(
                None,
                spared.filter(chosen.changes),
                chosen.shared,
                spared,
            ));
        }
        let one_at_a_time = self.engine.checkpoints.wait_turn(requester)?;
        let asked = RestoreRequest {
            requester,
            undoes: None,
            started,
            unknown: Vec::new(),
            times: Times::or_default(options.times, true),
        };
        let (prepared, frozen) = self.prepared(
            &asked,
            target,
            RestoreScope::By(options, who),
            one_at_a_time,
        )?;
        if prepared.chosen.paths.is_empty() {
            let (changes, shared) = (prepared.changes, prepared.chosen.shared);
            return Ok(done(None, changes, shared, prepared.spared));
        }
        let note = format!(
            "before restoring {target}, only what {} changed",
            options.who
        );
        let chosen = &prepared.chosen;
        let only = PlanScope::Only(&chosen.paths);
        let guard = self.restore_frozen(frozen, &note, &prepared, only, &chosen.names)?;
        let (changes, shared) = (prepared.changes, prepared.chosen.shared);
        Ok(done(Some(guard), changes, shared, prepared.spared))
    }

    /// Restores exactly these names, to undo an operation of this kind. Their parents and
    /// everything below them stay, and so does a name that cannot be restored without others.
    pub(in crate::engine) fn restore_names(
        &self,
        asked: RestoreRequest<'_>,
        target: CheckpointId,
        names: &[Vec<u8>],
        one_at_a_time: MutexGuard<'_, ()>,
    ) -> VerbResult<Restored> {
        let (prepared, frozen) =
            self.prepared(&asked, target, RestoreScope::Names(names), one_at_a_time)?;
        let (note, chosen) = (format!("before restoring {target}"), &prepared.chosen);
        let only = PlanScope::Only(&chosen.paths);
        let guard = self.restore_frozen(frozen, &note, &prepared, only, &chosen.names)?;
        Ok(Restored {
            guard: Some(guard),
            ..told(
                asked.started,
                target,
                prepared.changes,
                asked.unknown,
                &prepared.spared,
            )
        })
    }
}
