//! The configured remotes: those of the user and of the system, or those of a file.

/// The environment variable with the path of that file.
pub const REMOTES_VARIABLE: &str = "CKPTFS_REMOTES";

#[cfg(feature = "remote")]
pub use names::names;

#[cfg(feature = "remote")]
mod names {
    use std::path::Path;

    use super::super::config;
    use super::REMOTES_VARIABLE;
    use ckptfs_api::VerbResult;
    use ckptfs_remote::restic::config::RemoteConfigs;

    /// Returns the remotes of the user.
    ///
    /// # Errors
    /// `no-directory`, `bad-config`.
    pub fn names() -> VerbResult<RemoteConfigs> {
        if let Some(file) = std::env::var_os(REMOTES_VARIABLE) {
            return RemoteConfigs::read(Path::new(&file));
        }
        let file = config::user_file().map(|file| file.with_file_name("remotes.toml"));
        RemoteConfigs::of_user(file)
    }
}
