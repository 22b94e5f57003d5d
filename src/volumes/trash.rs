//! The trash: volumes removed with `on-remove=trash`, each in `ROOT/trash/NAME@TIME/` as `tree` or
//! `disk.img`, with its record.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::{free_name, make_dir, move_away, remove_tree, sync_parent};
use super::image;
use super::name;
use super::record::{VolumeRecord, now_text};
use super::registry::Registry;
use ckptfs_api::display::word;
use ckptfs_api::{Code, ErrorContext, VerbResult, error, hinted, io_error};

/// File name of the record.
const RECORD: &str = "volume.json";

/// A volume in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashEntry {
    /// `NAME@TIME`.
    pub name: String,
    /// Its former name.
    pub volume: String,
}

/// The trash of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Trash<'a> {
    registry: &'a Registry,
}

impl<'a> Trash<'a> {
    pub(super) fn of(registry: &'a Registry) -> Trash<'a> {
        Trash { registry }
    }

    /// Returns the volumes in the trash, sorted by name and time.
    ///
    /// # Errors
    /// The trash cannot be read.
    pub fn list(self) -> VerbResult<Vec<TrashEntry>> {
        let dir = self.registry.dirs().trash();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(io_error(dir.display(), cause)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut all: Vec<TrashEntry> = names
            .filter_map(|name| {
                name.split_once('@')
                    .map(|(volume, _)| volume.to_owned())
                    .map(|volume| TrashEntry { name, volume })
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Returns the newest entry of a volume, or the entry with this complete name.
    fn find(self, text: &str) -> VerbResult<PathBuf> {
        let all = self.list()?;
        let found = all
            .iter()
            .rev()
            .find(|thrown| thrown.name == text || thrown.volume == text);
        let none = || {
            hinted(
                Code::NoSuchVolume,
                format!("no volume {text} is in the trash"),
                "ckptfs volumes ls --trash",
            )
        };
        found
            .map(|thrown| self.registry.dirs().trash().join(&thrown.name))
            .ok_or_else(none)
    }

    /// Recovers a volume with its history, under its old name.
    ///
    /// # Errors
    /// `no-such-volume`; `volume-exists`: another volume has that name.
    pub fn recover(self, text: &str) -> VerbResult<String> {
        let dir = self.find(text)?;
        let damaged = || {
            error(
                Code::BadVolume,
                format!("{} has no {RECORD}", dir.display()),
            )
        };
        let record = VolumeRecord::load(&dir.join(RECORD))?.ok_or_else(damaged)?;
        let name = &record.name.clone();
        name::check(name)?;
        let _locked = self.registry.lock(name)?;
        if self.registry.load(name)?.is_some() {
            let hint = format!("remove that one first: ckptfs volumes rm {}", word(name));
            return Err(hinted(
                Code::VolumeExists,
                format!("there is another volume {name}"),
                hint,
            ));
        }
        self.take_orphan(name)?;
        // A volume with a size has its tree in the image, which is mounted on an empty directory.
        let tree = &self.registry.dirs().tree(name);
        for (path, part) in self.parts(name).into_iter().rev() {
            move_away(&dir.join(part), &path)?;
        }
        make_dir(tree, 0o700)?;
        sync_parent(tree).on(tree.display())?;
        self.registry.save(&VolumeRecord {
            removing: false,
            mounted: false,
            mounts: Vec::new(),
            ..record
        })?;
        remove_tree(&dir)?;
        Ok(name.clone())
    }

    /// Deletes a volume in the trash permanently.
    ///
    /// # Errors
    /// `no-such-volume`.
    pub fn purge(self, text: &str) -> VerbResult<()> {
        remove_tree(&self.find(text)?)
    }

    /// Returns the files of a volume, with their names in the trash.
    fn parts(self, name: &str) -> [(PathBuf, &'static str); 2] {
        let dirs = self.registry.dirs();
        [(dirs.tree(name), "tree"), (dirs.image(name), "disk.img")]
    }

    /// Moves a removed volume to the trash.
    pub(super) fn take(self, record: &VolumeRecord) -> VerbResult<()> {
        let dir = self.place_for(&record.name)?;
        record.save(&dir.join(RECORD))?;
        self.put(&record.name, &dir)
    }

    /// Moves the remains of a volume without a record to the trash, if any.
    pub(super) fn take_orphan(self, name: &str) -> VerbResult<()> {
        image::unmount(&self.registry.dirs().tree(name))?;
        if self.parts(name).iter().any(|(path, _)| path.exists()) {
            self.put(name, &self.place_for(name)?)
        } else {
            Ok(())
        }
    }

    fn put(self, name: &str, dir: &Path) -> VerbResult<()> {
        self.parts(name)
            .iter()
            .try_for_each(|(path, part)| move_away(path, &dir.join(part)).map(drop))
    }

    fn place_for(self, name: &str) -> VerbResult<PathBuf> {
        let trash = self.registry.dirs().trash();
        make_dir(&trash, 0o700)?;
        let dir = free_name(&trash, &format!("{name}@{}", now_text()));
        make_dir(&dir, 0o700)?;
        Ok(dir)
    }
}
