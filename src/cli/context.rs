//! Where a verb acts, and how it prints.

use std::path::{Path, PathBuf};

use super::output::Out;

/// What a verb works with: where, and how to print.
pub(super) struct Context {
    pub(super) dir: Option<PathBuf>,
    pub(super) out: Out,
}

impl Context {
    /// The directory of `-C`, if given.
    pub(super) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }
}
