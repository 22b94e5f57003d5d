//! Bases are held: a checkpoint that a branch looks through to is neither deleted nor freed.

use std::collections::BTreeMap;

use super::registry_failed;
use crate::engine::api::{VerbError, VerbResult};
use crate::engine::error::{Code, hinted};
use crate::engine::word::word;
use crate::store::StoreError;
use crate::store::ids::CheckpointId;
use crate::store::layout::Layout;

/// The checkpoints that are held, each with a branch that holds it.
#[derive(Debug, Default)]
pub(in crate::engine) struct Bases(BTreeMap<CheckpointId, Holder>);

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
    pub(in crate::engine) fn of(layout: &Layout) -> VerbResult<Bases> {
        let (branches, dropped) = layout
            .branches()
            .and_then(|branches| Ok((branches, layout.dropped_branches()?)))
            .map_err(registry_failed)?;
        let mut unreadable = branches.unreadable.iter().chain(&dropped.unreadable);
        if let Some(file) = unreadable.next().cloned() {
            return Err(registry_failed(StoreError::BadBranch { file }));
        }
        let holders = |entries: Vec<_>, dropped| {
            entries
                .into_iter()
                .map(move |entry: crate::store::layout::branches::BranchEntry| {
                    let name = entry.name;
                    (entry.base, Holder { name, dropped })
                })
        };
        // One that is there is named rather than one that was dropped.
        let all = holders(dropped.entries, true).chain(holders(branches.entries, false));
        Ok(Bases(all.collect()))
    }

    /// Whether a branch looks through to it.
    pub(in crate::engine) fn has(&self, id: CheckpointId) -> bool {
        self.0.contains_key(&id)
    }

    /// # Errors
    /// `held`: a branch looks through to it.
    pub(in crate::engine) fn check(&self, id: CheckpointId) -> VerbResult<()> {
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
