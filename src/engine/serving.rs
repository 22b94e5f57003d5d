//! What every part of the engine needs besides the live tree: how it is served, the store's
//! directory and settings, the kernel's caches, and what somebody should know.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::config::Served;
use super::counts::RequestCounts;
use super::request::Caches;
use super::request::NodeId;
use super::settings::{Settings, StoreFile};
use crate::sys::lock::Mutex;

/// See the module.
pub(super) struct Serving {
    pub(super) config: Served,
    /// The backing directory, which has the store.
    pub(super) root: OwnedFd,
    pub(super) store_dir: OwnedFd,
    /// How to make the kernel forget. Not there before the mount is.
    pub(super) caches: OnceLock<Arc<dyn Caches>>,
    pub(super) counts: Arc<RequestCounts>,
    /// The store's configuration file.
    pub(super) store_file: StoreFile,
    pub(super) warnings: Mutex<Vec<String>>,
}

impl Serving {
    /// Something that somebody should know.
    pub(super) fn warn(&self, warning: String) {
        tracing::warn!(warning);
        self.warnings.lock().push(warning);
    }

    /// What the store's configuration file says now.
    pub(super) fn settings(&self) -> Settings {
        self.store_file.look(&self.store_dir).0
    }

    /// Attributes are other than the kernel may think: it forgets them, which waits for nothing. A
    /// write has cleared set-id bits, which it leaves to us (`HANDLE_KILLPRIV_V2`): after a write
    /// it asks for times and size anew, and for the mode only if something else made it. Or a new
    /// file may be mapped, and stores change its times.
    pub(super) fn attributes_changed(&self, node: NodeId) {
        if let Some(caches) = self.caches.get() {
            caches.forget_attributes(node);
        }
    }
}
