//! What a branch and its parent have in common: the newest state that both come from.
//!
//! A merge of all of one side into the other is noted in the parent's store
//! (`store::layout::merges`). From then on both come from what was merged, as it was, for as long as
//! neither is made what it was before by an undo or a restore; done again, it counts again. Without
//! such a merge both come from the checkpoint that the branch began as. So whatever one side brought
//! is no change of the other, and is not brought twice.

use super::Engine;
use super::answers::MergeBase;
use crate::engine::api::VerbResult;
use crate::engine::bases::registry_failed;
use crate::engine::branches::Branch;
use crate::engine::error;
use crate::history::state::State;
use crate::store::Store;
use crate::store::ids::CheckpointId;
use crate::store::layout::merges::{Birth, MERGES_MAX, MergeEntry, MergeInto, Merges};
use crate::store::operation::Operation;
use crate::sys::SysResult;
use crate::tree::merge::same::Same;

/// A branch and the tree that it is a branch of.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Kin<'a> {
    pub(in crate::engine) parent: &'a Engine,
    pub(in crate::engine) branch: &'a Branch,
}

/// The number of the checkpoint that is, or will be made of, a state.
fn number(engine: &Engine, state: State) -> CheckpointId {
    match state {
        State::At(id) => id,
        State::Live => engine.timeline().epochs.epoch().checkpoint(),
    }
}

impl<'a> Kin<'a> {
    fn merges(self) -> Merges<'a> {
        let id = self.branch.engine.timeline().store().layout.id();
        self.parent.timeline().store().layout.branches().merges(id)
    }

    /// The engine of the side that a merge changed.
    pub(super) fn changed(self, into: MergeInto) -> &'a Engine {
        match into {
            MergeInto::Parent => self.parent,
            MergeInto::Branch => &self.branch.engine,
        }
    }

    /// The engine of the side that was merged.
    fn merged(self, into: MergeInto) -> &'a Engine {
        match into {
            MergeInto::Parent => &self.branch.engine,
            MergeInto::Branch => self.parent,
        }
    }

    /// The merges that were done, the oldest first: not what a kill or a power cut left begun.
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

    /// The numbers of a state of the parent and one of the branch.
    fn numbers(self, parent: State, branch: State) -> [CheckpointId; 2] {
        let branch = number(&self.branch.engine, branch);
        [number(self.parent, parent), branch]
    }

    /// A merge that states of the parent and of the branch both come from.
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

    /// After which checkpoints of the parent, and of the branch, they have recorded all at which
    /// these states may differ from a base.
    ///
    /// Where the base is a checkpoint Y of the side that was merged last, these are Y, and of the
    /// other side, X, its checkpoint C that was merged into the first before Y; or, if there is none,
    /// what the branch began as. For what X has not recorded since C is as it was in C, and so as it
    /// was in the base when Y was merged into X: whatever Y had otherwise came then, and was recorded.
    /// So X is as Y there, and the first side as well, if it has recorded nothing since Y. That holds
    /// only if nothing clashed in the merges into X since C: what is settled for X stays as X has it,
    /// without a record. Else both have it since what the branch began as.
    ///
    /// # Errors
    /// As [`Kin::base`].
    pub(super) fn recorded_since(
        self,
        base: MergeBase,
        (parent, branch): (State, State),
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
        // Of so many merges the first are not known any more.
        if other.is_none() && done.len() >= MERGES_MAX {
            return Ok(origin);
        }
        Ok(match into {
            MergeInto::Parent => [other.unwrap_or(origin[0]), own],
            MergeInto::Branch => [own, other.unwrap_or(origin[1])],
        })
    }

    /// The newest state that a state of the parent and one of the branch both come from.
    ///
    /// # Errors
    /// What was noted of merges cannot be read.
    pub(in crate::engine) fn base(self, parent: State, branch: State) -> VerbResult<MergeBase> {
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

    /// Both have nothing in common but what the branch began as.
    pub(in crate::engine) fn is_first(self, base: MergeBase) -> bool {
        !base.of_branch && base.checkpoint == self.branch.base
    }

    /// Which inodes are one.
    ///
    /// # Errors
    /// What was noted cannot be read.
    pub(super) fn same(self) -> VerbResult<Same> {
        let pairs = self.merges().pairs().map_err(registry_failed)?;
        Ok(Same::new(pairs))
    }

    /// Notes that a merge ends now, with this operation, or changed nothing: it is whole with that,
    /// and not without. The other side was merged as it was at checkpoint `from`; without it, not
    /// all of it was. `clean`: nothing clashed.
    ///
    /// # Errors
    /// Those of writing it; then it is not noted.
    pub(super) fn note(
        self,
        (into, from): (MergeInto, Option<CheckpointId>),
        operation: Option<&Operation>,
        (pairs, clean): (&[[Birth; 2]], bool),
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
            epoch: number(self.changed(into), State::Live),
            operation: operation.map_or_else(earlier, |done| (done.number, done.at_ns)),
            from: (from, made_ns),
            clean,
            done: operation.is_none(),
        });
        self.write(&self.needed(&merges), operation.is_none())
    }

    /// The operation of the newest common merge that changed something, with the other side at
    /// checkpoint `from`.
    fn changing(
        self,
        merges: &[MergeEntry],
        into: MergeInto,
        from: CheckpointId,
    ) -> Option<(u64, i64)> {
        let numbers = match into {
            MergeInto::Parent => self.numbers(State::Live, State::At(from)),
            MergeInto::Branch => self.numbers(State::At(from), State::Live),
        };
        let changed = |merge: &&MergeEntry| {
            merge.into == into && merge.operation.0 != 0 && self.is_common(merge, numbers)
        };
        let newest = merges.iter().rev().find(changed)?;
        Some(newest.operation)
    }

    /// The operation that merged a state of the other side into this one, if that is in effect.
    ///
    /// # Errors
    /// As [`Kin::base`].
    pub(super) fn merged_by(self, into: MergeInto, theirs: State) -> VerbResult<Option<u64>> {
        let from = number(self.merged(into), theirs);
        let operation = self.changing(&self.done()?, into, from);
        Ok(operation.map(|(number, _)| number))
    }

    /// Writes them. One that is `done` from now on is not on the disk before its operation.
    fn write(self, merges: &[MergeEntry], is_done: bool) -> VerbResult<()> {
        let before = || match is_done {
            true => Ok(self.sync()?),
            false => Ok(()),
        };
        self.merges()
            .write(merges, &before)
            .map_err(registry_failed)
    }

    /// Those without which some state that is kept would have another base: of two into one side
    /// with no checkpoint in between only the later counts.
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
        // Of those that are left out something may have clashed: the next one stands for them.
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

    /// What was done is known to be so from now on, whatever becomes of the journal. If that fails
    /// it is done all the same, as long as the journal tells of it.
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
