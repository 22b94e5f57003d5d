//! Access to the history of a tree, with or without a daemon.

use std::sync::Arc;

use super::Client;
use crate::engine::Engine;
use crate::engine::api::VerbResult;
use crate::engine::offline::Offline;
use crate::engine::requester::Requester;
use crate::engine::verb::Verb;
use crate::engine::verbs::Request;

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
    pub fn ask<V: Verb + Into<Request>>(&mut self, verb: V) -> VerbResult<V::Answer> {
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
