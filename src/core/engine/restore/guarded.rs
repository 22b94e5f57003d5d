//! Runs a plan, of any origin, behind a guard checkpoint, then invalidates the kernel's caches and
//! notifies watchers.

use super::Restorer;
use super::apply;
use super::mount_points::MountPoints;
use super::plan::{PlanScope, RestorePlan};
use super::prepare::{FrozenOp, PreparedOp};
use super::stage::Stage;
use super::stale::StaleEntries;
use crate::engine::attribution::actor_process;
use crate::engine::auto::daemon;
use crate::engine::requester::Requester;
use crate::history::state::TreeState;
use crate::live::{ChangeCtx, PendingInvalidation};
use ckptfs_api::{Actor, CheckpointId, Reason, VerbResult};
use ckptfs_sys::SysResult;

impl Restorer<'_> {
    /// Creates a guard checkpoint with this note, then calls `act` with the staged inodes before
    /// any other change is possible. `restored`: the checkpoint that the operation restores;
    /// without it the guard refers to itself. If the guard cannot be created, the error names
    /// `what`. The last value returned is for [`Restorer::told_after`].
    pub(in crate::engine) fn behind_guard<T>(
        &self,
        frozen: FrozenOp<'_>,
        (what, note): (&str, &str),
        restored: Option<CheckpointId>,
        act: impl FnOnce(Stage<'_>, CheckpointId) -> T,
    ) -> VerbResult<(CheckpointId, T, PendingInvalidation)> {
        let FrozenOp {
            requester,
            undoes: _,
            flushed,
            freeze,
            stage,
            one_at_a_time,
            _index_later,
        } = frozen;
        requester.still_wants()?;
        let checkpoints = &self.engine.checkpoints;
        let next = self.timeline().epochs.epoch().checkpoint();
        let reason = Reason::Guard {
            restored: restored.unwrap_or(next),
        };
        let (guard, opened) = checkpoints
            .close_epoch(Some(requester.by()), note, Vec::new(), reason, flushed)
            .map_err(|errno| checkpoints.failed(what, errno))?;
        let tree = self.engine.live.locks.tree.write();
        let done = act(stage, guard.id);
        let forgetting = self.engine.live.locks.stale_names.begin();
        drop(tree);
        drop(freeze);
        checkpoints.tell_open(guard.id, opened);
        // mkdir and rmdir in `.snapshots` wait for this lock while the kernel holds the lock of
        // that directory, and its invalidation waits for them.
        drop(one_at_a_time);
        Ok((guard.id, done, forgetting))
    }

    /// Invalidates stale entries in the kernel's caches and notifies watchers after a plan was
    /// carried out. Call without locks.
    pub(in crate::engine) fn told_after(
        &self,
        plan: &RestorePlan,
        applied: SysResult<StaleEntries>,
        forgetting: PendingInvalidation,
    ) -> SysResult<()> {
        self.engine.snapdir.snapdir_changed();
        let (stale, done) = match applied {
            Ok(stale) => (stale, Ok(())),
            Err(errno) => (apply::all_of(plan), Err(errno)),
        };
        self.forget_stale(&stale);
        drop(forgetting);
        self.announce(plan, &stale);
        done
    }

    /// Returns the change context of an actor.
    pub(in crate::engine) fn change_by(&self, by: Option<&Actor>) -> ChangeCtx {
        let number = |by| {
            let process = actor_process(by);
            self.timeline().processes.number(process)
        };
        ChangeCtx::by(by.map(number))
    }

    /// Carries out a plan, independent of its journal records. The caller holds the freeze lock and
    /// the tree lock for writing.
    pub(in crate::engine) fn apply(
        &self,
        change: &ChangeCtx,
        ready: &dyn PreparedOp,
        stage: Stage<'_>,
    ) -> SysResult<StaleEntries> {
        apply::apply(self.engine, change, (ready.plan(), ready.want()), stage)
    }

    /// Restores the tree to a guard that was created in this freeze.
    pub(in crate::engine) fn take_back(
        &self,
        change: &ChangeCtx,
        guard: CheckpointId,
    ) -> SysResult<()> {
        let nobody = Requester::from(daemon());
        let (plan, stage) = self.in_freeze(
            guard,
            (PlanScope::Below(&[]), &MountPoints::default()),
            &nobody,
        )?;
        let want = self.engine.states.view(TreeState::At(guard));
        apply::apply(self.engine, change, (&plan, &want), stage).map(drop)
    }
}
