//! The environment of all parts of the engine: configuration, the store's directory and settings,
//! the kernel's caches, and warnings.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::config::EffectiveConfig;
use super::counts::RequestCounts;
use super::place::ServedPaths;
use super::request::Caches;
use super::request::NodeId;
use super::settings::{Settings, StoreFile};
use super::upkeep::Upkeep;
use ckptfs_store::ids::Slot;
use ckptfs_store::layout::STORE_NAME;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, Stat};

/// See the module.
pub(super) struct ServingEnv {
    pub(super) config: EffectiveConfig,
    /// The backing directory, which contains the store.
    pub(super) root: OwnedFd,
    pub(super) store_dir: OwnedFd,
    /// Target of the link `.ckptfs` in the mount: the store, in a read-only copy of its mount.
    /// Unset where the system does not permit such a copy.
    pub(super) store_view: OnceLock<OwnedFd>,
    /// Interface to the kernel's caches. Unset before the mount.
    pub(super) caches: OnceLock<Arc<dyn Caches>>,
    pub(super) place: ServedPaths,
    pub(super) counts: Arc<RequestCounts>,
    /// The store's configuration file.
    pub(super) store_file: StoreFile,
    /// The parent of a branch: its file applies to keys not set in the branch's own.
    pub(super) inherits: Option<Arc<ServingEnv>>,
    pub(super) warnings: Mutex<Vec<String>>,
    pub(super) upkeep: Upkeep,
}

impl ServingEnv {
    /// Logs a warning, and adds it to `status`.
    pub(super) fn warn(&self, warning: String) {
        tracing::warn!(warning);
        self.warnings.lock().push(warning);
    }

    /// Returns the settings of the store's configuration file, with those that a branch inherits.
    pub(super) fn settings(&self) -> Settings {
        let own = self.store_file.look(&self.store_dir).0;
        match &self.inherits {
            Some(parent) => own.or(parent.settings().inherited()),
            None => own,
        }
    }

    /// Returns the name of the snapshot directory.
    pub(super) fn snapdir_name(&self) -> &[u8] {
        self.config.snapdir_name.as_bytes()
    }

    /// Opens the target of the link in the mount.
    pub(super) fn open_store_view(&self) {
        // The kernel reports paths in the copy relative to its root. A program that resolves the
        // link itself (realpath(3)) and writes there gets ENOENT for `/.ckptfs`, but would not for
        // `/`. A directory that another user put in place of the store is rejected.
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

    /// Returns the target of the link `.ckptfs`.
    pub(super) fn store_target(&self) -> &OwnedFd {
        self.store_view.get().unwrap_or(&self.store_dir)
    }

    /// Returns whether a process can look up the link. A link to the store itself is hidden from
    /// other programs: unpacking an archive over the tree would overwrite the history.
    pub(super) fn shows_store_to(&self, pid: u32) -> bool {
        self.store_view.get().is_some() || sys::runs_our_program(pid)
    }

    /// Returns whether a name in the root directory is reserved.
    pub(super) fn is_reserved(&self, parent: NodeId, name: &[u8]) -> bool {
        parent == NodeId(Slot::ROOT.0)
            && (name == self.snapdir_name() || name == STORE_NAME.as_bytes())
    }

    /// Invalidates the attributes in the kernel, which never blocks. Needed in two cases. A write
    /// cleared set-id bits, which the kernel delegates (`HANDLE_KILLPRIV_V2`): after its own writes
    /// it refreshes times and size, but not the mode. Or a new file may be mapped, and stores
    /// change its times.
    pub(super) fn attributes_changed(&self, node: NodeId) {
        if let Some(caches) = self.caches.get() {
            caches.forget_attributes(node);
        }
    }
}
