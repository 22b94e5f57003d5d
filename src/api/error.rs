//! Errors for the user.

mod code;

use std::io;

pub use self::code::Code;

use serde::{Deserialize, Serialize};

/// The error of a verb: one line for the user, and a command that may help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct VerbError {
    /// Kind of failure, for programs.
    pub code: Code,
    /// The failure and its object.
    pub message: String,
    /// Suggested remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The result of a verb.
pub type VerbResult<T> = Result<T, VerbError>;

/// Returns an error without a hint.
pub fn error(code: Code, message: impl Into<String>) -> VerbError {
    VerbError {
        code,
        message: message.into(),
        hint: None,
    }
}

/// Returns an error with a hint.
pub fn hinted(code: Code, message: impl Into<String>, hint: impl Into<String>) -> VerbError {
    VerbError {
        hint: Some(hint.into()),
        ..error(code, message)
    }
}

/// Returns the error of a system call on `what`, usually a path.
pub fn io_error(what: impl std::fmt::Display, cause: impl Into<io::Error>) -> VerbError {
    let cause = cause.into();
    let code = match cause.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::PermissionDenied => Code::NoPermission,
        io::ErrorKind::StorageFull => Code::NoSpace,
        _ => Code::Io,
    };
    error(code, format!("{what}: {}", plain(&cause)))
}

/// Returns the message without the number, as in "No such file or directory (os error 2)".
pub fn plain(cause: &io::Error) -> String {
    let text = cause.to_string();
    let number = text.find(" (os error").unwrap_or(text.len());
    text[..number].to_owned()
}

/// A modifying verb requires an exact name.
pub fn not_exact(name: &str, tag: &str) -> VerbError {
    hinted(
        Code::NotExact,
        format!("{name:?} is only the beginning of the tag {tag:?}"),
        "restore and delete need the whole tag, or a number",
    )
}

/// Adds the object of a failed call to its error.
pub trait ErrorContext<T> {
    /// Names `what`, usually a path, in the error.
    fn on(self, what: impl std::fmt::Display) -> VerbResult<T>;
}

impl<T, E: Into<io::Error>> ErrorContext<T> for Result<T, E> {
    fn on(self, what: impl std::fmt::Display) -> VerbResult<T> {
        self.map_err(|cause| io_error(what, cause))
    }
}
