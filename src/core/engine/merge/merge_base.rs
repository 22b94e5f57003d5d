//! The merge base of a branch and its parent: their newest common state.
//!
//! A complete merge of one side into the other is recorded in the parent's store
//! (`store::layout::merges`). The merged state is then the merge base until an undo or a restore
//! reverts either side beyond it; a redo makes it valid again. Without such a merge, the base is
//! the checkpoint that the branch began as. Changes that were merged from one side are therefore
//! not changes of the other, and are not merged twice.

use super::Engine;
use crate::engine::bases::registry_failed;
use crate::engine::branches::Branch;
use crate::engine::error;
use crate::history::state::TreeState;
use crate::tree::merge::inode_classes::InodeClasses;
use ckptfs_api::{CheckpointId, MergeBase, VerbResult};
use ckptfs_store::Store;
use ckptfs_store::layout::merges::{InodeBirth, MERGES_MAX, MergeEntry, MergeInto, Merges};
use ckptfs_store::operation::Operation;
use ckptfs_sys::SysResult;

/// A branch and its parent.
#[derive(Clone, Copy)]
pub(in crate::engine) struct BranchPair<'a> {
    pub(in crate::engine) parent: &'a Engine,
    pub(in crate::engine) branch: &'a Branch,
}

/// Returns the number of a checkpoint, or for the live state that of the next one.
fn number(engine: &Engine, state: TreeState) -> CheckpointId {
    match state {
        TreeState::At(id) => id,
        TreeState::Live => engine.timeline().epochs.epoch().checkpoint(),
    }
}

impl<'a> BranchPair<'a> {
    fn merges(self) -> Merges<'a> {
        let id = self.branch.engine.timeline().store().layout.id();
        self.parent.timeline().store().layout.branches().merges(id)
    }

    /// Returns the engine of the side that a merge changed.
    pub(super) fn changed(self, into: MergeInto) -> &'a Engine {
        match into {
            MergeInto::Parent => self.parent,
            MergeInto::Branch => &self.branch.engine,
        }
    }

    /// Returns the engine of the side that was merged.
    fn merged(self, into: MergeInto) -> &'a Engine {
        match into {
            MergeInto::Parent => &self.branch.engine,
            MergeInto::Branch => self.parent,
        }
    }

    /// Returns the completed merges, oldest first, without those that a kill or a power cut
    /// interrupted.
    fn done(self) -> VerbResult<Vec<MergeEntry>> {
        let mut done = Vec::new();
        for entry in self.merges().all().map_err(registry_failed)? {
            let operations = &self.changed(entry.into).timeline().operations;
            if entry.done
                || operations
                    .was_done(entry.operation)
                    .map_err(error::journal_unread)?
            {
                done.push(entry);
            }
        }
        Ok(done)
    }

    /// Returns the numbers of a state of the parent and one of the branch.
    fn numbers(self, parent: TreeState, branch: TreeState) -> [CheckpointId; 2] {
        let branch = number(&self.branch.engine, branch);
        [number(self.parent, parent), branch]
    }

    /// Returns whether two states of the parent and the branch both descend from a merge.
    fn is_common(self, merge: &MergeEntry, [parent, branch]: [CheckpointId; 2]) -> bool {
        let (changed, merged) = match merge.into {
            MergeInto::Parent => (parent, branch),
            MergeInto::Branch => (branch, parent),
        };
        let (from, made_ns) = merge.from;
        let catalogue = |engine: &'a Engine| &engine.timeline().catalogue;
        let (into, of) = (self.changed(merge.into), self.merged(merge.into));
        catalogue(of).stored_ns(from) == Some(made_ns)
            && catalogue(of).comes_by(merged, from)
            && catalogue(into).comes_by(changed, merge.epoch)
    }

    /// Returns, for the parent and the branch, the checkpoint after which each has recorded every
    /// difference of these states from the base.
    ///
    /// Let the base be checkpoint Y of side M, last merged into the other side X. For M the result
    /// is Y. For X it is C, the checkpoint of X that was merged into M before Y; without one, the
    /// checkpoint that the branch began as. Reason: a key without a record in X since C is as in C,
    /// and so as in the base of the merge of Y into X. That merge brought all other differences of
    /// Y, and recorded them. At such a key X therefore equals Y, and so does M if it has no record
    /// since Y. This holds only if the merges into X since C had no conflicts: a conflict resolved
    /// for X leaves no record. Otherwise the result is the beginning of the branch on both sides.
    ///
    /// # Errors
    /// As [`BranchPair::base`].
    pub(super) fn recorded_since(
        self,
        base: MergeBase,
        (parent, branch): (TreeState, TreeState),
    ) -> VerbResult<[CheckpointId; 2]> {
        let (done, numbers) = (self.done()?, self.numbers(parent, branch));
        let origin = [self.branch.base, self.branch.since];
        let (into, own) = match base.of_branch {
            true => (MergeInto::Parent, base.checkpoint),
            false => (MergeInto::Branch, base.checkpoint),
        };
        let is_base = |merge: &MergeEntry| {
            (merge.into, merge.from.0) == (into, own) && self.is_common(merge, numbers)
        };
        let Some(last) = done.iter().rposition(is_base) else {
            return Ok(origin);
        };
        let then = match into {
            MergeInto::Parent => [numbers[0], own],
            MergeInto::Branch => [own, numbers[1]],
        };
        let mut other = None;
        for merge in done.iter().take(last + 1).rev() {
            if merge.into != into && self.is_common(merge, then) {
                other = Some(merge.from.0);
                break;
            }
            if merge.into == into && !merge.clean {
                return Ok(origin);
            }
        }
        // The list is full: the oldest merges have been discarded.
        if other.is_none() && done.len() >= MERGES_MAX {
            return Ok(origin);
        }
        Ok(match into {
            MergeInto::Parent => [other.unwrap_or(origin[0]), own],
            MergeInto::Branch => [own, other.unwrap_or(origin[1])],
        })
    }

    /// Returns the newest common state of a state of the parent and one of the branch.
    ///
    /// # Errors
    /// The record of merges cannot be read.
    pub(in crate::engine) fn base(
        self,
        parent: TreeState,
        branch: TreeState,
    ) -> VerbResult<MergeBase> {
        let numbers = self.numbers(parent, branch);
        let done = self.done()?;
        let newest = done
            .iter()
            .rev()
            .find(|merge| self.is_common(merge, numbers));
        Ok(match newest {
            Some(merge) => MergeBase {
                checkpoint: merge.from.0,
                of_branch: merge.into == MergeInto::Parent,
            },
            None => MergeBase {
                checkpoint: self.branch.base,
                of_branch: false,
            },
        })
    }

    /// Returns whether the base is the checkpoint that the branch began as.
    pub(in crate::engine) fn is_first(self, base: MergeBase) -> bool {
        !base.of_branch && base.checkpoint == self.branch.base
    }

    /// Returns the pairs of corresponding inodes.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(super) fn same(self) -> VerbResult<InodeClasses> {
        let pairs = self.merges().pairs().map_err(registry_failed)?;
        Ok(InodeClasses::new(pairs))
    }

    /// Records the end of a merge that has this operation, or that changed nothing. The entry
    /// counts only if the journal has the operation. `from`: the checkpoint of the other side that
    /// was merged; `None` for a partial merge. `clean`: no conflicts.
    ///
    /// # Errors
    /// Errors of writing; the merge is not recorded then.
    pub(super) fn note(
        self,
        (into, from): (MergeInto, Option<CheckpointId>),
        operation: Option<&Operation>,
        (pairs, clean): (&[[InodeBirth; 2]], bool),
    ) -> VerbResult<()> {
        self.merges().add_pairs(pairs).map_err(registry_failed)?;
        let catalogue = &self.merged(into).timeline().catalogue;
        let Some((from, made_ns)) = from.and_then(|from| Some((from, catalogue.stored_ns(from)?)))
        else {
            return Ok(());
        };
        let mut merges = self.done()?;
        let earlier = || self.changing(&merges, into, from).unwrap_or_default();
        merges.push(MergeEntry {
            into,
            epoch: number(self.changed(into), TreeState::Live),
            operation: operation.map_or_else(earlier, |done| (done.number, done.at_ns)),
            from: (from, made_ns),
            clean,
            done: operation.is_none(),
        });
        self.write(&self.needed(&merges), operation.is_none())
    }

    /// Returns the operation of the newest common merge that changed something, with the other side
    /// at checkpoint `from`.
    fn changing(
        self,
        merges: &[MergeEntry],
        into: MergeInto,
        from: CheckpointId,
    ) -> Option<(u64, i64)> {
        let numbers = match into {
            MergeInto::Parent => self.numbers(TreeState::Live, TreeState::At(from)),
            MergeInto::Branch => self.numbers(TreeState::At(from), TreeState::Live),
        };
        let changed = |merge: &&MergeEntry| {
            merge.into == into && merge.operation.0 != 0 && self.is_common(merge, numbers)
        };
        let newest = merges.iter().rev().find(changed)?;
        Some(newest.operation)
    }

    /// Returns the operation that merged a state of the other side into this one, if it is in
    /// effect.
    ///
    /// # Errors
    /// As [`BranchPair::base`].
    pub(super) fn merged_by(self, into: MergeInto, theirs: TreeState) -> VerbResult<Option<u64>> {
        let from = number(self.merged(into), theirs);
        let operation = self.changing(&self.done()?, into, from);
        Ok(operation.map(|(number, _)| number))
    }

    /// Writes the entries. An entry that becomes `done` must not reach the disk before its
    /// operation.
    fn write(self, merges: &[MergeEntry], is_done: bool) -> VerbResult<()> {
        let before = || match is_done {
            true => Ok(self.sync()?),
            false => Ok(()),
        };
        self.merges()
            .write(merges, &before)
            .map_err(registry_failed)
    }

    /// Returns the entries that determine the base of a stored state. Of two merges into one side
    /// without a checkpoint between them only the later counts.
    fn needed(self, merges: &[MergeEntry]) -> Vec<MergeEntry> {
        let is_needed = |at: usize, merge: &MergeEntry| {
            let mut later = merges.iter().skip(at + 1);
            let Some(next) = later.find(|later| later.into == merge.into) else {
                return true;
            };
            let stored = self.changed(merge.into).timeline().catalogue.stored_ids();
            let first = stored.partition_point(|id| *id < merge.epoch);
            stored.get(first).is_some_and(|id| *id < next.epoch)
        };
        let mut needed: Vec<MergeEntry> = Vec::new();
        // A discarded merge may have had conflicts: its successor is marked instead.
        let mut clashed: Vec<MergeInto> = Vec::new();
        for (at, merge) in merges.iter().enumerate() {
            let clean = merge.clean && !clashed.contains(&merge.into);
            clashed.retain(|into| *into != merge.into);
            if is_needed(at, merge) {
                needed.push(MergeEntry { clean, ..*merge });
            } else if !clean {
                clashed.push(merge.into);
            }
        }
        needed
    }

    /// Both are on one filesystem.
    fn sync(self) -> SysResult<()> {
        self.parent.live.durability.order_tree()?;
        let sync = |store: &Store| store.journal.sync().map_err(|error| error.errno());
        sync(self.parent.timeline().store())?;
        sync(self.branch.engine.timeline().store())
    }

    /// Marks completed merges as done, so that they no longer depend on the journal. On failure
    /// they count as long as the journal has their operation.
    pub(in crate::engine) fn settle(self) {
        let settle = || -> VerbResult<()> {
            let known = self.merges().all().map_err(registry_failed)?;
            if known.iter().any(|merge| !merge.done) {
                let mut merges = self.done()?;
                merges.iter_mut().for_each(|merge| merge.done = true);
                self.write(&merges, true)?;
            }
            self.merges().fold_pairs().map_err(registry_failed)
        };
        if let Err(error) = settle() {
            tracing::warn!(error = error.message, "a merge is noted as begun");
        }
    }
}
