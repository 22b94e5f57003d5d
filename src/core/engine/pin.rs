//! Pins: a pinned checkpoint cannot be deleted until it is unpinned.

use super::checkpoint::Checkpoints;
use super::checkpoint::check_note;
use super::error;
use crate::engine::checkpoint_info::checkpoint_info;
use ckptfs_api::{Actor, CheckpointInfo, StateName, VerbResult};
use ckptfs_store::operation::OperationEffect;
use ckptfs_store::record::{CheckpointState, Record};
use ckptfs_sys::SysResult;

impl Checkpoints {
    pub(super) fn pin_checkpoint(
        &self,
        by: &Actor,
        state: &StateName,
        reason: Option<&str>,
    ) -> VerbResult<CheckpointInfo> {
        check_note(reason.unwrap_or_default())?;
        let _one_at_a_time = self.checkpointing.lock();
        let before = self.states.checkpoint(state)?;
        if before.pinned.as_deref() != reason {
            let pinned = self.set_pin(by, None, &before, reason.map(str::to_owned));
            pinned.map_err(error::failed("the pin was not changed"))?;
        }
        let after = self.timeline().catalogue.checkpoint(before.id);
        Ok(checkpoint_info(&after.unwrap_or(before)))
    }

    /// Pins or unpins a checkpoint as an operation. The caller holds `checkpointing`.
    pub(super) fn set_pin(
        &self,
        by: &Actor,
        undoes: Option<u64>,
        kept: &CheckpointState,
        reason: Option<String>,
    ) -> SysResult<()> {
        let deed = OperationEffect::Pinned {
            id: kept.id,
            before: kept.pinned.clone(),
            after: reason.clone(),
        };
        self.timeline().operations.operate(
            by,
            undoes,
            deed,
            vec![Record::Pinned {
                id: kept.id,
                reason,
            }],
        )
    }
}
