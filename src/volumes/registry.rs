//! Which volumes there are: their records, and who works on one.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::dirs::Dirs;
use super::error::{On, hinted};
use super::facts::{self, Place};
use super::files::{remove_file, sync_parent};
use super::history::VolumeHistory;
use super::name;
use super::record::Record;
use crate::engine::api::{Code, VerbError, VerbResult};
use crate::sys;

/// How long somebody else's work on a volume is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(100);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The volumes of a pool.
#[derive(Clone, Debug)]
pub struct Registry {
    dirs: Dirs,
}

/// A volume that nobody else works on meanwhile.
pub(super) struct Locked {
    file: File,
    path: PathBuf,
}

impl Locked {
    /// What is locked: a file that whoever has it may write to.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The volume is gone, and its lock with it.
    pub(super) fn forget(self) {
        // One that is left is an empty file.
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

    /// The directory of the pool.
    pub fn root(&self) -> &Path {
        self.dirs.root()
    }

    /// A volume.
    ///
    /// # Errors
    /// `no-such-volume`.
    pub fn get(&self, name: &str) -> VerbResult<Record> {
        name::check(name)?;
        self.known(name)?.ok_or_else(|| no_such(name))
    }

    /// A volume that is not being removed, if there is one of this name.
    pub(super) fn known(&self, name: &str) -> VerbResult<Option<Record>> {
        Ok(self.load(name)?.filter(|record| !record.removing))
    }

    /// What is recorded of a volume.
    pub(super) fn load(&self, name: &str) -> VerbResult<Option<Record>> {
        Record::load(&self.dirs.meta(name))
    }

    pub(super) fn save(&self, record: &Record) -> VerbResult<()> {
        record.save(&self.dirs.meta(&record.name))
    }

    /// Forgets a volume that is gone.
    pub(super) fn forget(&self, name: &str, locked: Locked) -> VerbResult<()> {
        // What is left of what was counted says nothing of a volume that is not there, and is
        // written over by the next one of its name.
        let _ = fs::remove_file(self.dirs.sizes(name));
        let meta = self.dirs.meta(name);
        if remove_file(&meta)? {
            sync_parent(&meta).on(meta.display())?;
        }
        locked.forget();
        Ok(())
    }

    /// All volumes, by name. What cannot be read is left out, and told in the log.
    ///
    /// # Errors
    /// The pool cannot be read.
    pub fn list(&self) -> VerbResult<Vec<Record>> {
        let records = self.dirs.names()?.into_iter().filter_map(|name| {
            self.known(&name).unwrap_or_else(|error| {
                tracing::warn!(%name, error = error.message, "a volume cannot be read");
                None
            })
        });
        Ok(records.collect())
    }

    /// Changes a record that nobody else changes meanwhile.
    pub(super) fn change<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut Record) -> VerbResult<T>,
    ) -> VerbResult<T> {
        let _locked = self.lock(name)?;
        let mut record = self.get(name)?;
        let changed = change(&mut record)?;
        self.save(&record)?;
        Ok(changed)
    }

    /// Where a volume is.
    ///
    /// # Errors
    /// Its record was written by somebody else.
    pub fn place(&self, record: &Record) -> VerbResult<Place> {
        Ok(self.dirs.place(record, &record.parsed()?))
    }

    /// Where a volume is mounted, if it is: at its own place, or where it is staged.
    ///
    /// # Errors
    /// The table of mounts cannot be read.
    pub fn mountpoint(&self, record: &Record) -> VerbResult<Option<PathBuf>> {
        let place = self.place(record)?;
        let table = facts::table()?;
        let found = facts::shown(&table, &place).into_iter().next();
        Ok(found.map(|mount| mount.at.clone()))
    }

    /// The history of a volume.
    ///
    /// # Errors
    /// Its record was written by somebody else.
    pub fn history(&self, record: &Record) -> VerbResult<VolumeHistory> {
        Ok(VolumeHistory::new(&record.name, self.place(record)?))
    }

    pub(super) fn lock(&self, name: &str) -> VerbResult<Locked> {
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

    pub(super) fn try_lock(&self, name: &str) -> VerbResult<Option<Locked>> {
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
        // Whoever removed the volume has removed the file too: then another one counts.
        let same = fs::metadata(&path)
            .is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
        Ok(same.then_some(Locked { file, path }))
    }

    /// Does something that nobody else does to the same thing meanwhile.
    ///
    /// # Errors
    /// `busy`; those of the work.
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
