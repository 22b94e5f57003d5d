//! Trees that look through to a remote, if remotes are built in.

#[cfg(feature = "remote")]
pub use super::remote::lazy::{begin, goes_on, of};

#[cfg(not(feature = "remote"))]
pub use self::none::{begin, goes_on, of};

/// Additional parameters for the mount of such a tree.
#[derive(Debug, Default)]
pub struct OriginInputs {
    /// The password of the remote, if the user has typed it.
    pub password: Option<String>,
    /// The note of the first checkpoint, if the tree is new.
    pub note: Option<String>,
}

#[cfg(not(feature = "remote"))]
mod none {
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;

    use super::OriginInputs;
    use ckptfs_api::{Code, VerbResult};
    use ckptfs_core::engine::origin::ServedOrigin;
    use ckptfs_ui::context::Context;
    use ckptfs_ui::error::hinted;

    /// Fails: remotes are not built in.
    pub fn begin(_: &str, _: &Path, _: &mut Context) -> VerbResult<OriginInputs> {
        Err(hinted(
            Code::Usage,
            "this ckptfs was built without remotes",
            "use a released one, or build it with: cargo build --features remote",
        ))
    }

    /// Returns nothing: remotes are not built in.
    pub fn goes_on(_: impl AsFd, _: &mut Context) -> VerbResult<OriginInputs> {
        Ok(OriginInputs::default())
    }

    /// Returns `None`: the engine rejects such a tree.
    pub fn of(_: &OwnedFd, _: (Option<u64>, bool)) -> VerbResult<Option<ServedOrigin>> {
        Ok(None)
    }
}
