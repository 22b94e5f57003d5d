//! Bases are held: a checkpoint that a branch looks through to is neither deleted nor freed, until
//! the branch is dropped and the trash is emptied.
//!
//! This is what checkpoints and gc need to know of branches. It knows the registry in the store
//! only, whatever is open.

use std::collections::BTreeMap;

use super::api::{VerbError, VerbResult};
use super::error::{self, Code, hinted};
use super::word::word;
use crate::store::StoreError;
use crate::store::ids::CheckpointId;
use crate::store::layout::branches::{BranchEntry, Registry};

/// The checkpoints that are held, each with a branch that holds it.
#[derive(Debug, Default)]
pub(super) struct Bases(BTreeMap<CheckpointId, Holder>);

#[derive(Debug)]
struct Holder {
    name: String,
    /// It was dropped, and can come back.
    dropped: bool,
}

impl Bases {
    /// All, as the registry has them: those of branches in the trash too, for they can come back.
    ///
    /// # Errors
    /// The registry cannot be read, or not understood: then nothing is known to be free.
    pub(super) fn of(registry: Registry<'_>) -> VerbResult<Bases> {
        let (branches, dropped) = registry
            .all()
            .and_then(|branches| Ok((branches, registry.dropped()?)))
            .map_err(registry_failed)?;
        let mut unreadable = branches.unreadable.iter().chain(&dropped.unreadable);
        if let Some(file) = unreadable.next().cloned() {
            return Err(registry_failed(StoreError::BadBranch { file }));
        }
        let holders = |entries: Vec<_>, dropped| {
            entries.into_iter().map(move |entry: BranchEntry| {
                let name = entry.name;
                (entry.base, Holder { name, dropped })
            })
        };
        // One that is there is named rather than one that was dropped.
        let all = holders(dropped.entries, true).chain(holders(branches.entries, false));
        Ok(Bases(all.collect()))
    }

    /// Whether a branch looks through to it.
    pub(super) fn has(&self, id: CheckpointId) -> bool {
        self.0.contains_key(&id)
    }

    /// # Errors
    /// `held`: a branch looks through to it.
    pub(super) fn check(&self, id: CheckpointId) -> VerbResult<()> {
        self.0
            .get(&id)
            .map_or(Ok(()), |holder| Err(held(id, holder)))
    }
}

fn held(id: CheckpointId, Holder { name, dropped }: &Holder) -> VerbError {
    let (which, hint) = if *dropped {
        (
            format!("the branch {name}, which was dropped and can come back,"),
            "to free dropped branches: ckptfs gc".to_owned(),
        )
    } else {
        (
            format!("the branch {name}"),
            format!(
                "merge or drop the branch first: ckptfs branch drop {}",
                word(name)
            ),
        )
    };
    hinted(
        Code::Held,
        format!("checkpoint {id} stays: {which} is based on it"),
        hint,
    )
}

/// Frees all that was dropped before `before_ns`, for good: nobody brings it back.
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

/// What is noted of branches cannot be read or written.
pub(super) fn registry_failed(cause: StoreError) -> VerbError {
    match cause {
        StoreError::BadBranch { file } => hinted(
            Code::BadBranch,
            format!("what is noted of the branch {file:?} cannot be understood"),
            "nothing was changed; it is in .ckptfs/branches or .ckptfs/dropped: move it away if that branch is of no use",
        ),
        cause => {
            error::failed("what is noted of branches cannot be read or written")(cause.errno())
        }
    }
}
