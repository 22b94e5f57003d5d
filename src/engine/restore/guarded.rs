//! What a plan is carried out with, whoever made it: behind a guard checkpoint, and told afterwards.

use super::Restorer;
use super::apply;
use super::covered::Covered;
use super::plan::{Plan, Which};
use super::prepare::{Frozen, Ready};
use super::stage::Stage;
use super::stale::Stale;
use crate::engine::api::VerbResult;
use crate::engine::attribution::actor_process;
use crate::engine::auto::daemon;
use crate::engine::requester::Requester;
use crate::history::state::State;
use crate::live::{Change, Forgetting};
use crate::store::ids::CheckpointId;
use crate::store::record::{Actor, Reason};
use crate::sys::SysResult;

impl Restorer<'_> {
    /// Makes a guard checkpoint with this note, and does something with what was staged, before
    /// anybody else changes anything. `restored`: what that is a restore of; without it, of no
    /// other state than the guard. If the guard cannot be made, `what` failed. What is returned
    /// last is for [`Restorer::told_after`].
    pub(in crate::engine) fn behind_guard<T>(
        &self,
        frozen: Frozen<'_>,
        (what, note): (&str, &str),
        restored: Option<CheckpointId>,
        act: impl FnOnce(Stage<'_>, CheckpointId) -> T,
    ) -> VerbResult<(CheckpointId, T, Forgetting)> {
        let Frozen {
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
        // Whoever makes or removes a directory in `.snapshots` holds it while waiting for this
        // lock, and to have it forgotten waits for them.
        drop(one_at_a_time);
        Ok((guard.id, done, forgetting))
    }

    /// After a plan was carried out, with nothing held: the kernel forgets what is no longer so,
    /// and watchers are told.
    pub(in crate::engine) fn told_after(
        &self,
        plan: &Plan,
        applied: SysResult<Stale>,
        forgetting: Forgetting,
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

    /// What somebody has changed.
    pub(in crate::engine) fn change_by(&self, by: Option<&Actor>) -> Change {
        let number = |by| {
            let process = actor_process(by);
            self.timeline().processes.number(process)
        };
        Change::by(by.map(number))
    }

    /// Carries out a plan, whatever the journal is told of it. The caller holds the freeze lock and
    /// the tree for writing.
    pub(in crate::engine) fn apply(
        &self,
        change: &Change,
        ready: &dyn Ready,
        stage: Stage<'_>,
    ) -> SysResult<Stale> {
        apply::apply(self.engine, change, (ready.plan(), ready.want()), stage)
    }

    /// Makes the tree what it was at a guard that was made in this freeze.
    pub(in crate::engine) fn take_back(
        &self,
        change: &Change,
        guard: CheckpointId,
    ) -> SysResult<()> {
        let nobody = Requester::from(daemon());
        let (plan, stage) =
            self.in_freeze(guard, (Which::Below(&[]), &Covered::default()), &nobody)?;
        let want = self.engine.states.view(State::At(guard));
        apply::apply(self.engine, change, (&plan, &want), stage).map(drop)
    }
}
