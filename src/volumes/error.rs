//! How work on a pool fails: in words for a person, as every verb does.

use std::io;
use std::path::Path;

use crate::engine::api::{VerbError, io_error};
pub use crate::engine::api::{error, hinted};

/// The error of a call on `path`.
pub fn failed(path: &Path, cause: impl Into<io::Error>) -> VerbError {
    io_error(path.display(), cause)
}
