//! The trait of requests, and replies that are not serialized yet.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

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
