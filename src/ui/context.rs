//! The directory and the output of a verb.

use std::path::{Path, PathBuf};

use crate::output::Out;

/// Context of a verb.
pub struct Context {
    /// The directory of `-C`.
    pub dir: Option<PathBuf>,
    /// The output.
    pub out: Out,
}

impl Context {
    /// Returns the directory of `-C`.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }
}
