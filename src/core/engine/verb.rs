//! Execution of verbs. The request and reply types are in `ckptfs-api`.

use super::Engine;
use super::error;
use super::offline::Offline;
use super::requester::Requester;
use ckptfs_api::{Answer, Request, Verb, VerbResult};

/// The implementation of a verb.
pub trait Execute: Verb {
    /// Executes the request. Called concurrently; must not block a kernel request for longer than a
    /// freeze.
    ///
    /// # Errors
    /// Messages for the user, with a code for programs.
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Self::Answer>;

    /// Executes the request on an unmounted tree by reading its store.
    ///
    /// # Errors
    /// `not-mounted`: a mount is needed.
    fn read(self, _: &Offline) -> VerbResult<Self::Answer> {
        Err(error::not_mounted("the directory is not mounted"))
    }
}

macro_rules! execute {
    ($($(#[$condition:meta])? $name:ident,)*) => {
        /// Executes a request and returns the reply.
        ///
        /// # Errors
        /// As [`Execute::run`].
        pub fn execute(request: Request, engine: &Engine, requester: &Requester) -> VerbResult<Answer> {
            match request {
                $($(#[$condition])? Request::$name(request) => request.run(engine, requester).map(Answer::of),)*
            }
        }
    };
}

ckptfs_api::with_requests!(execute);
