//! A writable store of a mounted tree, whose mount shows it read-only.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use ckptfs_api::Client;

/// The directory of a store.
pub struct OpenStore(OwnedFd);

impl OpenStore {
    /// Opens the store of the tree that is mounted at `root`.
    pub fn of(root: &Path) -> OpenStore {
        let link = File::open(root.join(".ckptfs")).expect("the store exists");
        let mut client = Client::connect(link).expect("the daemon answers");
        OpenStore(client.open_store().expect("the daemon opens its store"))
    }

    /// Returns the path of a file in it, valid in this process during the lifetime of this value.
    pub fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }

    /// Writes its configuration.
    pub fn configure(&self, text: &str) {
        fs::write(self.file("ckptfs.toml"), text).expect("the store is writable");
    }
}
