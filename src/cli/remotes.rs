//! Which remotes there are: those of the user, or of a file that is named.

/// Names that file.
pub const REMOTES_VARIABLE: &str = "CKPTFS_REMOTES";

#[cfg(feature = "remote")]
pub use names::names;

#[cfg(feature = "remote")]
mod names {
    use std::path::Path;

    use super::super::config;
    use super::super::error::hinted;
    use super::REMOTES_VARIABLE;
    use crate::engine::api::{Code, VerbResult};
    use crate::remote::restic::names::Names;

    /// The remotes of whoever types a command.
    ///
    /// # Errors
    /// `no-directory`, `bad-config`.
    pub fn names() -> VerbResult<Names> {
        if let Some(file) = std::env::var_os(REMOTES_VARIABLE) {
            return Names::read(Path::new(&file));
        }
        let file = config::user_file().ok_or_else(|| {
            hinted(
                Code::NoDirectory,
                "your remotes cannot be found",
                "set HOME or XDG_CONFIG_HOME",
            )
        })?;
        Names::read(&file.with_file_name("remotes.toml"))
    }
}
