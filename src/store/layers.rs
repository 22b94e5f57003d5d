//! The layers: captured versions as plain files, in a directory for each epoch.
//!
//! The file name encodes the slot and origin, the directory the epoch of the capture. The inode has
//! the rest: a moved inode (`.m`) *is* the old inode, with its mode, owner, times and extended
//! attributes; a clone (`.c`) has the data.
//!
//! Invariants:
//! - a serial is used once in an epoch and mount, and after a mount only serials above all existing
//!   ones are used: a new object never takes the name of another;
//! - an existing object is written only by its creator, before the journal records it;
//! - a file whose name is not that of an object is foreign, and never touched.
//!
//! Locking: `epochs` is read-locked for look-ups, and write-locked while a directory is created
//! (from the reserve if necessary), opened or removed. An epoch's `next` is locked while its
//! directory is listed, once. Neither is taken under the other. Objects need no lock: each has one
//! creator. Creations, moves and removals are durable after the journal's next sync if the
//! filesystem orders metadata (xfs, btrfs, ext4); nothing here calls fsync(2).
//!
//! ```text
//! layers/<epoch>/objects/<slot>-<serial>.c     data cloned or copied from a live file; mode 0600
//! layers/<epoch>/objects/<slot>-<serial>.m     the inode itself, moved here when it lost its last name; any type
//! ```
//! All three numbers are decimal without leading zeros.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::at;
use super::error::{StoreError, StoreResult};
use super::hash::{Hash, HashPool, hash_file};
use super::ids::{ObjectId, ObjectOrigin, Slot};
use super::layout::Layout;
use super::reserve::Reserve;
use ckptfs_api::Epoch;
use ckptfs_sys::lock::{Mutex, Rank, RwLock};
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

/// The directory in the store for objects set aside.
const ASIDE: &str = "aside";
/// Maximum number of open directories.
const OPEN_EPOCHS_MAX: usize = 64;

/// Returns the file name of an object in its epoch's directory.
pub fn file_name(id: ObjectId) -> String {
    let suffix = match id.origin {
        ObjectOrigin::Cloned => 'c',
        ObjectOrigin::Moved => 'm',
    };
    format!("{}-{}.{suffix}", id.slot.0, id.serial)
}

/// Parses a file name in an epoch's directory; `None` if it is not that of an object.
pub fn parse_name(epoch: Epoch, name: &[u8]) -> Option<ObjectId> {
    let text = std::str::from_utf8(name).ok()?;
    let (numbers, suffix) = text.rsplit_once('.')?;
    let (slot, serial) = numbers.split_once('-')?;
    let origin = match suffix {
        "c" => ObjectOrigin::Cloned,
        "m" => ObjectOrigin::Moved,
        _ => return None,
    };
    let id = ObjectId {
        epoch,
        slot: Slot(slot.parse().ok()?),
        serial: serial.parse().ok()?,
        origin,
    };
    // Only the canonical spelling: no leading zeros, no plus sign.
    (file_name(id) == text).then_some(id)
}

struct EpochDir {
    objects: Arc<OwnedFd>,
    /// The next serial; above `u32::MAX` when all are used up. `None` until the directory is
    /// listed, which only the open epoch needs.
    next: Mutex<Option<u64>>,
}

/// The layers of an open store. Shared by reference between threads.
pub struct Layers {
    dir: OwnedFd,
    read_only: bool,
    reserve: Option<Arc<Reserve>>,
    epochs: RwLock<BTreeMap<Epoch, Arc<EpochDir>>>,
}

impl Layers {
    /// Returns the layers of a store without reading them.
    pub fn new(layout: &Layout) -> StoreResult<Layers> {
        let dir = layout
            .layers_dir()
            .try_clone_to_owned()
            .map_err(StoreError::io("open", "layers"))?;
        Ok(Layers {
            dir,
            read_only: layout.read_only(),
            reserve: None,
            epochs: RwLock::ranked(Rank::Layers, BTreeMap::new()),
        })
    }

    /// Sets the reserve to use when the filesystem is full.
    pub fn with_reserve(self, reserve: Arc<Reserve>) -> Layers {
        Layers {
            reserve: Some(reserve),
            ..self
        }
    }

    /// Returns an unused name for a new object. Creates only the epoch's directory; an unused name
    /// is lost without harm.
    ///
    /// Errors: `SerialsUsedUp`; `Io` if the directory cannot be created, or, the first time in an
    /// epoch that began earlier, cannot be listed.
    pub fn next_object(
        &self,
        epoch: Epoch,
        slot: Slot,
        origin: ObjectOrigin,
    ) -> StoreResult<ObjectId> {
        let dir = self.epoch(epoch, true)?;
        let mut next = dir.next.lock();
        let serial = match *next {
            Some(serial) => serial,
            None => list_in(&dir.objects, epoch)?
                .iter()
                .map(|id| u64::from(id.serial) + 1)
                .max()
                .unwrap_or(0),
        };
        *next = Some(serial.saturating_add(1));
        let serial = u32::try_from(serial).map_err(|_| StoreError::SerialsUsedUp(epoch))?;
        Ok(ObjectId {
            epoch,
            slot,
            serial,
            origin,
        })
    }

    /// Returns the directory of an epoch's objects, and creates it if missing.
    pub fn dir(&self, epoch: Epoch) -> StoreResult<Arc<OwnedFd>> {
        Ok(self.epoch(epoch, true)?.objects.clone())
    }

    /// Returns the location of an object, for renameat(2) and similar calls, and creates the
    /// directory if missing.
    pub fn location(&self, id: ObjectId) -> StoreResult<(Arc<OwnedFd>, String)> {
        Ok((self.dir(id.epoch)?, file_name(id)))
    }

    /// Creates the empty file of a new object with mode 0600, open for reading and writing;
    /// `EEXIST` if it exists.
    pub fn create(&self, id: ObjectId) -> StoreResult<File> {
        let (dir, name) = self.location(id)?;
        at::open_file(&*dir, &name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
            .map_err(StoreError::io("create the object", name))
    }

    /// Opens an object's data for reading. An object that is not a regular file is not opened,
    /// because opening a device has side effects.
    ///
    /// Errors: `NotAFile`; `Io` with ENOENT if it does not exist, with EACCES if it was moved,
    /// belongs to another user, and has a mode that denies access.
    pub fn open(&self, id: ObjectId) -> StoreResult<File> {
        let (dir, name) = (self.epoch(id.epoch, false)?, file_name(id));
        let stat = sys::stat_at(&dir.objects, name.as_bytes())
            .map_err(StoreError::io("stat the object", &name))?;
        if stat.kind != Kind::File {
            return Err(StoreError::NotAFile(name));
        }
        let open = || at::open_file(&*dir.objects, &name, OFlags::RDONLY);
        let opened = match open() {
            // Moved with a mode that denies access to its owner, who is not root. A record has the
            // original mode.
            Err(error)
                if error.kind() == std::io::ErrorKind::PermissionDenied
                    && sys::open_path_at(&dir.objects, name.as_bytes())
                        .and_then(|fd| sys::chmod_fd(&fd, 0o400))
                        .is_ok() =>
            {
                open()
            }
            opened => opened,
        };
        opened.map_err(StoreError::io("open the object", name))
    }

    /// Returns the attributes of an object; `None` if it does not exist.
    pub fn stat(&self, id: ObjectId) -> StoreResult<Option<ckptfs_sys::Stat>> {
        let dir = match self.epoch(id.epoch, false) {
            Ok(dir) => dir,
            Err(error) if error.errno() == ckptfs_sys::Errno::ENOENT => return Ok(None),
            Err(error) => return Err(error),
        };
        match ckptfs_sys::stat_at(&*dir.objects, file_name(id).as_bytes()) {
            Ok(stat) => Ok(Some(stat)),
            Err(ckptfs_sys::Errno::ENOENT) => Ok(None),
            Err(errno) => Err(StoreError::io("stat the object", file_name(id))(
                std::io::Error::from_raw_os_error(errno.0),
            )),
        }
    }

    /// Returns size and hash (BLAKE3) of an object, read sequentially in blocks. `go_on` is called
    /// before each with its size; `false` ends the call with `None`. The pages read for it are
    /// dropped from the page cache.
    ///
    /// Errors: those of [`Layers::open`]; `Io` with EIO if the disk cannot read the data.
    pub fn hash(
        &self,
        id: ObjectId,
        go_on: impl FnMut(u64) -> bool,
    ) -> StoreResult<Option<(u64, Hash)>> {
        let found = hash_file(&self.open(id)?, &HashPool::default(), true, go_on);
        found.map_err(|errno| {
            StoreError::io("read the object", file_name(id))(std::io::Error::from_raw_os_error(
                errno.0,
            ))
        })
    }

    /// Moves an object to `.ckptfs/aside/<epoch>-<name>`, where nothing reads it and nothing is
    /// lost.
    pub fn set_aside(&self, id: ObjectId, store: impl AsFd) -> StoreResult<()> {
        let failed = || StoreError::io("set aside the object", file_name(id));
        let dir = self.epoch(id.epoch, false)?;
        at::make_dir(&store, ASIDE).map_err(failed())?;
        let aside = at::open_dir(&store, ASIDE).map_err(failed())?;
        let name = format!("{}-{}", id.epoch.0, file_name(id));
        rustix::fs::renameat(&dir.objects, file_name(id), &aside, name)
            .map_err(|errno| failed()(errno.into()))
    }

    /// Returns the names in an epoch's directory that are not those of objects.
    pub fn foreign(&self, epoch: Epoch) -> StoreResult<Vec<Vec<u8>>> {
        let dir = self.epoch(epoch, false)?;
        let mut names = at::names(&dir.objects)
            .map_err(StoreError::io("list the layer", epoch.0.to_string()))?;
        names.retain(|name| parse_name(epoch, name).is_none());
        names.sort();
        Ok(names)
    }

    /// Returns the free bytes of the filesystem available to the daemon's user.
    pub fn free_bytes(&self) -> StoreResult<u64> {
        let info = ckptfs_sys::statfs_fd(&self.dir);
        let info = info.map_err(|errno| {
            StoreError::io("ask for the space of", "layers")(std::io::Error::from_raw_os_error(
                errno.0,
            ))
        })?;
        Ok(info.bavail.saturating_mul(u64::from(info.frsize)))
    }

    /// Removes an object of any type; a directory must be empty. `ENOENT` if it does not exist.
    pub fn remove(&self, id: ObjectId) -> StoreResult<()> {
        let (dir, name) = (self.epoch(id.epoch, false)?, file_name(id));
        let removed = match sys::unlink_at(&dir.objects, name.as_bytes()) {
            // For a directory Linux returns EISDIR, POSIX EPERM.
            Err(Errno::EISDIR | Errno::EPERM) => sys::rmdir_at(&dir.objects, name.as_bytes()),
            result => result,
        };
        removed.map_err(StoreError::io("remove the object", name))
    }

    /// Returns whether an object exists.
    pub fn exists(&self, id: ObjectId) -> StoreResult<bool> {
        let dir = match self.epoch(id.epoch, false) {
            Ok(dir) => dir,
            Err(error) if error.errno() == Errno::ENOENT => return Ok(false),
            Err(error) => return Err(error),
        };
        let name = file_name(id);
        match sys::stat_at(&dir.objects, name.as_bytes()) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(StoreError::io("stat the object", name)(error)),
        }
    }

    /// Returns the objects of an epoch in order; none without a directory.
    pub fn list(&self, epoch: Epoch) -> StoreResult<Vec<ObjectId>> {
        let dir = match self.epoch(epoch, false) {
            Ok(dir) => dir,
            Err(error) if error.errno() == Errno::ENOENT => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        list_in(&dir.objects, epoch)
    }

    /// Returns the epochs that have a directory, in order.
    pub fn epochs(&self) -> StoreResult<Vec<Epoch>> {
        let names = at::names(&self.dir).map_err(StoreError::io("list", "layers"))?;
        let parse = |name: Vec<u8>| {
            let text = String::from_utf8(name).ok()?;
            let number: u64 = text.parse().ok()?;
            (number.to_string() == text).then_some(Epoch(number))
        };
        let mut epochs: Vec<_> = names.into_iter().filter_map(parse).collect();
        epochs.sort_unstable();
        Ok(epochs)
    }

    /// Removes the directory of an epoch if it is empty. Returns whether it no longer exists. The
    /// caller ensures that no object is created there concurrently.
    pub fn remove_epoch_if_empty(&self, epoch: Epoch) -> StoreResult<bool> {
        let name = epoch.0.to_string();
        let failed = || StoreError::io("remove the layer", &name);
        let outer = match at::open_dir(&self.dir, &name) {
            Ok(outer) => outer,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(failed()(error)),
        };
        for (parent, name) in [(&outer, "objects"), (&self.dir, name.as_str())] {
            match sys::rmdir_at(parent, name.as_bytes()) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(false),
                Err(errno) => return Err(failed()(errno.into())),
            }
            // The cached directory is stale from here on. The lock is not taken earlier: every
            // capture needs it, and removals may take long.
            self.epochs.write().remove(&epoch);
        }
        Ok(true)
    }

    fn epoch(&self, epoch: Epoch, make: bool) -> StoreResult<Arc<EpochDir>> {
        if let Some(dir) = self.epochs.read().get(&epoch) {
            return Ok(dir.clone());
        }
        let mut epochs = self.epochs.write();
        if let Some(dir) = epochs.get(&epoch) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(self.open_epoch(epoch, make && !self.read_only)?);
        while epochs.len() >= OPEN_EPOCHS_MAX {
            // The newest is the one being written, and its serials are counted here.
            epochs.pop_first();
        }
        epochs.insert(epoch, dir.clone());
        Ok(dir)
    }

    fn open_epoch(&self, epoch: Epoch, make: bool) -> StoreResult<EpochDir> {
        let name = epoch.0.to_string();
        let failed = |what| StoreError::io(what, format!("layers/{name}"));
        if make {
            self.make_epoch(&name).map_err(failed("make the layer"))?;
        }
        let outer = at::open_dir(&self.dir, &name).map_err(failed("open the layer"))?;
        let fresh = make
            && self
                .with_room(|| Ok(at::make_dir(&outer, "objects")?))
                .map_err(|errno| failed("make the layer")(errno.into()))?;
        let objects = at::open_dir(&outer, "objects").map_err(failed("open the layer"))?;
        Ok(EpochDir {
            objects: Arc::new(objects),
            next: Mutex::new(fresh.then_some(0)),
        })
    }
}

impl Layers {
    fn make_epoch(&self, name: &str) -> std::io::Result<()> {
        let is_full = |error: &std::io::Error| error.raw_os_error() == Some(Errno::ENOSPC.0);
        match (at::make_dir(&self.dir, name), &self.reserve) {
            (Err(error), Some(reserve)) if is_full(&error) => {
                if !reserve
                    .take_layer(&self.dir, name.as_bytes())
                    .unwrap_or(false)
                {
                    self.with_room(|| Ok(at::make_dir(&self.dir, name)?))?;
                }
                Ok(())
            }
            (made, _) => made.map(drop),
        }
    }

    fn with_room<T>(&self, mut call: impl FnMut() -> SysResult<T>) -> SysResult<T> {
        match &self.reserve {
            Some(reserve) => reserve.with_room(call, |errno| *errno),
            None => call(),
        }
    }
}

fn list_in(objects: &OwnedFd, epoch: Epoch) -> StoreResult<Vec<ObjectId>> {
    let names =
        at::names(objects).map_err(StoreError::io("list the layer", epoch.0.to_string()))?;
    let mut ids: Vec<_> = names
        .iter()
        .filter_map(|name| parse_name(epoch, name))
        .collect();
    ids.sort_unstable();
    Ok(ids)
}

impl std::fmt::Debug for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layers")
            .field("open", &self.epochs.read().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
