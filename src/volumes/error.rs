//! How work on a pool fails: in words for a person, as every verb does.

use std::io;
use std::path::Path;

use crate::engine::api::VerbError;
pub use crate::engine::api::{error, hinted};

/// The error of a call on `path`.
pub fn failed(path: &Path, cause: impl Into<io::Error>) -> VerbError {
    let cause = cause.into();
    let code = match cause.kind() {
        io::ErrorKind::NotFound => "not-found",
        io::ErrorKind::PermissionDenied => "no-permission",
        io::ErrorKind::StorageFull => "no-space",
        _ => "io",
    };
    let text = cause.to_string();
    error(
        code,
        format!(
            "{}: {}",
            path.display(),
            text.split(" (os error").next().unwrap_or_default()
        ),
    )
}
