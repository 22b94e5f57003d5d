//! `glance`: the state of a tree for a shell prompt. It runs after each command, so it must be
//! cheap.

use super::Engine;
use super::error;
use super::requester::Requester;
use crate::engine::verb::Execute;
use crate::history::state::TreeState;
use ckptfs_api::{PromptQuery, PromptStatus, VerbResult};

/// Limits of changes and of checkpoints since the base, beyond which the tree counts as changed
/// without a comparison.
const CHANGES_MAX: u64 = 500;
const CHECKPOINTS_MAX: u64 = 8;

impl Execute for PromptQuery {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<PromptStatus> {
        let Some(base) = engine.timeline().base() else {
            return Ok(PromptStatus {
                base: None,
                changed: true,
            });
        };
        let epochs = &engine.timeline().epochs;
        let since = epochs.epoch().0.saturating_sub(base.0);
        let changed = if epochs.dirty() <= CHANGES_MAX && since <= CHECKPOINTS_MAX {
            engine.checkpoints.settle();
            let changes = engine
                .states
                .compare_all(TreeState::At(base), TreeState::Live);
            !changes.map_err(error::tree_not_compared)?.is_empty()
        } else {
            true
        };
        Ok(PromptStatus {
            base: Some(base),
            changed,
        })
    }
}
