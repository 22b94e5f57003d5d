//! Access to the history of a tree, with or without a daemon.

use std::sync::Arc;

use ckptfs_api::{Client, Request, VerbResult};
use ckptfs_core::engine::Engine;
use ckptfs_core::engine::offline::Offline;
use ckptfs_core::engine::requester::Requester;
use ckptfs_core::engine::verb::Execute;

/// The executor of verbs for one tree.
pub enum VerbExecutor {
    /// The daemon that serves the tree.
    Daemon(Client),
    /// This process, with the store open, which excludes a daemon. The store is closed in order on
    /// drop.
    Here(Arc<Engine>, Box<Requester>),
    /// This process, with the store open for reading only.
    Store(Box<Offline>),
}

impl VerbExecutor {
    /// # Errors
    /// Those of the verb; `not-mounted`: it needs more than the store.
    pub fn ask<V: Execute + Into<Request>>(&mut self, verb: V) -> VerbResult<V::Answer> {
        match self {
            VerbExecutor::Daemon(client) => client.ask(verb),
            VerbExecutor::Here(engine, requester) => verb.run(engine, requester),
            VerbExecutor::Store(store) => verb.read(store),
        }
    }
}

impl Drop for VerbExecutor {
    fn drop(&mut self) {
        if let VerbExecutor::Here(engine, _) = self {
            engine.close();
        }
    }
}
