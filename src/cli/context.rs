//! The directory and the output of a verb.

use std::path::{Path, PathBuf};

use super::output::Out;

/// Context of a verb.
pub(super) struct Context {
    pub(super) dir: Option<PathBuf>,
    pub(super) out: Out,
}

impl Context {
    /// Returns the directory of `-C`.
    pub(super) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }
}
