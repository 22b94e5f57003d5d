//! The list of verbs, and the smaller ones. Larger verbs have modules of their own.

use super::Engine;
use super::error;
use super::offline::Offline;
use super::requester::Requester;
use super::restore::Restorer;
use super::undo::Undoer;
use super::verb::{Execute, execute};
use crate::engine::checkpoint_info::checkpoint_info;
use crate::history::state::TreeState;
#[cfg(debug_assertions)]
use ckptfs_api::Fault;
use ckptfs_api::{
    Answer, AuditEvent, ByProcess, Cancel, Change, ChangeTags, CheckpointInfo, CheckpointOptions,
    Compare, CompareByProcess, DedupOptions, DedupReport, Delete, DuOptions, DuReport, ExportAsk,
    ExportPart, GcOptions, GcReport, GetStats, GetStatus, ImportAsk, ImportPart, ListAudit,
    ListCheckpoints, ListOperations, ListVersions, OnlyBy, OperationInfo, PinCheckpoint, Query,
    Reason, Request, RestoreOptions, Restored, RestoredOnly, ShowCheckpoint, Stats, Status,
    UndoOptions, Undone, VerbResult, Verified, VerifyOptions, VersionInfo,
};

/// Executes requests; implemented by the engine.
pub trait RequestHandler: Send + Sync {
    /// # Errors
    /// As [`Execute::run`].
    fn answer(&self, request: Request, requester: &Requester) -> VerbResult<Answer>;
}

impl RequestHandler for Engine {
    fn answer(&self, request: Request, requester: &Requester) -> VerbResult<Answer> {
        self.live.inodes.refused.take();
        let answer = execute(request, self, requester);
        answer.map_err(|error| super::refused::named(self, error))
    }
}

/// Ends the exports of a client that has disconnected.
pub fn end(requester: &Requester, answers: &(impl RequestHandler + ?Sized)) {
    for run in requester.take_exports() {
        // It may have been abandoned already.
        let _ = answers.answer(ExportAsk::End { run }.into(), requester);
    }
}

impl Execute for CheckpointOptions {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<CheckpointInfo> {
        if self.if_changed
            && let Some(newest) = engine.timeline().base()
            && let Some(checkpoint) = engine.timeline().catalogue.checkpoint(newest)
        {
            engine.checkpoints.settle();
            let same = engine
                .states
                .compare_all(TreeState::At(newest), TreeState::Live)
                .map(|changes| changes.is_empty());
            if same.map_err(error::tree_not_compared)? {
                return Ok(CheckpointInfo {
                    unchanged: true,
                    ..checkpoint_info(&checkpoint)
                });
            }
        }
        let reason = self
            .of_ns
            .map_or(Reason::Asked, |of_ns| Reason::Imported { of_ns });
        let made = engine
            .checkpoints
            .checkpoint_with_hooks(requester.by(), &self, reason)?;
        engine.snapdir.snapdir_changed();
        Ok(made)
    }
}

impl Execute for GetStatus {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Status> {
        super::status::status(engine)
    }
}

impl Execute for GetStats {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Stats> {
        super::status::stats(engine)
    }
}

impl Execute for ListCheckpoints {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<CheckpointInfo>> {
        Ok(engine
            .timeline()
            .catalogue
            .checkpoints()
            .iter()
            .rev()
            .map(checkpoint_info)
            .collect())
    }

    fn read(self, store: &Offline) -> VerbResult<Vec<CheckpointInfo>> {
        Ok(store
            .checkpoints()
            .iter()
            .rev()
            .map(checkpoint_info)
            .collect())
    }
}

impl Execute for ShowCheckpoint {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<CheckpointInfo> {
        let checkpoint = engine.states.checkpoint(&self.state)?;
        Ok(CheckpointInfo {
            open_at_cut: engine.checkpoints.open_at(checkpoint.id)?,
            dropped: Restorer::new(engine).dropped_info(checkpoint.id)?,
            ..checkpoint_info(&checkpoint)
        })
    }

    fn read(self, store: &Offline) -> VerbResult<CheckpointInfo> {
        store.show(&self.state)
    }
}

impl Execute for Query {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<CheckpointInfo>> {
        engine.search.find_checkpoints(&self)
    }

    fn read(self, store: &Offline) -> VerbResult<Vec<CheckpointInfo>> {
        super::find::find_offline(store.checkpoints(), &self)
    }
}

impl Execute for ChangeTags {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<CheckpointInfo> {
        let tagged =
            engine
                .checkpoints
                .retag_checkpoint(requester.by(), &self.state, &self.retag)?;
        engine.snapdir.snapdir_changed();
        Ok(tagged)
    }
}

impl Execute for PinCheckpoint {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<CheckpointInfo> {
        engine
            .checkpoints
            .pin_checkpoint(requester.by(), &self.state, self.reason.as_deref())
    }
}

impl Execute for ListVersions {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<VersionInfo>> {
        engine.search.version_infos(&self.path)
    }
}

impl Execute for Compare {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<Change>> {
        let from = engine.states.state(&self.from)?;
        let to = self
            .to
            .as_ref()
            .map_or(Ok(TreeState::Live), |to| engine.states.state(to))?;
        if from == TreeState::Live || to == TreeState::Live {
            engine.checkpoints.settle();
        }
        let mut changes = engine
            .states
            .compare_all(from, to)
            .map_err(error::not_compared)?;
        for change in changes.iter_mut().filter(|_| self.sizes) {
            let before = change.from.as_ref().unwrap_or(&change.path);
            (change.old_size, change.size) = (
                engine.states.size_of(from, before),
                engine.states.size_of(to, &change.path),
            );
        }
        Ok(changes)
    }
}

impl Execute for CompareByProcess {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<ByProcess> {
        engine.changes_by(self.from.as_ref(), self.to.as_ref())
    }
}

impl Execute for OnlyBy {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<RestoredOnly> {
        Restorer::new(engine).restore_only(requester, &self)
    }
}

impl Execute for RestoreOptions {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Restored> {
        Restorer::new(engine).restore_with_hooks(requester, &self)
    }
}

impl Execute for Delete {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<CheckpointInfo> {
        let Delete { state, now } = self;
        let deleted = match now {
            true => engine
                .checkpoints
                .free_checkpoint(requester.by(), Undoer::new(engine).stored_id(&state)?)?,
            false => engine
                .checkpoints
                .delete_checkpoint(requester.by(), engine.states.whole_id(&state)?)?,
        };
        engine.snapdir.snapdir_changed();
        Ok(deleted)
    }
}

impl Execute for ListOperations {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<OperationInfo>> {
        Undoer::new(engine).operation_infos(self.before, self.limit)
    }
}

impl Execute for UndoOptions {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Undone> {
        Undoer::new(engine).undo_operations(requester, &self)
    }
}

impl Execute for VerifyOptions {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Verified> {
        let elsewhere = engine.origin.as_ref().and_then(|origin| origin.elsewhere());
        Ok(Verified {
            elsewhere,
            ..engine.verifier.verify_for_a_while(&self)?
        })
    }
}

// A run of `du`, `gc` or `dedup` cannot continue in the next daemon.

impl Execute for DuOptions {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<DuReport> {
        engine.collector.du_for_a_while(&self)
    }
}

impl Execute for GcOptions {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<GcReport> {
        engine.collector.gc_for_a_while(requester.by(), &self)
    }
}

impl Execute for DedupOptions {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<DedupReport> {
        let mut files = Vec::new();
        let report = engine.dedup.dedup_for_a_while(&self, &mut files)?;
        requester.give(files);
        Ok(report)
    }
}

impl Execute for ListAudit {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<AuditEvent>> {
        super::audit::events(&engine.timeline().store().journal)
    }

    fn read(self, store: &Offline) -> VerbResult<Vec<AuditEvent>> {
        super::audit::events(&store.journal()?)
    }
}

impl Execute for ExportAsk {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<ExportPart> {
        let mut files = Vec::new();
        let part = super::export::Exporter::new(engine).part(&self, &mut files)?;
        if let ExportAsk::Begin { .. } | ExportAsk::Whole { .. } = self {
            requester.begins_export(part.run);
        }
        requester.give(files);
        Ok(part)
    }
}

impl Execute for ImportAsk {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<ImportPart> {
        let mut files = Vec::new();
        let part = super::import::Importer::new(engine).part(requester.by(), &self, &mut files)?;
        requester.give(files);
        Ok(part)
    }
}

impl Execute for Cancel {
    fn run(self, _: &Engine, _: &Requester) -> VerbResult<()> {
        Ok(())
    }
}

#[cfg(debug_assertions)]
impl Execute for Fault {
    fn run(self, _: &Engine, _: &Requester) -> VerbResult<(u64, u64)> {
        let seen = ckptfs_sys::fault::disarm_process();
        if let Some(plan) = self.plan {
            ckptfs_sys::fault::arm_process(plan);
        }
        Ok((seen.calls, seen.failed))
    }
}
