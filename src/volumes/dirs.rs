//! Paths in the directory of a pool.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::{free_name, make_dir, move_away, remove_file, remove_tree};
use super::image;
use super::mount_facts::VolumePlace;
use super::name;
use super::options::Options;
use super::record::VolumeRecord;
use ckptfs_api::{ErrorContext, VerbResult};

/// Directories of a pool with their modes. Users in containers can traverse to the mount points
/// only.
const DIRECTORIES: [(&str, u32); 9] = [
    ("", 0o711),
    ("volumes", 0o700),
    ("mnt", 0o711),
    ("meta", 0o700),
    ("locks", 0o700),
    ("staging", 0o700),
    ("fetched", 0o700),
    ("images", 0o700),
    ("gone", 0o700),
];

/// Paths of a pool.
#[derive(Clone, Debug)]
pub struct Dirs {
    root: PathBuf,
    mounts: PathBuf,
}

impl Dirs {
    /// Opens the pool at `root`, creating its directories if missing. Volumes are mounted in
    /// `mounts`, or in the pool.
    ///
    /// # Errors
    /// Failures to create directories.
    pub fn open(root: &Path, mounts: Option<&Path>) -> VerbResult<Dirs> {
        let real = |dir: &Path| {
            fs::create_dir_all(dir)
                .and_then(|()| dir.canonicalize())
                .on(dir.display())
        };
        let root = real(root)?;
        DIRECTORIES
            .iter()
            .try_for_each(|(name, mode)| make_dir(&root.join(name), *mode))?;
        let mounts = mounts.map_or_else(|| Ok(root.join("mnt")), real)?;
        Ok(Dirs { root, mounts })
    }

    /// Returns the directory of the pool.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the location of a volume. A branch is mounted on its own tree.
    pub fn place(&self, record: &VolumeRecord, options: &Options) -> VolumePlace {
        let (backing, point) = match &options.source {
            Some(source) => (source.clone(), source.clone()),
            None if record.branch().is_some() => (self.tree(&record.name), self.tree(&record.name)),
            None => (self.tree(&record.name), self.mounts.join(&record.name)),
        };
        VolumePlace {
            backing,
            point,
            chosen: options.source.is_none(),
        }
    }

    /// Returns the name of the volume with a tree at `path`.
    pub fn volume_at(&self, path: &Path) -> Option<String> {
        let name = path.file_name()?.to_str()?;
        let is_tree = name::check(name).is_ok() && self.tree(name) == path;
        is_tree.then(|| name.to_owned())
    }

    /// Returns the tree of a volume, unless it uses an existing directory.
    pub fn tree(&self, name: &str) -> PathBuf {
        self.root.join("volumes").join(name)
    }

    /// Returns the record file of a volume.
    pub fn meta(&self, name: &str) -> PathBuf {
        self.root.join("meta").join(format!("{name}.json"))
    }

    /// Returns the file with the computed sizes of a volume.
    pub fn sizes(&self, name: &str) -> PathBuf {
        self.root.join("meta").join(format!("{name}.sizes"))
    }

    /// Returns the image file of a volume with a size.
    pub fn image(&self, name: &str) -> PathBuf {
        self.root.join("images").join(format!("{name}.img"))
    }

    /// Returns the location of a tree being created.
    pub fn staged(&self, name: &str) -> PathBuf {
        self.root.join("staging").join(name)
    }

    /// Returns the location of a tree being fetched from a remote.
    pub fn fetched(&self, name: &str) -> PathBuf {
        self.root.join("fetched").join(name)
    }

    /// Returns the lock file of a volume.
    pub fn lock(&self, name: &str) -> PathBuf {
        self.root.join("locks").join(name)
    }

    /// Returns the directory of removed volumes that can be recovered.
    pub fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Returns the directory of trees being deleted.
    pub fn gone(&self) -> PathBuf {
        self.root.join("gone")
    }

    /// Returns the names of all records, sorted.
    ///
    /// # Errors
    /// The pool cannot be read.
    pub fn names(&self) -> VerbResult<Vec<String>> {
        let dir = self.root.join("meta");
        let entries = fs::read_dir(&dir).on(dir.display())?;
        let names = entries.filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_str()?
                .strip_suffix(".json")
                .map(str::to_owned)
        });
        let mut names: Vec<String> = names.filter(|name| name::check(name).is_ok()).collect();
        names.sort();
        Ok(names)
    }

    /// Returns the names of trees in `staging` or `fetched`.
    pub fn names_in(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(dir))
            .into_iter()
            .flatten()
            .flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name::check(name).is_ok())
            .collect()
    }

    /// Moves a volume's tree to `gone`, where trees are deleted.
    pub fn set_gone(&self, name: &str) -> VerbResult<Option<PathBuf>> {
        let gone = free_name(&self.gone(), name);
        Ok(move_away(&self.tree(name), &gone)?.then_some(gone))
    }

    /// Deletes a volume's tree and image.
    pub fn delete(&self, name: &str) -> VerbResult<()> {
        if let Some(gone) = self.set_gone(name)? {
            remove_tree(&gone)?;
        }
        remove_file(&self.image(name)).map(drop)
    }

    /// Removes the remains of an interrupted creation or removal.
    pub fn unmake(&self, name: &str) {
        let _ = image::unmount(&self.tree(name));
        let removed = [
            remove_tree(&self.staged(name)),
            self.set_gone(name).map(drop),
            remove_file(&self.image(name)).map(drop),
        ];
        for error in removed.into_iter().filter_map(Result::err) {
            tracing::warn!(
                name,
                error = error.message,
                "what is left of a volume cannot be removed"
            );
        }
    }
}
