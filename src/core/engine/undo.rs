//! Undo and redo: the mutations of the history are a list of operations, each of which another
//! operation can undo.
//!
//! Concepts: [`crate::history::operations`]; rationale: docs/adr/0013-undo.md. Each step is atomic,
//! also across `kill -9`. Several steps run one after the other and stop at the first that cannot
//! be undone.

use std::time::Instant;

use super::Engine;
use super::bases::HeldBases;
use super::branches;
use super::error;
use super::requester::Requester;
use super::restore::Restorer;
use super::restore::stale::RestoreRequest;
use super::upkeep::rfc3339;
use crate::history::operations::{OperationStatus, Walk};
use ckptfs_api::{
    Actor, CheckpointId, OperationInfo, OperationKind, RestoreOptions, Restored, StateName,
    TagsChanged, Times, TreePath, UndoOptions, UndoWalk, Undone, UndoneStep, VerbError, VerbResult,
};
use ckptfs_store::journal::codec::TAGS_MAX;
use ckptfs_store::operation::{BY_RULE, Operation, OperationEffect, TagChange};
use ckptfs_store::record::CheckpointState;
use ckptfs_sys::lock::MutexGuard;
use ckptfs_sys::{Errno, SysResult};

/// Limit of operations in one answer.
const OPERATIONS_MAX: usize = 10_000;

fn info(told: &OperationStatus, obstacle: Option<String>) -> OperationInfo {
    let Operation {
        number,
        at_ns,
        by,
        undoes,
        deed,
    } = &told.operation;
    let (what, checkpoint) = match deed {
        OperationEffect::Made { id } => (OperationKind::Checkpoint, Some(*id)),
        OperationEffect::Restored { .. } if deed.is_merge() => (OperationKind::Merge, None),
        OperationEffect::Restored { target, .. } => (OperationKind::Restore, Some(*target)),
        OperationEffect::Deleted { id, .. } => (OperationKind::Delete, Some(*id)),
        OperationEffect::Revived { id } => (OperationKind::Revive, Some(*id)),
        OperationEffect::Tagged { changes } => (
            OperationKind::Tag,
            Some(changes)
                .filter(|all| all.len() == 1)
                .and_then(|all| all.first())
                .map(|one| one.id),
        ),
        OperationEffect::Pinned {
            id, after: None, ..
        } => (OperationKind::Unpin, Some(*id)),
        OperationEffect::Pinned { id, .. } => (OperationKind::Pin, Some(*id)),
        OperationEffect::Branch { base, dropped, .. } => {
            (OperationKind::of_branch(*dropped), Some(*base))
        }
    };
    let mut info = OperationInfo {
        number: *number,
        at: rfc3339(*at_ns),
        by: by.clone(),
        what,
        checkpoint,
        guard: None,
        paths: Vec::new(),
        freed: false,
        tags: Vec::new(),
        branch: None,
        reason: None,
        by_rule: *undoes == BY_RULE,
        undoes: undoes.filter(|_| *undoes != BY_RULE),
        undone_by: told.undone_by,
        in_effect: told.in_effect,
        obstacle,
    };
    match deed {
        OperationEffect::Restored { guard, paths, .. } => {
            info.guard = Some(*guard);
            info.paths = paths.iter().cloned().map(TreePath).collect();
        }
        OperationEffect::Deleted { freed, .. } => info.freed = *freed,
        OperationEffect::Tagged { changes } => {
            let one = |change: &TagChange| TagsChanged {
                checkpoint: change.id,
                lost: change.lost.clone(),
                got: change.got.clone(),
            };
            info.tags = changes.iter().map(one).collect();
        }
        OperationEffect::Pinned { after, .. } => info.reason = after.clone(),
        OperationEffect::Branch { name, .. } => info.branch = Some(name.clone()),
        OperationEffect::Made { .. } | OperationEffect::Revived { .. } => {}
    }
    info
}

/// Returns the tags of a checkpoint without a change.
fn tags_without(kept: &CheckpointState, change: &TagChange) -> Vec<String> {
    let mut tags: Vec<String> = kept
        .tags
        .iter()
        .filter(|tag| !change.got.contains(tag))
        .chain(&change.lost)
        .cloned()
        .collect();
    tags.sort();
    tags.dedup();
    tags
}

/// Undoes operations of the history of an engine.
#[derive(Clone, Copy)]
pub(super) struct Undoer<'a> {
    pub(super) engine: &'a Engine,
}

impl<'a> Undoer<'a> {
    pub(super) fn new(engine: &'a Engine) -> Undoer<'a> {
        Undoer { engine }
    }

    pub(super) fn operation_infos(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> VerbResult<Vec<OperationInfo>> {
        let told = self
            .timeline()
            .operations
            .operations(before, limit.min(OPERATIONS_MAX));
        let told = told.map_err(error::journal_unread)?;
        let one = |told: &OperationStatus| {
            info(
                told,
                self.obstacle(&told.operation)
                    .filter(|_| told.in_effect)
                    .map(|why| why.message),
            )
        };
        Ok(told.iter().map(one).collect())
    }

    pub(super) fn undo_operations(
        &self,
        requester: &Requester,
        options: &UndoOptions,
    ) -> VerbResult<Undone> {
        if let (UndoWalk::Undo(_), false) = (options.walk, options.force)
            && let Some(mark) = self.mark_since()?
        {
            return Err(error::burst_since(mark));
        }
        let (numbers, wanted) = self.walked(options)?;
        let mut undone = Undone {
            dry_run: options.dry_run,
            ..Undone::default()
        };
        let mut done = 0;
        for number in numbers {
            if done == wanted {
                break;
            }
            match self.undo_one(requester, number, options) {
                Ok(step) => {
                    done += usize::from(step.skipped.is_none());
                    undone.steps.push(step);
                }
                Err(why) if undone.steps.is_empty() => return Err(why),
                Err(why) => {
                    undone.stopped = Some(why);
                    break;
                }
            }
        }
        if let (UndoWalk::To(number), None) = (options.walk, &undone.stopped) {
            undone.tree = self.tree_of(requester, number, options.dry_run)?;
        }
        self.engine.snapdir.snapdir_changed();
        Ok(undone)
    }

    /// Restores the tree to the state right after an operation, if that state is known, as after a
    /// checkpoint or a restore of the whole tree.
    fn tree_of(
        &self,
        requester: &Requester,
        number: u64,
        dry_run: bool,
    ) -> VerbResult<Option<Restored>> {
        let told = if number > 0 {
            self.one_operation(number)?
        } else {
            None
        };
        let id = match told.map(|told| told.operation.deed) {
            Some(OperationEffect::Made { id }) => id,
            Some(OperationEffect::Restored {
                target,
                guard,
                paths,
                ..
            }) if paths.is_empty() && target != guard => target,
            _ => return Ok(None),
        };
        if !self.timeline().catalogue.has_checkpoint(id) {
            return Ok(None);
        }
        let options = RestoreOptions {
            to: StateName(id.to_string()),
            paths: Vec::new(),
            dry_run,
            times: None,
        };
        Restorer::new(self.engine)
            .restore_to(requester, &options)
            .map(|restored| Some(restored).filter(|restored| !restored.changes.is_empty()))
    }

    /// Returns the newest confirmed mark of the tripwire, if it is younger than the last operation:
    /// the caller probably wants back the files that the burst removed.
    fn mark_since(&self) -> VerbResult<Option<CheckpointId>> {
        let is_mark = |kept: &CheckpointState| kept.reason.is_mark();
        let Some(mark) = self.timeline().catalogue.newest(1, is_mark).pop() else {
            return Ok(None);
        };
        let newest = |walk| self.timeline().operations.walk(walk).pop();
        let last = match newest(Walk::Undo(1)).max(newest(Walk::Redo(1))) {
            Some(number) => self.one_operation(number)?,
            None => None,
        };
        Ok(last
            .is_none_or(|last| last.operation.at_ns < mark.created_ns)
            .then_some(mark.id))
    }

    /// Returns the operations to look at, in this order, and how many of them are to be undone.
    fn walked(&self, options: &UndoOptions) -> VerbResult<(Vec<u64>, usize)> {
        let timeline = self.timeline();
        let all = match options.walk {
            UndoWalk::Undo(_) => timeline.operations.walk(Walk::Undo(usize::MAX)),
            UndoWalk::Redo(_) => timeline.operations.walk(Walk::Redo(usize::MAX)),
            UndoWalk::To(number) if number > 0 && !timeline.operations.has_operation(number) => {
                return Err(error::no_operation(number));
            }
            UndoWalk::Only(number) => vec![self.alone(number)?],
            UndoWalk::To(number) => timeline.operations.walk(Walk::To(number)),
        };
        let (wanted, verb) = match options.walk {
            UndoWalk::Undo(steps) => (steps, "undone"),
            UndoWalk::Redo(steps) => (steps, "redone"),
            UndoWalk::To(_) | UndoWalk::Only(_) => (all.len(), "undone"),
        };
        if all.len() < wanted {
            Err(error::too_far(verb, all.len()))
        } else {
            Ok((all, wanted))
        }
    }

    /// Checks that an operation can be undone without those after it, and returns its number. A
    /// restore or merge cannot: its undo would revert every later change of the tree.
    fn alone(&self, number: u64) -> VerbResult<u64> {
        let told = self.one_operation(number)?;
        let told = told.ok_or_else(|| error::no_operation(number))?;
        match told.operation.deed {
            OperationEffect::Restored { .. } => Err(error::not_alone(number)),
            _ if !told.in_effect => Err(error::undone_already(number)),
            _ => Ok(number),
        }
    }

    /// Undoes an operation; a dry run only reports the effect.
    fn undo_one(
        &self,
        requester: &Requester,
        number: u64,
        options: &UndoOptions,
    ) -> VerbResult<UndoneStep> {
        let one_at_a_time = self.engine.checkpoints.wait_turn(requester)?;
        let told = self
            .one_operation(number)?
            .ok_or_else(|| error::no_operation(number))?;
        let obstacle = self.obstacle(&told.operation);
        let original = self
            .one_operation(self.timeline().operations.original(number))?
            .filter(|original| original.operation.number != number);
        let original = original.map(|original| info(&original, None));
        let operation = info(&told, None);
        let mut step = UndoneStep {
            operation,
            original,
            by_operation: None,
            guard: None,
            changes: None,
            unknown: Vec::new(),
            skipped: None,
        };
        if !told.in_effect {
            return Err(error::undone_meanwhile(number));
        }
        // A user who walks back wants the tree back; checkpoints are hidden only by number.
        if let (
            UndoWalk::Undo(_) | UndoWalk::Only(_),
            false,
            None,
            OperationEffect::Made { id } | OperationEffect::Revived { id },
        ) = (options.walk, options.force, &obstacle, &told.operation.deed)
        {
            let why = error::was_asked_for(number, *id);
            if !options.skip {
                return Err(why);
            }
            step.skipped = Some(why.message);
            return Ok(step);
        }
        if let Some(why) = obstacle {
            if !options.skip {
                return Err(error::cannot_undo(number, why));
            }
            step.skipped = Some(why.message);
            return Ok(step);
        }
        if options.dry_run {
            return Ok(step);
        }
        self.invert(requester, &told.operation, &mut step, one_at_a_time)?;
        step.by_operation = self.timeline().operations.undone_by(number);
        Ok(step)
    }

    /// Returns one operation.
    fn one_operation(&self, number: u64) -> VerbResult<Option<OperationStatus>> {
        let told = self
            .timeline()
            .operations
            .operations(Some(number.saturating_add(1)), 1);
        let told = told.map_err(error::journal_unread)?;
        Ok(told
            .into_iter()
            .find(|told| told.operation.number == number))
    }

    /// Performs the inverse of an operation without obstacles.
    fn invert(
        &self,
        requester: &Requester,
        operation: &Operation,
        step: &mut UndoneStep,
        one_at_a_time: MutexGuard<'_, ()>,
    ) -> VerbResult<()> {
        let (by, undoes) = (requester.by(), Some(operation.number));
        let what = format!("operation {} was not undone", operation.number);
        let failed = error::failed(&what);
        let kept = |id| {
            let kept = self.timeline().catalogue.checkpoint(id);
            kept.ok_or(Errno::ENOENT).map_err(failed)
        };
        match &operation.deed {
            OperationEffect::Made { id } | OperationEffect::Revived { id } => self
                .engine
                .checkpoints
                .hide_checkpoint(by, undoes, *id)
                .map(drop),
            OperationEffect::Deleted { id, .. } => self.revive(by, undoes, *id).map_err(failed),
            OperationEffect::Restored {
                guard, paths, only, ..
            } => {
                let restorer = Restorer::new(self.engine);
                let asked = RestoreRequest {
                    requester,
                    undoes,
                    started: Instant::now(),
                    unknown: restorer.unknown_in(*guard).map_err(failed)?,
                    times: Times::or_default(None, !paths.is_empty() || *only),
                };
                let restored = match only {
                    true => restorer.restore_names(asked, *guard, paths, one_at_a_time)?,
                    false => restorer.restore_now(asked, *guard, paths, one_at_a_time)?,
                };
                step.guard = restored.guard;
                step.changes = Some(restored.changes.len() as u64);
                step.unknown = restored.unknown;
                Ok(())
            }
            OperationEffect::Tagged { changes } => {
                let mut given = Vec::new();
                for change in changes {
                    given.push((change.id, tags_without(&kept(change.id)?, change)));
                }
                self.engine
                    .checkpoints
                    .set_tags(by, undoes, given)
                    .map_err(failed)
            }
            OperationEffect::Branch { store, dropped, .. } => {
                // The inverse takes this lock to record its operation.
                drop(one_at_a_time);
                branches::invert(self.engine, by, undoes, (store, *dropped))
            }
            OperationEffect::Pinned { id, before, .. } => self
                .engine
                .checkpoints
                .set_pin(by, undoes, &kept(*id)?, before.clone())
                .map_err(failed),
        }
    }

    /// Restores a deleted checkpoint.
    fn revive(&self, by: &Actor, undoes: Option<u64>, id: CheckpointId) -> SysResult<()> {
        let timeline = self.timeline();
        let hidden = timeline.catalogue.hidden_checkpoint(id);
        let records = timeline.operations.reviving(&hidden.ok_or(Errno::ENOENT)?);
        timeline
            .operations
            .operate(by, undoes, OperationEffect::Revived { id }, records)
    }

    /// Returns the reason why an operation cannot be undone now, if any.
    fn obstacle(&self, operation: &Operation) -> Option<VerbError> {
        match &operation.deed {
            OperationEffect::Made { id } | OperationEffect::Revived { id } => {
                match self.timeline().catalogue.checkpoint(*id) {
                    Some(CheckpointState {
                        pinned: Some(reason),
                        ..
                    }) => Some(error::pinned(*id, &reason)),
                    Some(_) => HeldBases::of(&self.engine.live)
                        .and_then(|bases| bases.check(*id))
                        .err(),
                    None => self.missing(*id),
                }
            }
            OperationEffect::Deleted { id, freed: true } => Some(error::freed(*id)),
            OperationEffect::Deleted { id, freed: false } => self
                .timeline()
                .catalogue
                .hidden_checkpoint(*id)
                .is_none()
                .then(|| error::freed(*id)),
            OperationEffect::Restored {
                guard, paths, only, ..
            } => self
                .missing(*guard)
                .or_else(|| (*only && paths.is_empty()).then(error::too_many_names)),
            OperationEffect::Pinned { id, .. } => self.missing(*id),
            OperationEffect::Branch { store, dropped, .. } => {
                branches::obstacle(self.engine, (store, *dropped))
            }
            OperationEffect::Tagged { changes } => changes
                .iter()
                .find_map(|change| self.missing(change.id))
                .or_else(|| self.untaggable(changes)),
        }
    }

    /// Returns the error for a checkpoint that is hidden or freed.
    fn missing(&self, id: CheckpointId) -> Option<VerbError> {
        if self.timeline().catalogue.has_checkpoint(id) {
            return None;
        }
        Some(
            if self.timeline().catalogue.hidden_checkpoint(id).is_some() {
                error::hidden(id)
            } else {
                error::freed(id)
            },
        )
    }

    /// Returns the reason why the former tags cannot be restored.
    fn untaggable(&self, changes: &[TagChange]) -> Option<VerbError> {
        for change in changes {
            let gives_back = |tag: &String, id: CheckpointId| {
                changes
                    .iter()
                    .any(|other| other.id == id && other.got.contains(tag))
            };
            let taken = |tag: &String| {
                self.timeline()
                    .catalogue
                    .tagged(tag)
                    .filter(|id| *id != change.id && !gives_back(tag, *id))
            };
            if let Some((tag, id)) = change.lost.iter().find_map(|tag| Some((tag, taken(tag)?))) {
                return Some(error::tag_taken(tag, id));
            }
            let count = self
                .timeline()
                .catalogue
                .checkpoint(change.id)
                .map_or(0, |kept| tags_without(&kept, change).len());
            if count > TAGS_MAX {
                return Some(error::too_many_tags(count));
            }
        }
        None
    }

    /// Resolves the number of a checkpoint, including hidden ones.
    pub(super) fn stored_id(&self, state: &StateName) -> VerbResult<CheckpointId> {
        let hidden = state
            .0
            .parse()
            .ok()
            .map(CheckpointId)
            .filter(|id| self.timeline().catalogue.hidden_checkpoint(*id).is_some());
        hidden.map_or_else(|| self.engine.states.whole_id(state), Ok)
    }
}
