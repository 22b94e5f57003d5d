//! What a verb is: a request that says what it answers and how the answer is found.
//!
//! Everything else about a verb is derived from that: the client and the server of the control
//! socket, what this process answers without a daemon, and the JSON in between. A new verb is one
//! type with an `impl Verb`, and one line in the list of [`super::verbs::Request`].

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
    /// What it answers.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// It changes nothing, whatever is asked.
    const ONLY_ASKS: bool = false;

    /// It changes nothing: if the daemon dies over it, the next one may be asked again.
    fn only_asks(&self) -> bool {
        Self::ONLY_ASKS
    }

    /// Does it. Several threads may be at it at once; none keeps a request of the kernel waiting
    /// longer than a freeze.
    ///
    /// # Errors
    /// In words for a person, with a code for programs.
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Self::Answer>;

    /// Does it of a tree that is not mounted, by reading its store.
    ///
    /// # Errors
    /// `not-mounted`: that needs a mount.
    fn read(self, _: &Offline) -> VerbResult<Self::Answer> {
        Err(error::not_mounted("the directory is not mounted"))
    }
}

type WriteJson = Box<dyn FnOnce(&mut dyn io::Write) -> serde_json::Result<()> + Send>;

/// An answer that has yet to be written down: a long one is never in memory as text.
pub struct Answer(WriteJson);

impl Answer {
    /// Of a verb.
    pub fn of(answer: impl Serialize + Send + 'static) -> Answer {
        Answer(Box::new(move |out| serde_json::to_writer(out, &answer)))
    }

    /// Writes it as JSON, on one line, without its end.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(self, out: &mut dyn io::Write) -> io::Result<()> {
        Ok(self.0(out)?)
    }
}
