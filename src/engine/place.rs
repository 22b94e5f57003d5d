//! The place of a tree. A directory above it can be renamed while it is mounted, and a bind of the
//! mount can take its place, so the mount is remembered by its device, and the backing directory by
//! its descriptor. The paths of the start remain in the source of the mount, by which requests name
//! the tree.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::request::NOTE_CONNECTION;
use crate::sys::lock::Mutex;
use crate::sys::{self, Ledger, MountPoint, SysResult};

/// See the module.
pub struct Place {
    mount: Arc<KnownMount>,
    root: OwnedFd,
}

/// The mount of a tree, which is found again in the table.
#[derive(Debug)]
pub struct KnownMount {
    /// The paths of the start.
    at: PathBuf,
    backing: PathBuf,
    /// The number of the mount that was found last, and its device.
    mounted_as: Mutex<Option<(u64, u64)>>,
}

impl Place {
    /// Of a tree that is not mounted yet; `root`: its backing directory.
    ///
    /// # Errors
    /// EMFILE.
    pub(super) fn new(mount: &Path, backing: &Path, root: &OwnedFd) -> SysResult<Place> {
        let mount = KnownMount {
            at: mount.to_owned(),
            backing: backing.to_owned(),
            mounted_as: Mutex::new(None),
        };
        Ok(Place {
            mount: Arc::new(mount),
            root: root.try_clone()?,
        })
    }

    /// Its mount, for those who outlive the engine.
    pub fn known_mount(&self) -> &Arc<KnownMount> {
        &self.mount
    }

    /// Where it is mounted, or to be.
    pub fn mount(&self) -> PathBuf {
        let table = sys::mounts().unwrap_or_default();
        let found = self.mount.find(&table).map(|mount| mount.at.clone());
        found.unwrap_or_else(|| self.mount.at.clone())
    }

    /// Where the backing directory is.
    pub fn backing(&self) -> PathBuf {
        sys::path_of(&self.root).unwrap_or_else(|_| self.mount.backing.clone())
    }

    /// The number of the mount, and its device; `None`: it is not mounted, or in no table.
    pub fn mounted_as(&self) -> Option<(u64, u64)> {
        self.mount.mounted_as()
    }

    /// Looks for the mount in the table. A worker that took over has its device from the ledger: the
    /// path may have changed since the start.
    pub(super) fn find_mount(&self, ledger: Option<&Ledger>) {
        let noted = ledger.and_then(|ledger| ledger.noted(NOTE_CONNECTION).checked_sub(1));
        let table = sys::mounts().unwrap_or_default();
        let is_noted = |mount: &MountPoint| {
            noted.is_none_or(|minor| u64::from(sys::device_minor(mount.dev)) == minor)
        };
        let found = self.mount.find_where(&table, is_noted);
        // Without a note only the path says which mount it is.
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

impl KnownMount {
    /// Where it was mounted at the start.
    pub fn at_start(&self) -> &Path {
        &self.at
    }

    /// As [`Place::mounted_as`].
    pub fn mounted_as(&self) -> Option<(u64, u64)> {
        *self.mounted_as.lock()
    }

    /// The mount in a table; `None`: it is not there, or was never found.
    pub fn find<'a>(&self, table: &'a [MountPoint]) -> Option<&'a MountPoint> {
        let (_, dev) = self.mounted_as()?;
        let found = self.find_where(table, |mount| mount.dev == dev)?;
        *self.mounted_as.lock() = Some((found.id, dev));
        Some(found)
    }

    /// The mount on top at the path of the start, or else the oldest: the others are binds of it.
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
