//! Merge: applies the changes that another tree made since the merge base to the live tree.
//!
//! `theirs` is a checkpoint: of a branch, created for the merge, or of another line of the history
//! of this tree. The three-way merge runs without locks ([`prepare`]), along the records of both
//! sides. The result is carried out like a restore: staged, in one freeze, behind a guard
//! checkpoint. The journal records a restore *of the guard* as in progress, so the next mount
//! reverts a merge that was interrupted; a merge that fails is reverted at once. The operation is
//! recorded at its end.

mod changes;
mod merge_base;
pub(super) mod planning;
mod prepare;
mod touched;
mod update;

use std::time::Instant;

pub(super) use self::merge_base::BranchPair;
use self::prepare::{MergeInput, PreparedMerge, StatCaches};
pub(super) use self::touched::{changed_by, clashes_of, unmerged, unmerged_of};
use super::Engine;
use super::branches::{Branch, BranchOps};
use super::hooks::around;
use super::requester::Requester;
use super::restore::Restorer;
use super::restore::prepare::PreparedOp;
use super::restore::stage::Stage;
use super::restore::stale::{RestoreRequest, StaleEntries};
use crate::engine::verb::Execute;
use crate::history::state::TreeState;
use ckptfs_api::{
    Actor, CheckpointId, CheckpointOptions, Merge, MergeBase, MergeVersion, MergeVersions, Merged,
    Reason, StateName, VerbError, VerbResult, microseconds,
};
use ckptfs_store::layout::merges::MergeInto;
use ckptfs_store::record::Record;
use ckptfs_sys::Errno;

/// Approximate size of one part of an answer with file versions, in bytes.
const VERSIONS_BYTES: usize = 16 << 20;

/// The kind of a merge.
enum MergeKind<'a> {
    /// Another line of the history of this tree, from one checkpoint to another.
    Line {
        base: CheckpointId,
        at: CheckpointId,
    },
    /// A branch into its parent, or the parent into the branch.
    Kin {
        kin: BranchPair<'a>,
        into: MergeInto,
        base: MergeBase,
        theirs: TreeState,
    },
}

/// A merge that failed.
struct MergeFailure {
    why: Errno,
    /// The tree was reverted.
    taken_back: bool,
}

/// Merges into the live tree of an engine.
struct Merger<'a> {
    engine: &'a Engine,
    requester: &'a Requester,
    asked: &'a Merge,
}

/// Returns the error message of a merge into a tree.
fn failure_message(into: MergeInto) -> &'static str {
    match into {
        MergeInto::Parent => "the merge failed",
        MergeInto::Branch => "the update failed",
    }
}

impl Execute for Merge {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Merged> {
        let merger = Merger {
            engine,
            requester,
            asked: &self,
        };
        merger.with_hooks(|| merger.on_course(|course| merger.merge(course)))
    }
}

impl Execute for MergeVersions {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Vec<MergeVersion>> {
        let asked = Merge {
            dry_run: true,
            ..self.merge
        };
        let merger = Merger {
            engine,
            requester,
            asked: &asked,
        };
        merger.on_course(|course| {
            engine.checkpoints.settle();
            let eyes = course.eyes(engine);
            let three = MergeInput::new(engine, &asked, course, &eyes)?;
            let merging = three.prepare(&|_| Ok(()))?;
            merging
                .versions(self.after.as_ref(), VERSIONS_BYTES)
                .map_err(|errno| engine.checkpoints.failed(course.failed(), errno))
        })
    }
}

impl<'a> Merger<'a> {
    fn with_hooks(&self, merge: impl FnOnce() -> VerbResult<Merged>) -> VerbResult<Merged> {
        if self.asked.dry_run {
            return merge();
        }
        let merged = |merged: &Merged| {
            let guard = merged
                .guard
                .map(|guard| ("CKPTFS_GUARD", guard.to_string()));
            guard.into_iter().collect()
        };
        around(
            self.engine.checkpoints.hooks.as_ref(),
            &self.engine.serving,
            self.requester.by(),
            ("merge", vec![("CKPTFS_MERGED", self.asked.what.clone())]),
            merge,
            merged,
        )
    }

    /// Calls `act` with the kind of the merge. The branch cannot be dropped until it returns.
    fn on_course<T>(&self, act: impl FnOnce(&MergeKind<'_>) -> VerbResult<T>) -> VerbResult<T> {
        if let Some(base) = &self.asked.base {
            return act(&self.line(base)?);
        }
        let _claim = self.engine.branches().claim(&self.asked.what)?;
        let branch = BranchOps::new(self.engine).mounted(&self.asked.what)?;
        act(&self.branch_into_parent(&branch)?)
    }

    fn merge(&self, course: &MergeKind<'_>) -> VerbResult<Merged> {
        let started = Instant::now();
        let eyes = course.eyes(self.engine);
        let three = MergeInput::new(self.engine, self.asked, course, &eyes)?;
        let (base, of_branch, theirs) = match course {
            MergeKind::Line { base, at } => (*base, false, TreeState::At(*at)),
            MergeKind::Kin { base, theirs, .. } => (base.checkpoint, base.of_branch, *theirs),
        };
        let answer = |merging: &PreparedMerge<'_>, guard| Merged {
            what: self.asked.what.clone(),
            base,
            base_of_branch: of_branch,
            merged: theirs.checkpoint(),
            guard,
            changes: merging.changes.clone(),
            conflicts: merging.conflicts(),
            merged_by: None,
            refused: merging.is_refused(),
            dry_run: self.asked.dry_run,
            duration_us: microseconds(started.elapsed()),
        };
        if self.asked.dry_run {
            self.engine.checkpoints.settle();
            let merging = three.prepare(&|_| Ok(()))?.refuse_protected()?;
            return course.told_earlier(answer(&merging, None));
        }
        let asked = RestoreRequest {
            requester: self.requester,
            undoes: None,
            started,
            unknown: Vec::new(),
            times: three.times(),
        };
        let restorer = Restorer::new(self.engine);
        let one_at_a_time = self.engine.checkpoints.wait_turn(self.requester)?;
        let prepare =
            |await_free: prepare::AwaitFree<'_>| three.prepare(await_free)?.refuse_protected();
        let covered = restorer.covered(course.failed())?;
        let failed = (course.failed(), &covered);
        let (merging, frozen) = restorer.frozen(&asked, failed, prepare, one_at_a_time)?;
        if merging.is_refused() {
            return Ok(answer(&merging, None));
        }
        if merging.changes.is_empty() {
            // Both sides have everything already: this state is their next merge base.
            course.note(self.asked, None, &merging)?;
            return course.told_earlier(answer(&merging, None));
        }
        let note = format!("before merging {}", self.asked.what);
        let (guard, applied, forgetting) =
            restorer.behind_guard(frozen, (course.failed(), &note), None, |stage, guard| {
                self.carry_out((&merging, course), stage, guard)
            })?;
        let (applied, taken_back) = match applied {
            Ok(stale) => (Ok(stale), false),
            Err(failed) => (Err(failed.why), failed.taken_back),
        };
        restorer
            .told_after(merging.plan(), applied, forgetting)
            .map_err(|why| self.failed(course, (why, taken_back), guard))?;
        if let MergeKind::Kin { kin, .. } = course {
            kin.settle();
        }
        Ok(answer(&merging, Some(guard)))
    }

    fn failed(
        &self,
        course: &MergeKind<'_>,
        (why, taken_back): (Errno, bool),
        guard: CheckpointId,
    ) -> VerbError {
        let hint = match taken_back {
            true => "nothing was changed".to_owned(),
            false => {
                format!("nothing is lost: `ckptfs restore {guard}` brings back what was there")
            }
        };
        VerbError {
            hint: Some(hint),
            ..self.engine.checkpoints.failed(course.failed(), why)
        }
    }

    /// Returns the merge of two checkpoints of this tree.
    fn line(&self, base: &StateName) -> VerbResult<MergeKind<'a>> {
        let states = &self.engine.states;
        let base = states.whole_id(base)?;
        let at = states.whole_id(&StateName(self.asked.what.clone()))?;
        Ok(MergeKind::Line { base, at })
    }

    /// Returns the merge of a branch, at a fixed checkpoint, into its parent.
    fn branch_into_parent(&self, branch: &'a Branch) -> VerbResult<MergeKind<'a>> {
        let kin = BranchPair {
            parent: self.engine,
            branch,
        };
        let note = "merged into the tree that it is a branch of";
        let theirs = self.checkpoint(&branch.engine, note)?;
        Ok(MergeKind::Kin {
            kin,
            into: MergeInto::Parent,
            base: kin.base(TreeState::Live, theirs)?,
            theirs,
        })
    }

    /// Creates a checkpoint of the merged side; a dry run uses the live state.
    fn checkpoint(&self, there: &Engine, note: &str) -> VerbResult<TreeState> {
        if self.asked.dry_run {
            there.checkpoints.settle();
            return Ok(TreeState::Live);
        }
        let options = CheckpointOptions {
            note: note.to_owned(),
            ..CheckpointOptions::default()
        };
        let by = self.requester.by();
        let made = there
            .checkpoints
            .make_checkpoint(by, &options, Reason::Asked)?;
        Ok(TreeState::At(made.id))
    }

    /// Carries out the plan between two records: one that the guard is to be restored, which is
    /// valid until the end, and that of the operation. The caller holds the freeze lock and the
    /// tree lock for writing.
    fn carry_out(
        &self,
        (merging, course): (&PreparedMerge<'_>, &MergeKind<'_>),
        stage: Stage<'_>,
        guard: CheckpointId,
    ) -> Result<StaleEntries, MergeFailure> {
        let by: &Actor = self.requester.by();
        let restorer = Restorer::new(self.engine);
        let timeline = restorer.timeline();
        let change = restorer.change_by(Some(by));
        let begun = timeline.operations.begin_merge(by, guard);
        begun.map_err(|why| MergeFailure {
            why,
            taken_back: true,
        })?;
        let end = |stale| {
            let merge = timeline.operations.merge(by, guard);
            course
                .note(self.asked, Some(&merge), merging)
                .map_err(|error| {
                    tracing::error!(error = error.message, "a merge cannot be noted");
                    error.code.errno()
                })?;
            timeline.operations.end_merge(merge).map(|()| stale)
        };
        let applied = restorer.apply(&change, merging, stage).and_then(end);
        applied.map_err(|why| {
            let back = restorer.take_back(&change, guard);
            if let Err(errno) = back {
                tracing::error!(%errno, %guard, "a merge that failed is not taken back");
            }
            // If the revert failed, its remains stay and may be changed from now on.
            timeline.journal.tell(Record::RestoreEnd);
            MergeFailure {
                why,
                taken_back: back.is_ok(),
            }
        })
    }
}

impl<'a> MergeKind<'a> {
    fn eyes(&self, engine: &'a Engine) -> StatCaches<'a> {
        match self {
            MergeKind::Line { .. } => StatCaches::new([engine]),
            MergeKind::Kin { kin, .. } => StatCaches::of(*kin),
        }
    }

    /// Returns the error message.
    fn failed(&self) -> &'static str {
        failure_message(match self {
            MergeKind::Line { .. } => MergeInto::Parent,
            MergeKind::Kin { into, .. } => *into,
        })
    }

    /// Adds the operation of the earlier merge, if no changes were left to merge.
    fn told_earlier(&self, mut merged: Merged) -> VerbResult<Merged> {
        if let MergeKind::Kin {
            kin, into, theirs, ..
        } = self
            && merged.changes.is_empty()
            && merged.conflicts.is_empty()
        {
            merged.merged_by = kin.merged_by(*into, *theirs)?;
        }
        Ok(merged)
    }

    /// Records the new merge base, if the whole side was merged.
    fn note(
        &self,
        asked: &Merge,
        merge: Option<&ckptfs_store::operation::Operation>,
        merging: &PreparedMerge<'_>,
    ) -> VerbResult<()> {
        let MergeKind::Kin {
            kin, into, theirs, ..
        } = self
        else {
            return Ok(());
        };
        let from = theirs.checkpoint().filter(|_| asked.paths.is_empty());
        let clean = merging.clashes().is_empty();
        kin.note((*into, from), merge, (&merging.pairs(), clean))
    }
}
