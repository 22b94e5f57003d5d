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
use crate::store::layout::merges::{Birth, MergeEntry, MergeInto, Merges};
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

    /// The newest state that a state of the parent and one of the branch both come from.
    ///
    /// # Errors
    /// What was noted of merges cannot be read.
    pub(in crate::engine) fn base(self, parent: State, branch: State) -> VerbResult<MergeBase> {
        let numbers = (
            number(self.parent, parent),
            number(&self.branch.engine, branch),
        );
        let newest = self.done()?.into_iter().rev().find(|merge| {
            let (changed, merged) = match merge.into {
                MergeInto::Parent => numbers,
                MergeInto::Branch => (numbers.1, numbers.0),
            };
            let (from, made_ns) = merge.from;
            let catalogue = &self.merged(merge.into).timeline().catalogue;
            catalogue.stored_ns(from) == Some(made_ns)
                && catalogue.comes_by(merged, from)
                && self
                    .changed(merge.into)
                    .timeline()
                    .catalogue
                    .comes_by(changed, merge.epoch)
        });
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
    /// all of it was.
    ///
    /// # Errors
    /// Those of writing it; then it is not noted.
    pub(super) fn note(
        self,
        (into, from): (MergeInto, Option<CheckpointId>),
        operation: Option<&Operation>,
        pairs: &[[Birth; 2]],
    ) -> VerbResult<()> {
        self.merges().add_pairs(pairs).map_err(registry_failed)?;
        let catalogue = &self.merged(into).timeline().catalogue;
        let Some((from, made_ns)) = from.and_then(|from| Some((from, catalogue.stored_ns(from)?)))
        else {
            return Ok(());
        };
        let mut merges = self.done()?;
        merges.push(MergeEntry {
            into,
            epoch: number(self.changed(into), State::Live),
            operation: operation.map_or((0, 0), |done| (done.number, done.at_ns)),
            from: (from, made_ns),
            done: operation.is_none(),
        });
        self.write(&self.needed(&merges), operation.is_none())
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
        let is_needed = |(at, merge): &(usize, &MergeEntry)| {
            let mut later = merges.iter().skip(at + 1);
            let Some(next) = later.find(|later| later.into == merge.into) else {
                return true;
            };
            let stored = self.changed(merge.into).timeline().catalogue.stored_ids();
            let first = stored.partition_point(|id| *id < merge.epoch);
            stored.get(first).is_some_and(|id| *id < next.epoch)
        };
        let needed = merges.iter().enumerate().filter(is_needed);
        needed.map(|(_, merge)| *merge).collect()
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
