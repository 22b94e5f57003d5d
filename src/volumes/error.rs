//! How work on a pool, and a verb, fails: in words for a person.

use std::fmt::Display;
use std::io;

use crate::engine::api::{VerbError, VerbResult};
pub use crate::engine::api::{error, hinted};

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

/// The error of a call on `what`: a path, mostly.
pub fn io_error(what: impl Display, cause: impl Into<io::Error>) -> VerbError {
    let cause = cause.into();
    let code = match cause.kind() {
        io::ErrorKind::NotFound => "not-found",
        io::ErrorKind::PermissionDenied => "no-permission",
        io::ErrorKind::StorageFull => "no-space",
        _ => "io",
    };
    error(code, format!("{what}: {}", plain(&cause)))
}

/// What went wrong, without the number in "No such file or directory (os error 2)": it helps
/// nobody.
pub fn plain(cause: &io::Error) -> String {
    let text = cause.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}
