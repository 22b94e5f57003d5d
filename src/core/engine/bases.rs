//! Bases: a checkpoint that a branch looks through to is neither deleted nor freed until the branch
//! is dropped and the trash emptied.
//!
//! Checkpoints and gc need only this of branches. It reads the registry in the store, whether or
//! not branches are open.

use std::collections::BTreeMap;

use super::error::{self, Code, hinted};
use crate::live::Live;
use ckptfs_api::display::word;
use ckptfs_api::{CheckpointId, VerbError, VerbResult};
use ckptfs_store::StoreError;
use ckptfs_store::layout::branches::Registry;
use ckptfs_store::layout::merges::MergeInto;

/// The held checkpoints, each with its holder.
#[derive(Debug, Default)]
pub(super) struct HeldBases(BTreeMap<CheckpointId, BaseHolder>);

#[derive(Debug)]
enum BaseHolder {
    /// A branch based on it or updated to it.
    Branch(String),
    /// A dropped branch, which can be restored.
    Dropped(String),
    /// This branch: the checkpoint is its first one, or was merged into the parent.
    Own,
}

impl HeldBases {
    /// Reads the registry, including branches in the trash, which can be restored.
    ///
    /// # Errors
    /// The registry cannot be read or parsed: no checkpoint can be considered free.
    pub(super) fn of(live: &Live) -> VerbResult<HeldBases> {
        let registry = live.timeline().store().layout.branches();
        let mut bases = HeldBases::default();
        bases.add_branches(registry)?;
        if let Some(parent) = live.inodes.parent()
            && let Some(own) = registry.own().map_err(registry_failed)?
        {
            let merges = parent.store().layout.branches().merges(own.id);
            let merged = merges.all().map_err(registry_failed)?;
            let merged = merged
                .iter()
                .filter(|merge| merge.into == MergeInto::Parent)
                .map(|merge| merge.from.0);
            for id in merged.chain([own.since]) {
                bases.0.entry(id).or_insert(BaseHolder::Own);
            }
        }
        Ok(bases)
    }

    fn add_branches(&mut self, registry: Registry<'_>) -> VerbResult<()> {
        let (branches, dropped) = registry
            .all()
            .and_then(|branches| Ok((branches, registry.dropped()?)))
            .map_err(registry_failed)?;
        let mut unreadable = branches.unreadable.iter().chain(&dropped.unreadable);
        if let Some(file) = unreadable.next().cloned() {
            return Err(registry_failed(StoreError::BadBranch { file }));
        }
        // Existing branches override dropped ones in messages.
        let all = [
            (
                dropped.entries,
                BaseHolder::Dropped as fn(String) -> BaseHolder,
            ),
            (branches.entries, BaseHolder::Branch),
        ];
        for (entries, holder) in all {
            for entry in entries {
                let merges = registry.merges(entry.id).all().map_err(registry_failed)?;
                let updated = merges
                    .iter()
                    .filter(|merge| merge.into == MergeInto::Branch)
                    .map(|merge| merge.from.0);
                for id in updated.chain([entry.base]) {
                    self.0.insert(id, holder(entry.name.clone()));
                }
            }
        }
        Ok(())
    }

    /// Returns whether a branch looks through to it, or needs it for a merge.
    pub(super) fn has(&self, id: CheckpointId) -> bool {
        self.0.contains_key(&id)
    }

    /// # Errors
    /// `held`: a branch looks through to it, or needs it for a merge.
    pub(super) fn check(&self, id: CheckpointId) -> VerbResult<()> {
        self.0
            .get(&id)
            .map_or(Ok(()), |holder| Err(held(id, holder)))
    }
}

fn held(id: CheckpointId, holder: &BaseHolder) -> VerbError {
    let (why, hint) = match holder {
        BaseHolder::Dropped(name) => (
            format!("the dropped branch {name}, which can be brought back, is based on it"),
            "to free dropped branches: ckptfs gc".to_owned(),
        ),
        BaseHolder::Branch(name) => (
            format!("the branch {name} is based on it"),
            format!(
                "merge or drop the branch first: ckptfs branch drop {}",
                word(name)
            ),
        ),
        BaseHolder::Own => (
            "this branch began as it, or was merged from it".to_owned(),
            "it goes with the branch".to_owned(),
        ),
    };
    hinted(Code::Held, format!("checkpoint {id} is kept: {why}"), hint)
}

/// Permanently removes the branches dropped at or before `before_ns`.
///
/// # Errors
/// The trash cannot be read or written.
pub(super) fn empty_trash(registry: Registry<'_>, before_ns: i64) -> VerbResult<()> {
    let dropped = registry.dropped().map_err(registry_failed)?;
    for entry in dropped.entries {
        if registry.dropped_ns(&entry) <= before_ns {
            registry.free(&entry).map_err(registry_failed)?;
        }
    }
    registry.remove_gone().map_err(registry_failed)
}

/// Converts an error of the branch registry.
pub(super) fn registry_failed(cause: StoreError) -> VerbError {
    match cause {
        StoreError::BadBranch { file } => hinted(
            Code::BadBranch,
            format!("the record of the branch {file:?} cannot be parsed"),
            "nothing was changed; it is in .ckptfs/branches or .ckptfs/dropped: move it away if you do not need that branch",
        ),
        cause => error::failed("the records of branches cannot be read or written")(cause.errno()),
    }
}
