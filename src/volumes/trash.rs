//! The trash: volumes that were removed with `on-remove=trash`, each in `ROOT/trash/NAME@TIME/` as `tree` or `disk.img`, with its record.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{error, failed, hinted};
use super::pool::{Pool, make_dir, remove_tree};
use super::record::{Record, sync_parent};
use crate::engine::api::VerbResult;

/// Something in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thrown {
    /// `NAME@TIME`.
    pub name: String,
    /// The volume that it was.
    pub volume: String,
}

impl Pool {
    fn trash(&self) -> PathBuf {
        self.root().join("trash")
    }

    /// What is in the trash, by name and time.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn thrown(&self) -> VerbResult<Vec<Thrown>> {
        let dir = self.trash();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(failed(&dir, cause)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut all: Vec<Thrown> =
            names.filter_map(|name| name.split_once('@').map(|(volume, _)| volume.to_owned()).map(|volume| Thrown { name, volume })).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// The newest of a volume in the trash, or the one of this whole name.
    fn find_thrown(&self, text: &str) -> VerbResult<PathBuf> {
        let all = self.thrown()?;
        let found = all.iter().rev().find(|thrown| thrown.name == text || thrown.volume == text);
        let none = || hinted("no-such-volume", format!("there is no {text} in the trash"), "ckptfs volumes ls --trash");
        found.map(|thrown| self.trash().join(&thrown.name)).ok_or_else(none)
    }

    /// Makes a volume out of what is in the trash, with its history, under its old name.
    ///
    /// # Errors
    /// `no-such-volume`; `volume-exists`: there is another of that name.
    pub fn recover(&self, text: &str) -> VerbResult<String> {
        let dir = self.find_thrown(text)?;
        let damaged = || error("bad-volume", format!("{} has no volume.json", dir.display()));
        let record = Record::load(&dir.join("volume.json"))?.ok_or_else(damaged)?;
        super::name::check(&record.name)?;
        let name = record.name.clone();
        self.put_back(Record { removing: false, mounted: false, mounts: Vec::new(), ..record }, |tree: &Path, image: &Path| {
            // A volume with a size has its tree in the image, and an empty directory to mount that at.
            for (from, to) in [(dir.join("disk.img"), image), (dir.join("tree"), tree)] {
                match fs::rename(&from, to) {
                    Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => return Err(failed(&from, cause)),
                    _ => {}
                }
            }
            make_dir(tree, 0o700)?;
            sync_parent(tree).map_err(|cause| failed(tree, cause))
        })?;
        remove_tree(&dir)?;
        Ok(name)
    }

    /// Deletes something in the trash for good.
    ///
    /// # Errors
    /// `no-such-volume`.
    pub fn purge(&self, text: &str) -> VerbResult<()> {
        remove_tree(&self.find_thrown(text)?)
    }
}
