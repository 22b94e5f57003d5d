//! The verbs of branches.

use super::{BranchOps, create, list, open, trash};
use crate::engine::Engine;
use crate::engine::merge::{BranchPair, changed_by};
use crate::engine::offline::Offline;
use crate::engine::requester::Requester;
use crate::engine::verb::Execute;
use ckptfs_api::{
    BranchInfo, Change, CreateBranch, DiffBranch, DropBranch, DroppedBranch, FreeBranch,
    ListBranches, MountBranch, ReviveBranch, VerbResult,
};
use ckptfs_store::layout::branches::BranchEntry;
use ckptfs_store::layout::merges::MergeInto;

/// Returns the reply for a branch that is not mounted.
pub(super) fn branch_info(entry: &BranchEntry) -> BranchInfo {
    let created = jiff::Timestamp::from_nanosecond(i128::from(entry.made_ns))
        .map(|time| time.to_string())
        .unwrap_or_default();
    BranchInfo {
        name: entry.name.clone(),
        path: entry.path.clone(),
        base: Some(entry.base),
        merge_base: None,
        since: entry.made.then_some(entry.since),
        created,
        mounted: false,
        dropped: false,
        changed: None,
        unmerged: None,
        bytes: None,
        trouble: None,
        dry_run: false,
    }
}

impl Execute for CreateBranch {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<BranchInfo> {
        let created = create::create(engine, requester, &self);
        engine.snapdir.snapdir_changed();
        created
    }
}

impl Execute for ListBranches {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<BranchInfo>> {
        list::list(engine, &self)
    }

    fn read(self, store: &Offline) -> VerbResult<Vec<BranchInfo>> {
        list::list_offline(store.root(), self.dropped)
    }
}

impl Execute for DiffBranch {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<Change>> {
        let branch = BranchOps::new(engine).mounted(&self.name)?;
        let kin = BranchPair {
            parent: engine,
            branch: &branch,
        };
        changed_by(kin, MergeInto::Branch)
    }
}

impl Execute for MountBranch {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<BranchInfo> {
        let _claim = engine.branches.claim(&self.name)?;
        let entry = BranchOps::new(engine).registered(&self.name)?;
        open::mount(engine, &entry)?;
        Ok(BranchInfo {
            mounted: true,
            ..branch_info(&entry)
        })
    }
}

impl Execute for DropBranch {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<DroppedBranch> {
        trash::drop_branch(engine, requester.by(), &self)
    }
}

impl Execute for FreeBranch {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<()> {
        trash::free(engine, &self.name)
    }
}

impl Execute for ReviveBranch {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<BranchInfo> {
        trash::revive(engine, requester.by(), &self.name)
    }
}
