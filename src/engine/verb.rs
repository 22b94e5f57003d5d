//! The verb trait: a request type with its reply type and implementation.
//!
//! Everything else is derived: client and server of the control socket, replies without a daemon,
//! and the JSON format. A new verb is a type with an `impl Verb`, and a line in the list of
//! [`super::verbs::Request`].

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Engine;
use super::api::VerbResult;
use super::error;
use super::offline::Offline;
use super::requester::Requester;

/// A request of one kind.
pub trait Verb: Clone {
    /// Type of the reply.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Every request of this kind is read-only.
    const ONLY_ASKS: bool = false;

    /// Returns whether the request is read-only, so that it can be repeated after the death of the
    /// daemon.
    fn only_asks(&self) -> bool {
        Self::ONLY_ASKS
    }

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

type WriteJson = Box<dyn FnOnce(&mut dyn io::Write) -> serde_json::Result<()> + Send>;

/// A reply not serialized yet: a long one is never in memory as text.
pub struct Answer(WriteJson);

impl Answer {
    /// Wraps a reply.
    pub fn of(answer: impl Serialize + Send + 'static) -> Answer {
        Answer(Box::new(move |out| serde_json::to_writer(out, &answer)))
    }

    /// Writes it as one line of JSON, without the newline.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(self, out: &mut dyn io::Write) -> io::Result<()> {
        Ok(self.0(out)?)
    }
}
