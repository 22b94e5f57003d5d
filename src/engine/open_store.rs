//! Write access of a client to the store.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Engine;
use super::api::VerbResult;
use super::error;
use super::requester::Requester;
use super::verb::Verb;

/// Returns a descriptor of the store's directory for writing; the link in the mount is read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenStore;

impl Verb for OpenStore {
    type Answer = ();
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<()> {
        let store = engine.store_fd().try_clone_to_owned();
        let store = store.map_err(|cause| error::io_error("the store", cause))?;
        requester.give(vec![Arc::new(store.into())]);
        Ok(())
    }
}
