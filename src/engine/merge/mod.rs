//! Merge: what another tree did since both were one is done to the live tree.
//!
//! `theirs` is a checkpoint: of a branch, made for it, or of this tree, where that was another line
//! of the same history. What comes of the three is found out with nothing held ([`prepare`]), along
//! what was recorded on either side, and carried out as a restore is: staged, in one freeze, behind
//! a guard checkpoint. The journal says that a restore *of the guard* is under way, so a merge that
//! is cut short is taken back at the next mount; so is one that fails. The record of the operation
//! comes at its end.

mod answers;
mod changes;
mod prepare;

use std::collections::BTreeSet;
use std::time::Instant;

pub use self::answers::{ConflictKind, Merge, MergeConflict, MergePolicy, MergeSide, Merged};
use self::prepare::{Merging, Three};
use super::Engine;
use super::api::{CheckpointOptions, Times, TreePath, VerbError, VerbResult, microseconds};
use super::branches::Branch;
use super::hooks::around;
use super::requester::Requester;
use super::restore::Restorer;
use super::restore::prepare::Ready;
use super::restore::stage::Stage;
use super::restore::stale::{Asked, Stale};
use super::verb::Verb;
use crate::history::state::State;
use crate::store::ids::CheckpointId;
use crate::store::record::{Actor, Reason, Record};
use crate::sys::Errno;
use std::sync::Arc;

const FAILED: &str = "the merge failed";

/// What is merged.
struct Theirs {
    /// A branch, or, without one, this tree.
    branch: Option<Arc<Branch>>,
    state: State,
    base: CheckpointId,
}

/// A merge that failed.
struct Failed {
    why: Errno,
    /// Everything is as it was before.
    taken_back: bool,
}

/// Merges into the live tree of an engine.
struct Merger<'a> {
    engine: &'a Engine,
    requester: &'a Requester,
    asked: &'a Merge,
}

impl Verb for Merge {
    type Answer = Merged;

    fn only_asks(&self) -> bool {
        self.dry_run
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Merged> {
        let merger = Merger {
            engine,
            requester,
            asked: &self,
        };
        if self.dry_run {
            return merger.merge();
        }
        let merged = |merged: &Merged| {
            let guard = merged
                .guard
                .map(|guard| ("CKPTFS_GUARD", guard.to_string()));
            guard.into_iter().collect()
        };
        around(
            engine.checkpoints.hooks.as_ref(),
            &engine.serving.config.mount,
            requester.by(),
            ("merge", vec![("CKPTFS_MERGED", self.what.clone())]),
            || merger.merge(),
            merged,
        )
    }
}

/// The paths that a merge of a branch would change here, or that clash: what it has done and this
/// tree has not. The caller sees to it that the branch stays.
///
/// # Errors
/// As of a merge that is only asked for.
pub(super) fn unmerged(engine: &Engine, branch: &Branch) -> VerbResult<BTreeSet<TreePath>> {
    let asked = Merge {
        what: branch.name.clone(),
        dry_run: true,
        ..Merge::default()
    };
    engine.checkpoints.settle();
    branch.engine.checkpoints.settle();
    let three = Three {
        engine,
        base: engine.states.view(State::At(branch.base)),
        ours: engine.states.view(State::Live),
        theirs: branch.engine.states.view(State::Live),
        branch: Some(branch),
        since: branch.base,
        asked: &asked,
    };
    let merging = three.prepare(&|_| Ok(()))?;
    let changes = merging.changes.iter().map(|change| change.path.clone());
    let clashes = merging.conflicts().into_iter().map(|clash| clash.path);
    Ok(changes.chain(clashes).collect())
}

impl<'a> Merger<'a> {
    fn merge(&self) -> VerbResult<Merged> {
        let started = Instant::now();
        let _claim = match &self.asked.base {
            Some(_) => None,
            None => Some(self.engine.branches().claim(&self.asked.what)?),
        };
        let theirs = self.theirs()?;
        let there = theirs
            .branch
            .as_ref()
            .map_or(self.engine, |branch| &branch.engine);
        let three = Three {
            engine: self.engine,
            base: self.engine.states.view(State::At(theirs.base)),
            ours: self.engine.states.view(State::Live),
            theirs: there.states.view(theirs.state),
            branch: theirs.branch.as_deref(),
            since: theirs.base,
            asked: self.asked,
        };
        let answer = |merging: &Merging<'_>, guard| Merged {
            what: self.asked.what.clone(),
            base: theirs.base,
            merged: theirs.state.checkpoint(),
            guard,
            changes: merging.changes.clone(),
            conflicts: merging.conflicts(),
            refused: merging.is_refused(),
            dry_run: self.asked.dry_run,
            duration_us: microseconds(started.elapsed()),
        };
        if self.asked.dry_run {
            self.engine.checkpoints.settle();
            let merging = three.prepare(&|_| Ok(()))?;
            return Ok(answer(&merging, None));
        }
        let asked = Asked {
            requester: self.requester,
            undoes: None,
            started,
            unknown: Vec::new(),
            times: three.times(),
        };
        let restorer = Restorer::new(self.engine);
        let one_at_a_time = self.engine.checkpoints.wait_turn(self.requester)?;
        let prepare = |await_free: prepare::AwaitFree<'_>| three.prepare(await_free);
        let (merging, frozen) = restorer.frozen(&asked, FAILED, prepare, one_at_a_time)?;
        if merging.is_refused() || merging.changes.is_empty() {
            return Ok(answer(&merging, None));
        }
        let note = format!("before merging {}", self.asked.what);
        let (guard, applied) =
            restorer.behind_guard(frozen, (FAILED, &note), None, |stage, guard| {
                self.carry_out(&merging, stage, guard)
            })?;
        let (applied, taken_back) = match applied {
            Ok(stale) => (Ok(stale), false),
            Err(failed) => (Err(failed.why), failed.taken_back),
        };
        restorer
            .told_after(merging.plan(), applied)
            .map_err(|why| self.failed(why, guard, taken_back))?;
        Ok(answer(&merging, Some(guard)))
    }

    fn failed(&self, why: Errno, guard: CheckpointId, taken_back: bool) -> VerbError {
        let hint = match taken_back {
            true => "everything is as it was before".to_owned(),
            false => {
                format!("nothing is lost: `ckptfs restore {guard}` brings back what was there")
            }
        };
        VerbError {
            hint: Some(hint),
            ..self.engine.checkpoints.failed(FAILED, why)
        }
    }

    /// What is merged, at a checkpoint that stays as it is.
    fn theirs(&self) -> VerbResult<Theirs> {
        let states = &self.engine.states;
        if let Some(base) = &self.asked.base {
            let base = states.whole_id(base)?;
            let at = states.whole_id(&super::api::StateName(self.asked.what.clone()))?;
            return Ok(Theirs {
                branch: None,
                state: State::At(at),
                base,
            });
        }
        let branch = self.engine.branches().get(&self.asked.what)?;
        let state = if self.asked.dry_run {
            branch.engine.checkpoints.settle();
            State::Live
        } else {
            let options = CheckpointOptions {
                note: "merged into the tree that it is a branch of".to_owned(),
                ..CheckpointOptions::default()
            };
            let by = self.requester.by();
            let made = branch
                .engine
                .checkpoints
                .make_checkpoint(by, &options, Reason::Asked)?;
            State::At(made.id)
        };
        Ok(Theirs {
            base: branch.base,
            branch: Some(branch),
            state,
        })
    }

    /// Carries out the plan between the record that the guard is to be restored, which is so as
    /// long as this is not done, and that of the operation. The caller holds the freeze lock and
    /// the tree for writing.
    fn carry_out(
        &self,
        merging: &Merging<'_>,
        stage: Stage<'_>,
        guard: CheckpointId,
    ) -> Result<Stale, Failed> {
        let by: &Actor = self.requester.by();
        let restorer = Restorer::new(self.engine);
        let timeline = restorer.timeline();
        let change = restorer.change_by(Some(by));
        let begun = timeline.operations.begin_merge(by, guard);
        begun.map_err(|why| Failed {
            why,
            taken_back: true,
        })?;
        let applied = restorer
            .apply(&change, merging, stage)
            .and_then(|stale| timeline.operations.end_merge(by, guard).map(|()| stale));
        applied.map_err(|why| {
            let back = restorer.take_back(&change, guard);
            if let Err(errno) = back {
                tracing::error!(%errno, %guard, "a merge that failed is not taken back");
            }
            // What is not taken back now is there, and may be changed from now on.
            timeline.journal.tell(Record::RestoreEnd);
            Failed {
                why,
                taken_back: back.is_ok(),
            }
        })
    }
}

impl Three<'_> {
    fn times(&self) -> Times {
        self.asked.times.unwrap_or(Times::Now)
    }
}
