//! The registry of volumes: their records and locks.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::dirs::Dirs;
use super::files::{remove_file, sync_parent};
use super::history::VolumeHistory;
use super::mount_facts::{self, VolumePlace};
use super::name;
use super::record::VolumeRecord;
use ckptfs_api::{Code, ErrorContext, VerbError, VerbResult, hinted};
use ckptfs_sys as sys;

/// How long to wait for the lock of a volume, and the pause between attempts.
const LOCK_PATIENCE: Duration = Duration::from_secs(100);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The volumes of a pool.
#[derive(Clone, Debug)]
pub struct Registry {
    dirs: Dirs,
}

/// The lock of a volume, held exclusively.
pub(super) struct VolumeLock {
    file: File,
    path: PathBuf,
}

impl VolumeLock {
    /// Returns the lock file, which the holder may write to.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Removes the lock file, with the volume.
    pub(super) fn forget(self) {
        // A remaining lock file is empty and harmless.
        let _ = fs::remove_file(&self.path);
        drop(self.file);
    }
}

impl Registry {
    pub(super) fn new(dirs: Dirs) -> Registry {
        Registry { dirs }
    }

    pub(super) fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// Returns the directory of the pool.
    pub fn root(&self) -> &Path {
        self.dirs.root()
    }

    /// Returns a volume.
    ///
    /// # Errors
    /// `no-such-volume`.
    pub fn get(&self, name: &str) -> VerbResult<VolumeRecord> {
        name::check(name)?;
        self.known(name)?.ok_or_else(|| no_such(name))
    }

    /// Returns a volume by name, unless it is being removed.
    pub(super) fn known(&self, name: &str) -> VerbResult<Option<VolumeRecord>> {
        Ok(self.load(name)?.filter(|record| !record.removing))
    }

    /// Returns the record of a volume.
    pub(super) fn load(&self, name: &str) -> VerbResult<Option<VolumeRecord>> {
        VolumeRecord::load(&self.dirs.meta(name))
    }

    pub(super) fn save(&self, record: &VolumeRecord) -> VerbResult<()> {
        record.save(&self.dirs.meta(&record.name))
    }

    /// Removes the record, sizes and lock of a removed volume.
    pub(super) fn forget(&self, name: &str, locked: VolumeLock) -> VerbResult<()> {
        // Remaining sizes are ignored without a volume, and overwritten by the next one of this
        // name.
        let _ = fs::remove_file(self.dirs.sizes(name));
        let meta = self.dirs.meta(name);
        if remove_file(&meta)? {
            sync_parent(&meta).on(meta.display())?;
        }
        locked.forget();
        Ok(())
    }

    /// Returns all volumes, sorted by name. Unreadable ones are logged and omitted.
    ///
    /// # Errors
    /// The pool cannot be read.
    pub fn list(&self) -> VerbResult<Vec<VolumeRecord>> {
        let records = self.dirs.names()?.into_iter().filter_map(|name| {
            self.known(&name).unwrap_or_else(|error| {
                tracing::warn!(%name, error = error.message, "a volume cannot be read");
                None
            })
        });
        Ok(records.collect())
    }

    /// Changes a record under its lock.
    pub(super) fn change<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut VolumeRecord) -> VerbResult<T>,
    ) -> VerbResult<T> {
        let _locked = self.lock(name)?;
        let mut record = self.get(name)?;
        let changed = change(&mut record)?;
        self.save(&record)?;
        Ok(changed)
    }

    /// Returns the location of a volume.
    ///
    /// # Errors
    /// The record has invalid options.
    pub fn place(&self, record: &VolumeRecord) -> VerbResult<VolumePlace> {
        Ok(self.dirs.place(record, &record.parsed()?))
    }

    /// Returns the mount point of a volume, if mounted: its own, or where it is staged.
    ///
    /// # Errors
    /// The mount table cannot be read.
    pub fn mountpoint(&self, record: &VolumeRecord) -> VerbResult<Option<PathBuf>> {
        let place = self.place(record)?;
        let table = mount_facts::table()?;
        let found = mount_facts::shown(&table, &place).into_iter().next();
        Ok(found.map(|mount| mount.at.clone()))
    }

    /// Returns the history of a volume.
    ///
    /// # Errors
    /// The record has invalid options.
    pub fn history(&self, record: &VolumeRecord) -> VerbResult<VolumeHistory> {
        Ok(VolumeHistory::new(&record.name, self.place(record)?))
    }

    pub(super) fn lock(&self, name: &str) -> VerbResult<VolumeLock> {
        let started = Instant::now();
        while started.elapsed() < LOCK_PATIENCE {
            if let Some(locked) = self.try_lock(name)? {
                return Ok(locked);
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Err(hinted(
            Code::Busy,
            format!("another operation on volume {name} is in progress"),
            "try again later",
        ))
    }

    pub(super) fn try_lock(&self, name: &str) -> VerbResult<Option<VolumeLock>> {
        let path = self.dirs.lock(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .on(path.display())?;
        if !sys::flock_exclusive(&file).on(path.display())? {
            return Ok(None);
        }
        // The removal of a volume also removes its lock file; a lock on that file is void.
        let same = fs::metadata(&path)
            .is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
        Ok(same.then_some(VolumeLock { file, path }))
    }

    /// Calls `work` under an exclusive lock named `thing`.
    ///
    /// # Errors
    /// `busy`; those of `work`.
    pub fn alone<T>(&self, thing: &str, work: impl FnOnce() -> VerbResult<T>) -> VerbResult<T> {
        let locked = self.lock(&format!(".alone-{}", name::key(thing)))?;
        let done = work();
        locked.forget();
        done
    }
}

pub(super) fn no_such(name: &str) -> VerbError {
    hinted(
        Code::NoSuchVolume,
        format!("no such volume: {name}"),
        "ckptfs volumes ls",
    )
}
