//! The preparation of a restore: planning and staging before anything changes. Runs without locks
//! if the tree does not change in that time; otherwise inside the freeze.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::attribution::{Selection, WriterSelector};
use super::super::change_stamp::ChangeStamp;
use super::super::requester::Requester;
use super::desired::DesiredInodes;
use super::excluded::ExcludedPaths;
use super::mount_points::MountPoints;
use super::plan::{PlanScope, RestorePlan};
use super::planner::PlanInput;
use super::stage::Stage;
use super::stat_cache::StatCache;
use super::threads;
use super::{RestoreRequest, Restorer};
use crate::history::present::Trail;
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::history::wake::Hold;
use crate::live::Freeze;
use crate::tree::plan::{InodeAction, NameChange as Becomes};
use ckptfs_api::{Change, CheckpointId, OnlyBy, Times, VerbResult};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::lock::MutexGuard;
use ckptfs_sys::{self as sys, Errno, SysResult};

/// The requested scope of a restore.
#[derive(Clone, Copy)]
pub(super) enum RestoreScope<'a> {
    /// These paths and everything below them; empty: the whole tree.
    Below(&'a [Vec<u8>]),
    /// The changes of these processes.
    By(&'a OnlyBy, &'a WriterSelector),
    /// Exactly these names.
    Names(&'a [Vec<u8>]),
}

/// A prepared operation: the plan, and the source of its inodes.
pub(in crate::engine) trait PreparedOp {
    fn plan(&self) -> &RestorePlan;
    fn want(&self) -> &dyn DesiredInodes;
    /// Files whose content was recorded.
    fn touched(&self) -> &HashSet<Slot>;
    /// Returns whether the plan will not be carried out.
    fn is_given_up(&self) -> bool {
        false
    }
    /// Returns whether staged inodes stay valid if the tree changes before the freeze.
    fn is_fixed(&self) -> bool {
        true
    }
}

/// The prepared restore.
pub(super) struct PreparedRestore<'a> {
    /// The checkpoint to restore.
    pub(super) then: View<'a>,
    pub(super) plan: RestorePlan,
    pub(super) changes: Vec<Change>,
    pub(super) spared: ExcludedPaths,
    /// The selected paths, for [`RestoreScope::By`] and [`RestoreScope::Names`].
    pub(super) chosen: Selection,
    /// Files whose content was recorded, or that compared equal and are left unchanged.
    touched: HashSet<Slot>,
}

impl PreparedOp for PreparedRestore<'_> {
    fn plan(&self) -> &RestorePlan {
        &self.plan
    }

    fn want(&self) -> &dyn DesiredInodes {
        &self.then
    }

    fn touched(&self) -> &HashSet<Slot> {
        &self.touched
    }
}

/// The state of a frozen tree for one operation, including the checkpoint lock. The fields are
/// dropped in this order.
pub(in crate::engine) struct FrozenOp<'a> {
    pub(super) requester: &'a Requester,
    /// The operation that this one undoes.
    pub(super) undoes: Option<u64>,
    pub(super) flushed: bool,
    pub(super) freeze: Freeze<'a>,
    pub(super) stage: Stage<'a>,
    pub(super) _index_later: Hold<'a>,
    pub(super) one_at_a_time: MutexGuard<'a, ()>,
}

/// Attempts to plan before the freeze while other processes change the tree.
const PLANNED_MAX: usize = 2;
/// Minimum number of names for another thread.
const OWNED_FROM: usize = 16;
/// Minimum number of inodes to compare and plan in parallel.
const BOTH_FROM: usize = 256;
/// Number of compared files from which memory is returned to the system.
const RELEASED_FROM: usize = 4096;

impl<'a> Restorer<'a> {
    /// Freezes the tree after preparing everything that can be prepared without the freeze. A plan
    /// is valid if nothing has changed since it was made. Otherwise it is made again, the last time
    /// inside the freeze; staged inodes are reused.
    pub(super) fn prepared(
        self,
        asked: &RestoreRequest<'a>,
        target: CheckpointId,
        choice: RestoreScope<'_>,
        one_at_a_time: MutexGuard<'a, ()>,
    ) -> VerbResult<(PreparedRestore<'a>, FrozenOp<'a>)> {
        let what = "the restore failed";
        let covered = self.covered(what)?;
        let prepare = |await_free: &dyn Fn(Slot) -> SysResult<()>| {
            self.prepare(target, (choice, &covered), asked.times, await_free)
        };
        self.frozen(asked, (what, &covered), prepare, one_at_a_time)
    }

    /// Returns the mount points in the tree. `what` is the failed operation in errors.
    pub(in crate::engine) fn covered(self, what: &str) -> VerbResult<MountPoints> {
        MountPoints::of(self.engine).map_err(|errno| self.engine.checkpoints.failed(what, errno))
    }

    /// Freezes the tree for the operation that `prepare` returns, as [`Restorer::prepared`]. `what`
    /// is the failed operation in errors. Fails before anything is changed if the plan would detach
    /// one of the mount points `covered`.
    pub(in crate::engine) fn frozen<P: PreparedOp>(
        self,
        asked: &RestoreRequest<'a>,
        (what, covered): (&str, &MountPoints),
        prepare: impl Fn(&dyn Fn(Slot) -> SysResult<()>) -> VerbResult<P>,
        one_at_a_time: MutexGuard<'a, ()>,
    ) -> VerbResult<(P, FrozenOp<'a>)> {
        let _index_later = self.engine.timeline().indexer.hold();
        let mut stage = Stage::new(self.engine, asked.requester);
        let (prepared, freeze, flushed) = self.freeze(what, asked.times, prepare, &mut stage)?;
        if !prepared.is_given_up() {
            self.refuse_detaching((what, &prepared.plan().tree), covered)?;
        }
        let frozen = FrozenOp {
            requester: asked.requester,
            undoes: asked.undoes,
            flushed,
            freeze,
            stage,
            _index_later,
            one_at_a_time,
        };
        Ok((prepared, frozen))
    }

    fn freeze<P: PreparedOp>(
        self,
        what: &str,
        times: Times,
        prepare: impl Fn(&dyn Fn(Slot) -> SysResult<()>) -> VerbResult<P>,
        stage: &mut Stage<'_>,
    ) -> VerbResult<(P, Freeze<'a>, bool)> {
        let failed = |errno| self.engine.checkpoints.failed(what, errno);
        for _ in 0..PLANNED_MAX {
            stage.still_wanted()?;
            let seen = self.look_around().map_err(failed)?;
            // An error here may be caused by a concurrent change.
            let Ok(prepared) = prepare(&|slot| self.engine.live.busy.await_free(slot)) else {
                break;
            };
            if prepared.touched().len() > RELEASED_FROM {
                // The comparison allocates many small blocks in several threads, which each arena
                // of the allocator would keep.
                sys::release_memory();
            }
            if !prepared.is_given_up() {
                match stage.fill(prepared.plan(), prepared.want(), false) {
                    Ok(_) => {}
                    Err(errno) if self.is_away(errno) => return Err(failed(errno)),
                    Err(_) => break,
                }
                self.own_ahead(prepared.plan()).map_err(failed)?;
            }
            stage.still_wanted()?;
            let (freeze, flushed) = self.engine.checkpoints.freeze().map_err(failed)?;
            if self.is_as_seen(&seen, prepared.touched()) {
                self.clear_way(prepared.plan()).map_err(failed)?;
                let (plan, want) = (prepared.plan(), prepared.want());
                stage.fill(plan, want, true).map_err(failed)?;
                return Ok((prepared, freeze, flushed));
            }
            // Staged files must be newer than those built from their predecessors in the meantime
            // (make(1)), and merged content may be stale.
            if times == Times::Now || !prepared.is_fixed() {
                stage.clear();
            }
        }
        let (freeze, flushed) = self.engine.checkpoints.freeze().map_err(failed)?;
        let prepared = prepare(&|slot| self.engine.live.busy.probe_frozen(slot))?;
        self.clear_way(prepared.plan()).map_err(failed)?;
        stage.still_wanted()?;
        let (plan, want) = (prepared.plan(), prepared.want());
        stage.fill(plan, want, true).map_err(failed)?;
        Ok((prepared, freeze, flushed))
    }

    /// Copies up, with several threads, what a branch inherits and the plan removes, because a
    /// clone takes time. Errors recur inside the freeze and are reported then. The exception is
    /// content that a remote does not deliver: a freeze must not wait for it.
    ///
    /// # Errors
    /// EIO.
    fn own_ahead(self, plan: &RestorePlan) -> SysResult<()> {
        let live = &self.engine.live;
        if live.inodes.level() == 0 {
            return Ok(());
        }
        let dirs = plan.tree.dirs.iter();
        let names = dirs.filter_map(|dir| Some((dir.live.as_ref()?, &dir.names)));
        let lost: Vec<(&Arc<Trail>, &Name)> = names
            .flat_map(|(dir, names)| names.iter().map(move |name| (dir, name)))
            .filter(|(_, name)| name.have.is_some())
            .filter(|(_, name)| {
                !matches!(
                    plan.tree.change(name),
                    None | Some(Becomes::Stays(InodeAction::Same))
                )
            })
            .map(|(dir, name)| (dir, &name.name))
            .collect();
        let own = |(dir, name): &(&Arc<Trail>, &Name)| live.names.own_name(dir, name);
        let (_, copied) = threads::each(&lost, ("own", OWNED_FROM), own);
        match copied {
            Err(errno) if self.is_away(errno) => Err(errno),
            Err(errno) => {
                tracing::debug!(%errno, "not all could be copied up before the freeze");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Returns whether the error may be caused by a remote that does not deliver content.
    fn is_away(self, errno: Errno) -> bool {
        errno == Errno::EIO && self.engine.live.inodes.level() > 0
    }

    /// Compares the tree with a checkpoint. The contents of files are compared, so no process may
    /// hold a lock on them: `await_free` ensures that.
    fn prepare(
        &self,
        target: CheckpointId,
        (choice, covered): (RestoreScope<'_>, &MountPoints),
        times: Times,
        await_free: impl Fn(Slot) -> SysResult<()>,
    ) -> VerbResult<PreparedRestore<'a>> {
        let failed = |errno| self.engine.checkpoints.failed("the restore failed", errno);
        let touched = self.engine.states.touched(target, None).map_err(failed)?;
        touched
            .data
            .iter()
            .try_for_each(|slot| await_free(*slot))
            .map_err(failed)?;
        let mut chosen = self.chosen(target, choice, &touched)?;
        let which = match choice {
            RestoreScope::Below(paths) => PlanScope::Below(paths),
            RestoreScope::By(..) | RestoreScope::Names(_) => PlanScope::Only(&chosen.paths),
        };
        let spared = self
            .spared(target, which, (covered, &touched))
            .map_err(failed)?;
        let glance = StatCache::new(&self.engine.live);
        let ground = PlanInput {
            engine: self.engine,
            present: &glance,
            target,
            touched: &touched,
            spared: &spared,
            times,
        };
        if matches!(which, PlanScope::Below([])) {
            glance.look_ahead(&touched);
        }
        let compare = || {
            if let RestoreScope::Below(paths) = choice {
                self.changes_to(ground, paths)
            } else {
                Ok(Vec::new())
            }
        };
        let plan = || RestorePlan::make(ground, which);
        let found = if touched.nodes.len() < BOTH_FROM {
            compare().and_then(|changes| Ok((changes, plan()?)))
        } else {
            threads::both("compare", compare, plan)
        };
        let (mut changes, mut plan) = found.map_err(failed)?;
        let mut left = Vec::new();
        let now = View::new(self.engine.timeline(), &glance, TreeState::Live);
        if let RestoreScope::Below(_) = choice {
            left = plan.leave_equal(&changes, &now).map_err(failed)?;
        }
        let then = self.engine.states.view(TreeState::At(target));
        self.refuse_protected("the restore failed", (&plan, &then, &now))?;
        changes.append(&mut chosen.changes);
        Ok(PreparedRestore {
            then,
            plan,
            changes: spared.filter(changes),
            spared,
            chosen,
            touched: touched.data.into_iter().chain(left).collect(),
        })
    }

    /// Returns the selection, if the scope is not a list of subtrees.
    fn chosen(
        &self,
        target: CheckpointId,
        choice: RestoreScope<'_>,
        touched: &Touched,
    ) -> VerbResult<Selection> {
        let states = &self.engine.states;
        match choice {
            RestoreScope::Below(_) => Ok(Selection::default()),
            RestoreScope::By(options, who) => states.selection(target, touched, options, who),
            RestoreScope::Names(names) => {
                let chosen = states.selection_of(target, touched, names);
                Ok(Selection {
                    names: names.to_vec(),
                    ..chosen.map_err(|errno| {
                        self.engine.checkpoints.failed("the restore failed", errno)
                    })?
                })
            }
        }
    }

    /// Returns a stamp of the live tree that differs after any change.
    fn look_around(&self) -> SysResult<ChangeStamp> {
        self.engine.live.hot.await_closes();
        self.engine.checkpoints.settle();
        self.engine.live.hot.preflush();
        // The freeze waits for changes in progress.
        let _freeze = self.engine.live.busy.freeze()?;
        ChangeStamp::of(&self.engine.live)
    }

    /// Returns whether nothing has changed since, inside the freeze. For files that may be mapped
    /// for writing, the time of a store is unknown.
    fn is_as_seen(&self, seen: &ChangeStamp, touched: &HashSet<Slot>) -> bool {
        ChangeStamp::of(&self.engine.live).is_ok_and(|now| now == *seen)
            && !self
                .engine
                .live
                .hot
                .mapped()
                .iter()
                .any(|slot| touched.contains(slot))
    }

    /// Probes all files of a plan for processes that block it, so that it fails before it changes
    /// anything.
    fn clear_way(&self, plan: &RestorePlan) -> SysResult<()> {
        plan.tree
            .dirs
            .iter()
            .flat_map(|dir| &dir.names)
            .try_for_each(|name| {
                let mut slots = name
                    .have
                    .iter()
                    .map(|have| have.slot)
                    .chain(name.want.iter().map(|(child, _)| child.slot));
                slots.try_for_each(|slot| self.engine.live.busy.probe_frozen(slot))
            })
    }
}
