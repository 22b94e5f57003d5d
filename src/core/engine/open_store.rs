//! Write access of a client to the store.

use std::sync::Arc;

use super::Engine;
use super::error;
use super::requester::Requester;
use crate::engine::verb::Execute;
use ckptfs_api::{OpenStore, VerbResult};

impl Execute for OpenStore {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<()> {
        let store = engine.store_fd().try_clone_to_owned();
        let store = store.map_err(|cause| error::io_error("the store", cause))?;
        requester.give(vec![Arc::new(store.into())]);
        Ok(())
    }
}
