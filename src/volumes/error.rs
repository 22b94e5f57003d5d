//! Errors of pool operations and of verbs, with messages for the user.

use std::fmt::Display;
use std::io;

use crate::engine::api::VerbResult;
pub use crate::engine::api::{error, hinted, io_error, plain};

/// Adds the object of a failed call to its error.
pub trait ErrorContext<T> {
    /// Names `what`, usually a path, in the error.
    fn on(self, what: impl Display) -> VerbResult<T>;
}

impl<T, E: Into<io::Error>> ErrorContext<T> for Result<T, E> {
    fn on(self, what: impl Display) -> VerbResult<T> {
        self.map_err(|cause| io_error(what, cause))
    }
}
