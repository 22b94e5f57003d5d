//! Whoever tells the history of a tree.

use std::sync::Arc;

use super::Client;
use crate::engine::Engine;
use crate::engine::api::VerbResult;
use crate::engine::offline::Offline;
use crate::engine::requester::Requester;
use crate::engine::verb::Verb;
use crate::engine::verbs::Request;

/// See the module.
pub enum History {
    /// The daemon that serves the tree.
    Daemon(Client),
    /// This process, which has the store open: nobody serves it meanwhile, and it is closed in
    /// order at the end.
    Here(Arc<Engine>, Box<Requester>),
    /// This process, which only reads the store.
    Store(Box<Offline>),
}

impl History {
    /// # Errors
    /// Those of the verb; `not-mounted`: it needs more than the store.
    pub fn ask<V: Verb + Into<Request>>(&mut self, verb: V) -> VerbResult<V::Answer> {
        match self {
            History::Daemon(client) => client.ask(verb),
            History::Here(engine, requester) => verb.run(engine, requester),
            History::Store(store) => verb.read(store),
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        if let History::Here(engine, _) = self {
            engine.close();
        }
    }
}
