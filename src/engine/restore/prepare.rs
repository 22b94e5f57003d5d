//! What is found out and made before a restore changes anything: with nothing held, if the tree
//! stands still for so long; else in the freeze.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::api::attribution::OnlyBy;
use super::super::api::{Change, Times, VerbResult};
use super::super::attribution::{Selection, Selector};
use super::super::requester::Requester;
use super::super::seen::Seen;
use super::covered::Covered;
use super::glance::Glance;
use super::plan::{Plan, Which};
use super::planner::Ground;
use super::spared::Spared;
use super::stage::Stage;
use super::threads;
use super::want::Want;
use super::{Asked, Restorer};
use crate::history::present::Trail;
use crate::history::state::State;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::history::wake::Hold;
use crate::live::Freeze;
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::sys::lock::MutexGuard;
use crate::sys::{self, Errno, SysResult};
use crate::tree::plan::{Change as Becomes, Content};

/// What is to be restored, as it was asked for.
#[derive(Clone, Copy)]
pub(super) enum Choice<'a> {
    /// These paths and what is below them; without any, all.
    Below(&'a [Vec<u8>]),
    /// What these processes changed.
    By(&'a OnlyBy, &'a Selector),
    /// These names alone.
    Names(&'a [Vec<u8>]),
}

/// What a tree is frozen for: what is to be done, as it was found out, and what is wanted.
pub(in crate::engine) trait Ready {
    fn plan(&self) -> &Plan;
    fn want(&self) -> &dyn Want;
    /// Files whose content was recorded.
    fn touched(&self) -> &HashSet<Slot>;
    /// Nothing will be carried out.
    fn is_given_up(&self) -> bool {
        false
    }
    /// What is made of it stays right whatever is changed before the freeze.
    fn is_fixed(&self) -> bool {
        true
    }
}

/// What was found to be done.
pub(super) struct Prepared<'a> {
    /// What comes back.
    pub(super) then: View<'a>,
    pub(super) plan: Plan,
    pub(super) changes: Vec<Change>,
    pub(super) spared: Spared,
    /// What was chosen, of [`Choice::By`] and [`Choice::Names`].
    pub(super) chosen: Selection,
    /// Files whose content was recorded, or compared and left alone.
    touched: HashSet<Slot>,
}

impl Ready for Prepared<'_> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn want(&self) -> &dyn Want {
        &self.then
    }

    fn touched(&self) -> &HashSet<Slot> {
        &self.touched
    }
}

/// What a restore is carried out with, and by whom: the tree is frozen, and nobody else makes a
/// checkpoint. It is let go of in this order.
pub(in crate::engine) struct Frozen<'a> {
    pub(super) requester: &'a Requester,
    /// The operation that it undoes.
    pub(super) undoes: Option<u64>,
    pub(super) flushed: bool,
    pub(super) freeze: Freeze<'a>,
    pub(super) stage: Stage<'a>,
    pub(super) _index_later: Hold<'a>,
    pub(super) one_at_a_time: MutexGuard<'a, ()>,
}

/// How often a restore is planned before the freeze, where others change things meanwhile.
const PLANNED_MAX: usize = 2;
/// Fewer names are not worth another thread.
const OWNED_FROM: usize = 16;
/// Fewer inodes are compared and planned sooner than a thread begins.
const BOTH_FROM: usize = 256;
/// Of so many the memory that it took to compare them is given back before more is taken.
const RELEASED_FROM: usize = 4096;

impl<'a> Restorer<'a> {
    /// Freezes the tree with all prepared that can be prepared before. What was planned is as it
    /// was then if nothing has changed since; else it is planned again, at last in the freeze. What
    /// was made for it stays.
    pub(super) fn prepared(
        self,
        asked: &Asked<'a>,
        target: CheckpointId,
        choice: Choice<'_>,
        one_at_a_time: MutexGuard<'a, ()>,
    ) -> VerbResult<(Prepared<'a>, Frozen<'a>)> {
        let what = "the restore failed";
        let covered = self.covered(what)?;
        let prepare = |await_free: &dyn Fn(Slot) -> SysResult<()>| {
            self.prepare(target, (choice, &covered), asked.times, await_free)
        };
        self.frozen(asked, (what, &covered), prepare, one_at_a_time)
    }

    /// The mount points in the tree. `what` failed if they cannot be found out.
    pub(in crate::engine) fn covered(self, what: &str) -> VerbResult<Covered> {
        Covered::of(self.engine).map_err(|errno| self.engine.checkpoints.failed(what, errno))
    }

    /// As [`Restorer::prepared`], of what `prepare` finds out; `what` failed if it does. Fails
    /// before anything is changed if one of the mount points `covered` would be detached.
    pub(in crate::engine) fn frozen<P: Ready>(
        self,
        asked: &Asked<'a>,
        (what, covered): (&str, &Covered),
        prepare: impl Fn(&dyn Fn(Slot) -> SysResult<()>) -> VerbResult<P>,
        one_at_a_time: MutexGuard<'a, ()>,
    ) -> VerbResult<(P, Frozen<'a>)> {
        let _index_later = self.engine.timeline().indexer.hold();
        let mut stage = Stage::new(self.engine, asked.requester);
        let (prepared, freeze, flushed) = self.freeze(what, asked.times, prepare, &mut stage)?;
        if !prepared.is_given_up() {
            self.refuse_detaching((what, &prepared.plan().tree), covered)?;
        }
        let frozen = Frozen {
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

    fn freeze<P: Ready>(
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
            // What fails here may fail because something changes meanwhile.
            let Ok(prepared) = prepare(&|slot| self.engine.live.busy.await_free(slot)) else {
                break;
            };
            if prepared.touched().len() > RELEASED_FROM {
                // What was compared is many small pieces, of several threads, which each
                // allocator's arena would keep to itself.
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
            // What is made from it meanwhile must not be newer.
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

    /// What a branch inherits and is about to lose is copied up here, by some threads, for to clone
    /// it takes its time. What fails here fails again in the freeze, and is told then, but for
    /// content that a remote does not give: nothing waits for that in a freeze.
    ///
    /// # Errors
    /// EIO.
    fn own_ahead(self, plan: &Plan) -> SysResult<()> {
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
                    None | Some(Becomes::Stays(Content::Same))
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

    /// What failed may be content that is in a remote, which does not give it.
    fn is_away(self, errno: Errno) -> bool {
        errno == Errno::EIO && self.engine.live.inodes.level() > 0
    }

    /// Compares the tree with a checkpoint. The contents of files are compared, so none may be kept
    /// locked by some process: `await_free` sees to it.
    fn prepare(
        &self,
        target: CheckpointId,
        (choice, covered): (Choice<'_>, &Covered),
        times: Times,
        await_free: impl Fn(Slot) -> SysResult<()>,
    ) -> VerbResult<Prepared<'a>> {
        let failed = |errno| self.engine.checkpoints.failed("the restore failed", errno);
        let touched = self.engine.states.touched(target, None).map_err(failed)?;
        touched
            .data
            .iter()
            .try_for_each(|slot| await_free(*slot))
            .map_err(failed)?;
        let mut chosen = self.chosen(target, choice, &touched)?;
        let which = match choice {
            Choice::Below(paths) => Which::Below(paths),
            Choice::By(..) | Choice::Names(_) => Which::Only(&chosen.paths),
        };
        let spared = self
            .spared(target, which, (covered, &touched))
            .map_err(failed)?;
        let glance = Glance::new(&self.engine.live);
        let ground = Ground {
            engine: self.engine,
            present: &glance,
            target,
            touched: &touched,
            spared: &spared,
            times,
        };
        if matches!(which, Which::Below([])) {
            glance.look_ahead(&touched);
        }
        let compare = || {
            if let Choice::Below(paths) = choice {
                self.changes_to(ground, paths)
            } else {
                Ok(Vec::new())
            }
        };
        let plan = || Plan::make(ground, which);
        let found = if touched.nodes.len() < BOTH_FROM {
            compare().and_then(|changes| Ok((changes, plan()?)))
        } else {
            threads::both("compare", compare, plan)
        };
        let (mut changes, mut plan) = found.map_err(failed)?;
        let mut left = Vec::new();
        let now = View::new(self.engine.timeline(), &glance, State::Live);
        if let Choice::Below(_) = choice {
            left = plan.leave_equal(&changes, &now).map_err(failed)?;
        }
        let then = self.engine.states.view(State::At(target));
        self.refuse_protected("the restore failed", (&plan, &then, &now))?;
        changes.append(&mut chosen.changes);
        Ok(Prepared {
            then,
            plan,
            changes: spared.filter(changes),
            spared,
            chosen,
            touched: touched.data.into_iter().chain(left).collect(),
        })
    }

    /// Single names, if such are to be restored.
    fn chosen(
        &self,
        target: CheckpointId,
        choice: Choice<'_>,
        touched: &Touched,
    ) -> VerbResult<Selection> {
        let states = &self.engine.states;
        match choice {
            Choice::Below(_) => Ok(Selection::default()),
            Choice::By(options, who) => states.selection(target, touched, options, who),
            Choice::Names(names) => {
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

    /// What is as it is for as long as nothing changes.
    fn look_around(&self) -> SysResult<Seen> {
        self.engine.live.hot.await_closes();
        self.engine.checkpoints.settle();
        self.engine.live.hot.preflush();
        // Whatever has begun to change something has ended then.
        let _freeze = self.engine.live.busy.freeze()?;
        Seen::of(&self.engine.live)
    }

    /// In the freeze: nothing has changed since. Of files that may be mapped and written to it
    /// cannot be told what was stored when.
    fn is_as_seen(&self, seen: &Seen, touched: &HashSet<Slot>) -> bool {
        Seen::of(&self.engine.live).is_ok_and(|now| now == *seen)
            && !self
                .engine
                .live
                .hot
                .mapped()
                .iter()
                .any(|slot| touched.contains(slot))
    }

    /// Looks whether some process is in the way of a plan, so that it fails before it has done
    /// anything.
    fn clear_way(&self, plan: &Plan) -> SysResult<()> {
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
