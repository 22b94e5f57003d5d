//! A tree whose content is in a remote: names and attributes were read at its creation, and content
//! is fetched on open.

use std::fmt;
use std::sync::Arc;

use crate::history::present::LiveTree;
use ckptfs_api::OriginInfo;

/// The lower layer of such a tree. Immutable.
pub trait RemoteLayer: LiveTree {
    /// Returns how much of it is cached, and why the rest is unavailable.
    fn info(&self) -> OriginInfo;
    /// The tree is served: fetching may begin.
    fn begin(&self);
    /// Returns a message about content that is not cached; `None` if all is.
    fn elsewhere(&self) -> Option<String> {
        let info = self.info();
        let (files, bytes) = (
            info.files.saturating_sub(info.files_here),
            info.bytes.saturating_sub(info.bytes_here),
        );
        let what = ckptfs_api::display::count(files, "file");
        (files > 0).then(|| {
            format!(
                "{what} ({bytes} bytes) as checkpoint {} of the remote {} has them are not kept here: \
                 what shows them reads them there",
                info.checkpoint, info.remote
            )
        })
    }
    /// Stops fetching; waiting readers get EIO.
    fn end(&self);
}

/// Environment variable that passes a typed password of a remote to the daemon only.
pub const TYPED_PASSWORD: &str = "CKPTFS_TYPED_PASSWORD";

/// See [`Config`](super::Config).
#[derive(Clone)]
pub struct ServedOrigin(pub Arc<dyn RemoteLayer>);

impl fmt::Debug for ServedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.info().fmt(f)
    }
}
