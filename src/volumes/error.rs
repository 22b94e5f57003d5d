//! How work on a pool, and a verb, fails: in words for a person.

use std::fmt::Display;
use std::io;

use crate::engine::api::VerbResult;
pub use crate::engine::api::{error, hinted, io_error, plain};

/// Says what the call was on that failed.
pub trait On<T> {
    /// The error tells of `what`: a path, mostly.
    fn on(self, what: impl Display) -> VerbResult<T>;
}

impl<T, E: Into<io::Error>> On<T> for Result<T, E> {
    fn on(self, what: impl Display) -> VerbResult<T> {
        self.map_err(|cause| io_error(what, cause))
    }
}
