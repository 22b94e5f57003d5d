//! Paths of a served tree. While it is mounted, a directory above it can be renamed, or a bind
//! mount can replace the original. The mount is therefore identified by its device, and the backing
//! directory by its descriptor. The source of the mount keeps the initial paths, by which requests
//! name the tree.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::request::NOTE_CONNECTION;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Ledger, MountPoint, SysResult};

/// See the module.
pub struct ServedPaths {
    mount: Arc<TrackedMount>,
    root: OwnedFd,
}

/// The mount of a tree, which can be found again in the mount table.
#[derive(Debug)]
pub struct TrackedMount {
    /// The initial paths.
    at: PathBuf,
    backing: PathBuf,
    /// Mount id as last found, and device.
    mounted_as: Mutex<Option<(u64, u64)>>,
}

impl ServedPaths {
    /// Creates the place of a tree not mounted yet; `root` is its backing directory.
    ///
    /// # Errors
    /// EMFILE.
    pub(super) fn new(mount: &Path, backing: &Path, root: &OwnedFd) -> SysResult<ServedPaths> {
        let mount = TrackedMount {
            at: mount.to_owned(),
            backing: backing.to_owned(),
            mounted_as: Mutex::new(None),
        };
        Ok(ServedPaths {
            mount: Arc::new(mount),
            root: root.try_clone()?,
        })
    }

    /// Returns its mount, for users that outlive the engine.
    pub fn known_mount(&self) -> &Arc<TrackedMount> {
        &self.mount
    }

    /// Returns the current or future mount point.
    pub fn mount(&self) -> PathBuf {
        let table = sys::mounts().unwrap_or_default();
        let found = self.mount.find(&table).map(|mount| mount.at.clone());
        found.unwrap_or_else(|| self.mount.at.clone())
    }

    /// Returns the current path of the backing directory.
    pub fn backing(&self) -> PathBuf {
        sys::path_of(&self.root).unwrap_or_else(|_| self.mount.backing.clone())
    }

    /// Returns mount id and device; `None` if it is not mounted, or in no mount table.
    pub fn mounted_as(&self) -> Option<(u64, u64)> {
        self.mount.mounted_as()
    }

    /// Finds the mount in the mount table. A worker after a takeover reads its device from the
    /// ledger, because the path may have changed.
    pub(super) fn find_mount(&self, ledger: Option<&Ledger>) {
        let noted = ledger.and_then(|ledger| ledger.noted(NOTE_CONNECTION).checked_sub(1));
        let table = sys::mounts().unwrap_or_default();
        let is_noted = |mount: &MountPoint| {
            noted.is_none_or(|minor| u64::from(sys::device_minor(mount.dev)) == minor)
        };
        let found = self.mount.find_where(&table, is_noted);
        // Without a ledger note only the path identifies the mount.
        let Some(mount) = found.filter(|mount| noted.is_some() || mount.at == self.mount.at) else {
            return;
        };
        *self.mount.mounted_as.lock() = Some((mount.id, mount.dev));
        if let (Some(ledger), None) = (ledger, noted) {
            let minor = u64::from(sys::device_minor(mount.dev));
            ledger.note(NOTE_CONNECTION, minor + 1);
        }
    }
}

impl TrackedMount {
    /// Returns the initial mount point.
    pub fn at_start(&self) -> &Path {
        &self.at
    }

    /// As [`ServedPaths::mounted_as`].
    pub fn mounted_as(&self) -> Option<(u64, u64)> {
        *self.mounted_as.lock()
    }

    /// Returns the mount in a table; `None` if it is missing or was never found.
    pub fn find<'a>(&self, table: &'a [MountPoint]) -> Option<&'a MountPoint> {
        let (_, dev) = self.mounted_as()?;
        let found = self.find_where(table, |mount| mount.dev == dev)?;
        *self.mounted_as.lock() = Some((found.id, dev));
        Some(found)
    }

    /// Returns the topmost mount at the initial path, or else the oldest: later ones are bind
    /// mounts of it.
    fn find_where<'a>(
        &self,
        table: &'a [MountPoint],
        wanted: impl Fn(&MountPoint) -> bool,
    ) -> Option<&'a MountPoint> {
        let whole = |mount: &&MountPoint| {
            mount.root == Path::new("/") && mount.serves(&self.backing) && wanted(mount)
        };
        let mut all = table.iter().filter(whole);
        let at_start = all.clone().rev().find(|mount| mount.at == self.at);
        at_start.or_else(|| all.next())
    }
}
