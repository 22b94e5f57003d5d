//! Update: merges the changes of the parent into a branch. Afterwards the parent's checkpoint is
//! the merge base (`common`).

use super::prepare::PARENT;
use super::{BranchPair, MergeKind, Merger};
use crate::engine::Engine;
use crate::engine::branches::{Branch, BranchOps};
use crate::engine::error::{Code, hinted};
use crate::engine::requester::Requester;
use crate::engine::verb::Execute;
use crate::history::state::TreeState;
use ckptfs_api::{CheckpointId, Merge, Merged, StateName, UpdateBranch, VerbError, VerbResult};
use ckptfs_store::layout::merges::MergeInto;

impl Execute for UpdateBranch {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Merged> {
        let _claim = engine.branches().claim(&self.name)?;
        let branch = BranchOps::new(engine).mounted(&self.name)?;
        let asked = Merge {
            what: PARENT.to_owned(),
            policy: self.policy,
            times: self.times,
            dry_run: self.dry_run,
            ..Merge::default()
        };
        let merger = Merger {
            engine: &branch.engine,
            requester,
            asked: &asked,
        };
        merger.with_hooks(|| {
            let course = merger.parent_into_branch(engine, &branch, self.at.as_ref())?;
            merger.merge(&course)
        })
    }
}

impl<'a> Merger<'a> {
    /// Returns the merge of the parent, at a fixed checkpoint, into the branch.
    fn parent_into_branch(
        &self,
        parent: &'a Engine,
        branch: &'a Branch,
        at: Option<&StateName>,
    ) -> VerbResult<MergeKind<'a>> {
        let kin = BranchPair { parent, branch };
        let note = format!("the branch {} was updated to it", branch.name);
        let theirs = match at {
            Some(at) => TreeState::At(parent.states.whole_id(at)?),
            None => self.checkpoint(parent, &note)?,
        };
        let base = kin.base(theirs, TreeState::Live)?;
        if let TreeState::At(at) = theirs {
            // An older checkpoint would merge changes that the branch already has.
            let comes_from = |id| parent.timeline().catalogue.comes_by(at, id);
            if !comes_from(branch.base) || base != kin.base(TreeState::Live, TreeState::Live)? {
                return Err(is_older(branch, at));
            }
        }
        Ok(MergeKind::Kin {
            kin,
            into: MergeInto::Branch,
            base,
            theirs,
        })
    }
}

fn is_older(branch: &Branch, at: CheckpointId) -> VerbError {
    hinted(
        Code::AskedFor,
        format!(
            "checkpoint {at} is older than what the branch {} already has of its parent",
            branch.name
        ),
        "name a later checkpoint, or none for the parent's current state",
    )
}
