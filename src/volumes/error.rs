//! Errors of pool operations and of verbs, with messages for the user.

use std::fmt::Display;
use std::io;

use ckptfs_api::VerbResult;
pub use ckptfs_api::{error, hinted, io_error, plain};

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
