//! The state of a tree for a shell prompt.

use serde::{Deserialize, Serialize};

use crate::ids::CheckpointId;
use crate::verb::Verb;
/// Requests the tree's base and whether the tree differs from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptQuery;

/// The reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptStatus {
    /// The tree's base, as [`crate::Status::base`].
    pub base: Option<CheckpointId>,
    /// The tree differs from it. After many changes, reverted ones count as well as others.
    pub changed: bool,
}

impl Verb for PromptQuery {
    type Answer = PromptStatus;
    const ONLY_ASKS: bool = true;
}
