//! Trees that look through to a remote, where remotes are built.

#[cfg(feature = "remote")]
pub use super::remote::lazy::{begin, of, password};

#[cfg(not(feature = "remote"))]
pub use self::none::{begin, of, password};

#[cfg(not(feature = "remote"))]
mod none {
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;

    use crate::cli::context::Context;
    use crate::cli::error::hinted;
    use crate::engine::api::{Code, VerbResult};
    use crate::engine::origin::ServedOrigin;

    /// There are no remotes.
    pub fn begin(_: &str, _: &Path, _: &mut Context) -> VerbResult<Option<String>> {
        Err(hinted(
            Code::Usage,
            "this ckptfs was built without remotes",
            "use a released one, or build it with: cargo build --features remote",
        ))
    }

    /// There are no remotes.
    pub fn password(_: impl AsFd) -> VerbResult<Option<String>> {
        Ok(None)
    }

    /// The engine refuses such a tree.
    pub fn of(_: &OwnedFd, _: (Option<u64>, bool)) -> VerbResult<Option<ServedOrigin>> {
        Ok(None)
    }
}
