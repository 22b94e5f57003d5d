//! What a shell's prompt tells of a tree: asked after each command, so it must cost nearly nothing.

use serde::{Deserialize, Serialize};

use super::Engine;
use super::api::VerbResult;
use super::error;
use super::requester::Requester;
use super::verb::Verb;
use crate::history::state::State;
use crate::store::ids::CheckpointId;

/// After so many changes, or so many checkpoints, it is not looked whether anything differs.
const CHANGES_MAX: u64 = 500;
const CHECKPOINTS_MAX: u64 = 8;

/// Which checkpoint the tree comes from, and whether it differs from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glance;

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glanced {
    /// The checkpoint that the tree comes from, as of [`super::api::Status::base`].
    pub base: Option<CheckpointId>,
    /// Something differs from it. After many changes what was changed back counts too.
    pub changed: bool,
}

impl Verb for Glance {
    type Answer = Glanced;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Glanced> {
        let Some(base) = engine.timeline().base() else {
            return Ok(Glanced {
                base: None,
                changed: true,
            });
        };
        let epochs = &engine.timeline().epochs;
        let since = epochs.epoch().0.saturating_sub(base.0);
        let changed = if epochs.dirty() <= CHANGES_MAX && since <= CHECKPOINTS_MAX {
            engine.checkpoints.settle();
            let changes = engine.states.compare_all(State::At(base), State::Live);
            !changes.map_err(error::tree_not_compared)?.is_empty()
        } else {
            true
        };
        Ok(Glanced {
            base: Some(base),
            changed,
        })
    }
}
