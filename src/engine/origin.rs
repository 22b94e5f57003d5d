//! A tree whose content is elsewhere: it looks through to what was read of its names and attributes
//! when it was made, and content comes when it is opened.

use std::fmt;
use std::sync::Arc;

use super::api::OriginInfo;
use crate::history::present::Present;

/// What such a tree looks through to. It never changes.
pub trait Origin: Present {
    /// How much of it is here, and why the rest is not.
    fn info(&self) -> OriginInfo;
    /// The tree is served: what is not here may be brought.
    fn begin(&self);
    /// What is there and not here, in words; `None`: all is here.
    fn elsewhere(&self) -> Option<String> {
        let info = self.info();
        let (files, bytes) = (
            info.files.saturating_sub(info.files_here),
            info.bytes.saturating_sub(info.bytes_here),
        );
        let what = super::word::count(files, "file");
        (files > 0).then(|| {
            format!(
                "{what} ({bytes} bytes) as checkpoint {} of the remote {} has them are not kept here: \
                 what shows them reads them there",
                info.checkpoint, info.remote
            )
        })
    }
    /// Nothing is brought any more; whoever waits for it gets EIO.
    fn end(&self);
}

/// The variable of the environment in which a daemon, and nobody else, has the password of a remote
/// that somebody has typed.
pub const TYPED_PASSWORD: &str = "CKPTFS_TYPED_PASSWORD";

/// See [`Config`](super::Config).
#[derive(Clone)]
pub struct ServedOrigin(pub Arc<dyn Origin>);

impl fmt::Debug for ServedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.info().fmt(f)
    }
}
