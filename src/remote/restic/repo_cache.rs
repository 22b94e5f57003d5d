//! A local cache of a repository: encrypted files of the index, snapshots and packs of trees. Only
//! its owner can read it.
//!
//! A file that cannot be written is not cached; one that cannot be read is fetched again.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustic_core::{FileType, Id};

/// Marks the directory as a cache for backup programs (bford.info/cachedir).
const TAG: (&str, &[u8]) = (
    "CACHEDIR.TAG",
    b"Signature: 8a477f597d28d172789f06886806bc55\n",
);

/// Creates a directory and its parents, accessible only to this user.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// The cached objects of one repository.
#[derive(Debug)]
pub struct RepoCache(PathBuf);

impl RepoCache {
    /// Opens the cache of a repository with this ID. `cache`: the directory for all repositories;
    /// access of other users is removed.
    ///
    /// # Errors
    /// Errors of its creation.
    pub fn new(cache: &Path, repository: &str) -> io::Result<RepoCache> {
        make_dir(cache)?;
        fs::set_permissions(cache, Permissions::from_mode(0o700))?;
        let mut options = File::options();
        let tag = options.write(true).create_new(true).mode(0o600);
        // It may exist.
        if let Ok(mut tag) = tag.open(cache.join(TAG.0)) {
            tag.write_all(TAG.1)?;
        }
        let dir = cache.join(repository);
        make_dir(&dir)?;
        Ok(RepoCache(dir))
    }

    fn path(&self, kind: FileType, id: &Id) -> PathBuf {
        let hex = id.to_hex();
        let dir = self.0.join(kind.dirname());
        dir.join(hex.get(..2).unwrap_or_default()).join(&*hex)
    }

    /// Reads an object, or a part of it; `most`: its maximum size in bytes.
    pub fn read(
        &self,
        kind: FileType,
        id: &Id,
        part: Option<(u32, u32)>,
        most: u64,
    ) -> Option<Bytes> {
        let path = self.path(kind, id);
        let found = fs::symlink_metadata(&path).ok()?;
        if !found.is_file() || found.len() > most {
            return None;
        }
        let file = File::open(path).ok()?;
        let mut bytes = Vec::new();
        match part {
            None => drop((&file).take(most).read_to_end(&mut bytes).ok()?),
            Some((offset, length)) => {
                let end = u64::from(offset) + u64::from(length);
                (end <= found.len()).then_some(())?;
                bytes.resize(usize::try_from(length).ok()?, 0);
                file.read_exact_at(&mut bytes, offset.into()).ok()?;
            }
        }
        Some(bytes.into())
    }

    /// Caches an object.
    pub fn write(&self, kind: FileType, id: &Id, content: &[Bytes]) {
        let path = self.path(kind, id);
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let write = || {
            if let Some(dir) = path.parent() {
                make_dir(dir)?;
            }
            let _ = fs::remove_file(&new);
            let mut options = File::options();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            content.iter().try_for_each(|bytes| file.write_all(bytes))?;
            fs::rename(&new, &path)
        };
        if let Err(cause) = write() {
            tracing::debug!(%cause, "an object of a repository is not kept");
            let _ = fs::remove_file(&new);
        }
    }

    /// Removes an object.
    pub fn remove(&self, kind: FileType, id: &Id) {
        let _ = fs::remove_file(self.path(kind, id));
    }

    /// Removes all objects of a kind except these with these sizes.
    pub fn retain(&self, kind: FileType, there: &[(Id, u32)]) {
        let there: std::collections::HashMap<_, _> = there.iter().copied().collect();
        let dirs = fs::read_dir(self.0.join(kind.dirname()));
        let files = dirs.into_iter().flatten().flatten();
        let files = files.filter_map(|dir| fs::read_dir(dir.path()).ok());
        for file in files.flatten().flatten() {
            let id = file.file_name().to_str().and_then(|name| name.parse().ok());
            let size = id.and_then(|id: Id| there.get(&id));
            let is_same = |size: &u32| {
                let found = file.metadata().map(|found| found.len());
                found.is_ok_and(|found| found == u64::from(*size))
            };
            if !size.is_some_and(is_same) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = dir.path().join("cache");
        fs::create_dir(&cache).expect("made");
        fs::set_permissions(&cache, Permissions::from_mode(0o755)).expect("open to others");
        let kept = RepoCache::new(&cache, "ab").expect("made");
        let id = Id::default();
        let content = [Bytes::from_static(b"ab"), Bytes::from_static(b"cd")];
        kept.write(FileType::Index, &id, &content);
        let read = |part, most| kept.read(FileType::Index, &id, part, most);
        assert_eq!(read(None, 4).as_deref(), Some(b"abcd".as_slice()));
        assert_eq!(read(None, 3), None);
        assert_eq!(read(Some((1, 3)), 4).as_deref(), Some(b"bcd".as_slice()));
        assert_eq!(read(Some((1, u32::MAX)), 4), None);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let path = kept.path(FileType::Index, &id);
        assert_eq!(mode(&path), 0o600);
        let dirs = path.ancestors().skip(1).take(4);
        assert!(dirs.map(mode).all(|mode| mode == 0o700));
        kept.retain(FileType::Index, &[(id, 4)]);
        assert!(read(None, 4).is_some());
        kept.retain(FileType::Index, &[(id, 5)]);
        assert!(read(None, 4).is_none());
    }
}
