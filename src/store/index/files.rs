//! The files of the index: opening sled without risk to the process, setting a bad index aside, and
//! syncing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::db::Db;
use crate::at;
use crate::error::{StoreError, StoreResult};
use crate::layout::Layout;
use ckptfs_sys as sys;
use ckptfs_sys::fault::{self, CallKind};

const NAME: &str = "index";
const ASIDE: &str = "index.bad-";
/// A new index that is to replace the current one. A leftover is deleted like an index set aside.
const NEW: &str = "index.bad-new";
/// Bytes of sled's cache; not a bound on its memory.
const CACHE_BYTES: u64 = 16 << 20;
/// Attempts to open, and the pause between them, while the last user in this process closes the
/// files.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// The location of the index.
pub(super) struct IndexDir {
    dir: OwnedFd,
    path: PathBuf,
}

/// Calls sled and converts its panics to errors: it panics on some damage instead of reporting it.
pub(super) fn guarded<T>(
    what: &'static str,
    call: impl FnOnce() -> StoreResult<T>,
) -> StoreResult<T> {
    fault::check(CallKind::Index).map_err(StoreError::io(what, NAME))?;
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(StoreError::IndexPanic { what }))
}

impl IndexDir {
    pub fn of(layout: &Layout) -> StoreResult<IndexDir> {
        if layout.read_only() {
            return Err(StoreError::ReadOnly);
        }
        let (dir, path) = layout.index_home()?;
        Ok(IndexDir { dir, path })
    }

    /// As [`IndexDir::of`], also for a store that is otherwise read-only.
    pub fn to_check(layout: &Layout) -> StoreResult<IndexDir> {
        let (dir, path) = layout.index_home()?;
        Ok(IndexDir { dir, path })
    }

    /// Returns whether an index exists.
    pub fn exists(&self) -> StoreResult<bool> {
        match at::is_dir(&self.dir, NAME.as_bytes()) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(StoreError::io("stat", NAME)(error)),
        }
    }

    /// Opens the database and creates it if missing. The directory may contain no links and no
    /// special files: sled opens by path, follows symbolic links, and would block forever on a
    /// FIFO.
    pub fn open(&self) -> StoreResult<Db> {
        at::make_dir(&self.dir, NAME).map_err(StoreError::io("make", NAME))?;
        self.check_files()?;
        let mut tries = 0;
        loop {
            match guarded("open", || Ok(self.config().open()?)) {
                Err(StoreError::Index(sled::Error::Io(error)))
                    if is_lock(&error) && tries < LOCK_TRIES =>
                {
                    tries += 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                Ok(db) => {
                    self.restrict_files();
                    return Ok(Db::Disk(db));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Restricts file modes: sled creates files under the daemon's umask, which clears no bits.
    fn restrict_files(&self) {
        let restrict = || -> io::Result<()> {
            let dir = at::open_dir(&self.dir, NAME)?;
            at::names(&dir)?
                .iter()
                .try_for_each(|name| at::restrict(&dir, name))?;
            self.each_file(at::restrict)
        };
        if let Err(error) = restrict() {
            tracing::warn!(%error, "the modes of the index's files cannot be set");
        }
    }

    /// Calls `call` for each file of the database and of its direct subdirectories.
    fn each_file(&self, mut call: impl FnMut(&OwnedFd, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let dir = at::open_dir(&self.dir, NAME)?;
        for name in at::names(&dir)? {
            if !at::is_dir(&dir, &name)? {
                call(&dir, &name)?;
                continue;
            }
            let below = at::open_dir(&dir, std::str::from_utf8(&name).map_err(|_| Errno::INVAL)?)?;
            at::names(&below)?
                .iter()
                .try_for_each(|name| call(&below, name))?;
        }
        Ok(())
    }

    /// Writes a copy of the database, which is closed on return.
    pub fn copy(&self, db: &sled::Db) -> StoreResult<()> {
        at::remove_tree(&self.dir, NEW.as_bytes())
            .map_err(StoreError::io("remove an old", NAME))?;
        let new = self.config().path(self.path.join(NEW)).open()?;
        new.import(db.export());
        new.flush()?;
        drop(new);
        let sync = || sync_files(&at::open_dir(&self.dir, NEW)?);
        sync().map_err(StoreError::io("sync", NAME))
    }

    /// Returns whether the database has values in separate files.
    pub fn has_blobs(&self) -> StoreResult<bool> {
        let names = at::open_dir(&self.dir, NAME)
            .and_then(|dir| at::open_dir(&dir, "blobs"))
            .and_then(at::names);
        match names {
            Ok(names) => Ok(!names.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(StoreError::io("list the blobs of", NAME)(error)),
        }
    }

    /// Removes an unfinished copy.
    pub fn discard_copy(&self) {
        self.remove(NEW);
    }

    /// Replaces the index by the copy, and moves its runs there. The copy must be closed; readers
    /// may continue on the old index, whose files are open. Not durable on return.
    pub fn replace(&self) -> StoreResult<()> {
        let runs = || {
            at::move_to(
                at::open_dir(&self.dir, NAME)?,
                super::runs::NAME,
                at::open_dir(&self.dir, NEW)?,
            )
        };
        runs().map_err(StoreError::io("move the runs of", NAME))?;
        self.set_aside()?;
        at::rename(self.dir.as_fd(), NEW, NAME).map_err(StoreError::io("replace", NAME))
    }

    /// Removes an unfinished index for which the disk has no space.
    pub fn discard(&self) {
        self.remove(NAME);
    }

    fn remove(&self, name: &str) {
        if let Err(error) = at::remove_tree(&self.dir, name.as_bytes()) {
            tracing::debug!(%error, "what was begun of an index cannot be removed");
        }
    }

    /// Rejects a database that contains anything except regular files of its own and one level of
    /// directories.
    fn check_files(&self) -> StoreResult<()> {
        self.each_file(|dir, name| at::check_own_file(dir, name))
            .map_err(StoreError::io("trust", NAME))
    }

    /// Disables sled's periodic flush: it reaches no disk, and its thread would fail unnoticed.
    fn config(&self) -> sled::Config {
        sled::Config::new()
            .path(self.path.join(NAME))
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None)
            .print_profile_on_drop(false)
    }

    /// Opens the directory of the runs and creates it if missing.
    pub fn runs(&self) -> StoreResult<OwnedFd> {
        let open = || {
            let dir = at::open_dir(&self.dir, NAME)?;
            at::make_dir(&dir, super::runs::NAME)?;
            at::open_dir(&dir, super::runs::NAME)
        };
        open().map_err(StoreError::io("open the runs of", NAME))
    }

    /// Renames a bad index. The database must be closed.
    pub fn set_aside(&self) -> StoreResult<()> {
        let taken = self.asides()?;
        let number = (1u64..)
            .find(|number| !taken.contains(&aside_name(*number)))
            .unwrap_or(0);
        match rustix::fs::renameat(&self.dir, NAME, &self.dir, aside_name(number)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(StoreError::io("set aside", NAME)(error)),
        }
    }

    /// Deletes the indexes that were set aside.
    pub fn delete_asides(&self) -> StoreResult<()> {
        for name in self.asides()? {
            at::remove_tree(&self.dir, &name).map_err(StoreError::io("remove an old", NAME))?;
        }
        Ok(())
    }

    fn asides(&self) -> StoreResult<Vec<Vec<u8>>> {
        let names = at::names(&self.dir).map_err(StoreError::io("list the place of", NAME))?;
        Ok(names
            .into_iter()
            .filter(|name| name.starts_with(ASIDE.as_bytes()))
            .collect())
    }

    /// Syncs every file of the database and its directories, because sled does not call fsync(2) on
    /// them all.
    pub fn sync(&self) -> StoreResult<()> {
        self.restrict_files();
        let sync = || -> io::Result<()> {
            let dir = at::open_dir(&self.dir, NAME)?;
            sync_files(&dir)?;
            for below in ["blobs", super::runs::NAME] {
                match at::open_dir(&dir, below) {
                    Ok(below) => sync_files(&below)?,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            at::sync_dir(&self.dir)
        };
        sync().map_err(StoreError::io("sync", NAME))
    }
}

fn sync_files(dir: &OwnedFd) -> io::Result<()> {
    for name in at::names(dir)? {
        if at::is_dir(dir, &name)? {
            continue;
        }
        // sled removes old snapshots concurrently; a missing one does no harm.
        let file = match rustix::fs::openat(
            dir.as_fd(),
            name,
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        ) {
            Ok(file) => file,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        sys::fsync(file)?;
    }
    at::sync_dir(dir)
}

fn aside_name(number: u64) -> Vec<u8> {
    format!("{ASIDE}{number}").into_bytes()
}

/// Returns whether this is sled's error for a lock that another user holds.
fn is_lock(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || error.to_string().contains("could not acquire lock")
}
