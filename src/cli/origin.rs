//! Trees that look through to a remote, where remotes are built.

#[cfg(feature = "remote")]
pub use super::remote::lazy::{begin, goes_on, of};

#[cfg(not(feature = "remote"))]
pub use self::none::{begin, goes_on, of};

/// What the mount of such a tree needs besides.
#[derive(Debug, Default)]
pub struct Begun {
    /// The password of the remote, if somebody has typed it.
    pub password: Option<String>,
    /// The note of the first checkpoint, if the tree was made just now.
    pub note: Option<String>,
}

#[cfg(not(feature = "remote"))]
mod none {
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;

    use super::Begun;
    use crate::cli::context::Context;
    use crate::cli::error::hinted;
    use crate::engine::api::{Code, VerbResult};
    use crate::engine::origin::ServedOrigin;

    /// There are no remotes.
    pub fn begin(_: &str, _: &Path, _: &mut Context) -> VerbResult<Begun> {
        Err(hinted(
            Code::Usage,
            "this ckptfs was built without remotes",
            "use a released one, or build it with: cargo build --features remote",
        ))
    }

    /// There are no remotes.
    pub fn goes_on(_: impl AsFd, _: &mut Context) -> VerbResult<Begun> {
        Ok(Begun::default())
    }

    /// The engine refuses such a tree.
    pub fn of(_: &OwnedFd, _: (Option<u64>, bool)) -> VerbResult<Option<ServedOrigin>> {
        Ok(None)
    }
}
