//! Read-only access to the history of an unmounted directory.

use std::os::fd::{AsFd, OwnedFd};

use super::error;
use crate::engine::checkpoint_info::checkpoint_info;
use crate::history::select::{SelectCandidate, SelectError, select};
use crate::history::state::TreeState;
use ckptfs_api::{CheckpointId, CheckpointInfo, OpenAtCut, StateName, VerbError, VerbResult};
use ckptfs_store::journal::Journal;
use ckptfs_store::layout::Layout;
use ckptfs_store::record::{CheckpointState, Record};
use ckptfs_store::{self as store, StoreError};

/// The checkpoints of a store, read once. [`super::verb::Execute::read`] uses it; all other verbs need
/// a mount or [`super::check`].
pub struct Offline {
    /// Oldest first.
    checkpoints: Vec<CheckpointState>,
    root: OwnedFd,
}

impl Offline {
    /// Reads the store in the directory `root`, without a lock and without writing.
    ///
    /// # Errors
    /// Messages for the user: no store exists, it is damaged or has a newer format.
    pub fn open(root: impl AsFd) -> VerbResult<Offline> {
        let root = root
            .as_fd()
            .try_clone_to_owned()
            .map_err(error::directory_not_opened)?;
        let checkpoints = store::read_checkpoints(&root).map_err(unreadable)?;
        Ok(Offline { checkpoints, root })
    }

    /// Opens the journal for reading.
    pub(super) fn journal(&self) -> VerbResult<Journal> {
        let layout = Layout::open_existing_readonly(&self.root).map_err(unreadable)?;
        Journal::open(&layout)
            .map(|(journal, _)| journal)
            .map_err(unreadable)
    }

    /// Returns the directory that contains the store.
    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Oldest first.
    pub(super) fn checkpoints(&self) -> &[CheckpointState] {
        &self.checkpoints
    }

    pub(super) fn show(&self, state: &StateName) -> VerbResult<CheckpointInfo> {
        let unselected = |why| {
            let known: Vec<String> = self
                .checkpoints
                .iter()
                .flat_map(|kept| [vec![kept.id.to_string()], kept.tags.clone()].concat())
                .collect();
            error::unselected(&state.0, why, &known)
        };
        let known: Vec<SelectCandidate<'_>> = self
            .checkpoints
            .iter()
            .map(|kept| SelectCandidate {
                id: kept.id,
                tags: &kept.tags,
                state_ns: kept.state_ns(),
                reason: &kept.reason,
            })
            .collect();
        let id = match select(&state.0, &known).map_err(unselected)? {
            TreeState::At(id) => id,
            TreeState::Live => return Err(unselected(SelectError::Unknown)),
        };
        self.checkpoints
            .iter()
            .find(|kept| kept.id == id)
            .map(checkpoint_info)
            .ok_or_else(|| unselected(SelectError::Unknown))
            .map(|info| {
                let open_at_cut = self.open_at(id);
                CheckpointInfo {
                    open_at_cut,
                    ..info
                }
            })
    }

    /// Returns the same as a daemon; skips damaged records.
    fn open_at(&self, id: CheckpointId) -> Option<OpenAtCut> {
        let layout = Layout::open_existing_readonly(&self.root).ok()?;
        let (journal, _) = Journal::open(&layout).ok()?;
        let found = journal
            .scan(journal.start(), None)
            .map_while(Result::ok)
            .find_map(|(_, record)| match record {
                Record::OpenAt { id: of, open, more } if of == id => Some((open, more)),
                _ => None,
            });
        found.map(|(open, more)| super::attribution::open_at_cut(open, more))
    }
}

fn unreadable(cause: StoreError) -> VerbError {
    match cause {
        StoreError::NewerFormat { .. } | StoreError::UnknownFeature { .. } => error::hinted(
            error::Code::NewerFormat,
            format!("the store cannot be read: {cause}"),
            "use the newer ckptfs that made this store",
        ),
        cause => error::failed("the store cannot be read")(cause.errno()),
    }
}
