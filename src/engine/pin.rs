//! Pins: checkpoints that are not deleted, by whomever, until they are unpinned.

use super::Engine;
use super::api::{CheckpointInfo, StateName, VerbResult};
use super::checkpoint::check_note;
use super::error;
use crate::store::record::Actor;

impl Engine {
    /// See [`super::api::Verbs::pin`].
    pub(super) fn pin_checkpoint(&self, by: &Actor, state: &StateName, reason: Option<&str>) -> VerbResult<CheckpointInfo> {
        check_note(reason.unwrap_or_default())?;
        let _one_at_a_time = self.checkpointing.lock();
        let id = self.checkpoint_id(state)?;
        let before = self.timeline().checkpoint(id).ok_or_else(|| error::unknown_state(&state.0, &self.state_names()))?;
        if before.pinned.as_deref() != reason {
            let pinned = self.timeline().pin(Some(by), id, reason.map(str::to_owned));
            pinned.map_err(|errno| error::failed("the pin was not changed", errno))?;
        }
        Ok(CheckpointInfo::new(&self.timeline().checkpoint(id).unwrap_or(before)))
    }
}
