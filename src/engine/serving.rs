//! What every part of the engine needs besides the live tree: how it is served, the store's
//! directory and settings, the kernel's caches, and what somebody should know.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::config::Served;
use super::counts::RequestCounts;
use super::place::Place;
use super::request::Caches;
use super::request::NodeId;
use super::settings::{Settings, StoreFile};
use super::upkeep::Upkeep;
use crate::store::ids::Slot;
use crate::store::layout::STORE_NAME;
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Stat};

/// See the module.
pub(super) struct Serving {
    pub(super) config: Served,
    /// The backing directory, which has the store.
    pub(super) root: OwnedFd,
    pub(super) store_dir: OwnedFd,
    /// Target of the link `.ckptfs` in the mount: the store, in a read-only copy of the mount that
    /// it is on. Unset where the system makes no such copy for this process.
    pub(super) store_view: OnceLock<OwnedFd>,
    /// How to make the kernel forget. Not there before the mount is.
    pub(super) caches: OnceLock<Arc<dyn Caches>>,
    pub(super) place: Place,
    pub(super) counts: Arc<RequestCounts>,
    /// The store's configuration file.
    pub(super) store_file: StoreFile,
    /// The parent of a branch: its file counts for keys that the branch's own does not set.
    pub(super) inherits: Option<Arc<Serving>>,
    pub(super) warnings: Mutex<Vec<String>>,
    pub(super) upkeep: Upkeep,
}

impl Serving {
    /// Something that somebody should know.
    pub(super) fn warn(&self, warning: String) {
        tracing::warn!(warning);
        self.warnings.lock().push(warning);
    }

    /// The settings in the store's configuration file, and those that a branch inherits.
    pub(super) fn settings(&self) -> Settings {
        let own = self.store_file.look(&self.store_dir).0;
        match &self.inherits {
            Some(parent) => own.or(parent.settings().inherited()),
            None => own,
        }
    }

    /// The name of the snapshot directory.
    pub(super) fn snapdir_name(&self) -> &[u8] {
        self.config.snapdir_name.as_bytes()
    }

    /// Opens the store as the link in the mount shows it.
    pub(super) fn open_store_view(&self) {
        // The kernel shows paths in the copy from its top on. A program that resolves the link by
        // itself (realpath(3)) and writes there gets ENOENT with `/.ckptfs`, but not with `/`. A
        // directory that another user has put in the place of the store is refused.
        let below_root = || {
            let copy = sys::copy_read_only(&self.root)?;
            let store = sys::open_path_at(&copy, STORE_NAME.as_bytes())?;
            let number = |stat: Stat| (stat.dev, stat.ino);
            let is_it = number(sys::stat_fd(&store)?) == number(sys::stat_fd(&self.store_dir)?);
            is_it.then_some(store).ok_or(Errno::ESTALE)
        };
        match below_root().or_else(|_| sys::copy_read_only(&self.store_dir)) {
            Ok(store) => {
                let _ = self.store_view.set(store);
            }
            Err(error) => tracing::info!(
                %error,
                "no read-only copy of the mount can be made: `.ckptfs` is shown to ckptfs alone"
            ),
        }
    }

    /// Target of the link `.ckptfs`.
    pub(super) fn store_target(&self) -> &OwnedFd {
        self.store_view.get().unwrap_or(&self.store_dir)
    }

    /// Whether this process finds the link. Programs other than ours do not find one to the store
    /// itself: while it unpacks an archive over the tree, a program would overwrite the history.
    pub(super) fn shows_store_to(&self, pid: u32) -> bool {
        self.store_view.get().is_some() || sys::runs_our_program(pid)
    }

    /// Whether a name in the root directory is ours.
    pub(super) fn is_reserved(&self, parent: NodeId, name: &[u8]) -> bool {
        parent == NodeId(Slot::ROOT.0)
            && (name == self.snapdir_name() || name == STORE_NAME.as_bytes())
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
