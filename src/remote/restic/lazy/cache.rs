//! Fetched files in the store, one for each inode. A file named by its inode number is complete.
//!
//! A file of one blob is not synced: a worker that has not fetched it verifies its hash when it
//! first opens it. A file of several blobs is synced before it gets its name.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;

use crate::limits;
use ckptfs_store::ids::Slot;
use ckptfs_sys::{self as sys, Access, Errno, SysResult};

/// The origin of a local file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Fetched by an earlier worker and not verified since.
    Before,
    /// Fetched or verified by this worker.
    Proven,
}

/// The local files by number, in order of last use.
#[derive(Debug, Default)]
pub struct LocalFiles {
    here: HashMap<Slot, (Verification, u64, u64)>,
    by_use: BTreeMap<u64, Slot>,
    uses: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

impl LocalFiles {
    /// Returns the number of files.
    pub fn files(&self) -> u64 {
        self.here.len() as u64
    }

    /// Returns the origin of a local file, and marks it as used.
    pub fn used(&mut self, slot: Slot) -> Option<Verification> {
        let (found, _, used) = self.here.get_mut(&slot)?;
        self.uses += 1;
        self.by_use.remove(used);
        *used = self.uses;
        self.by_use.insert(self.uses, slot);
        Some(*found)
    }

    pub fn has(&self, slot: Slot) -> bool {
        self.here.contains_key(&slot)
    }

    /// Adds a file of this size.
    pub fn put(&mut self, slot: Slot, found: Verification, size: u64) {
        self.remove(slot);
        self.uses += 1;
        self.here.insert(slot, (found, size, self.uses));
        self.by_use.insert(self.uses, slot);
        self.bytes += size;
    }

    /// Removes a file.
    pub fn remove(&mut self, slot: Slot) {
        if let Some((_, size, used)) = self.here.remove(&slot) {
            self.by_use.remove(&used);
            self.bytes -= size;
        }
    }

    /// Returns the least recently used file.
    pub fn oldest(&self) -> Option<Slot> {
        self.by_use.first_key_value().map(|(_, slot)| *slot)
    }
}

/// The directory.
pub struct ContentCache(pub OwnedFd);

fn name_of(slot: Slot) -> Vec<u8> {
    slot.0.to_string().into_bytes()
}

impl ContentCache {
    /// Reads the files of earlier workers, and removes files that are not in the tree. `size`: that
    /// of a file of the tree.
    ///
    /// # Errors
    /// Errors of reading the directory.
    pub fn kept(&self, size: impl Fn(Slot) -> Option<u64>) -> SysResult<LocalFiles> {
        let mut kept = LocalFiles::default();
        for entry in sys::list_dir(&self.0)? {
            let number = std::str::from_utf8(&entry.name).ok();
            let slot = number.and_then(|text| text.parse().ok()).map(Slot);
            let known = slot.and_then(|slot| Some((slot, size(slot)?)));
            match known.filter(|(slot, _)| name_of(*slot) == entry.name) {
                Some((slot, size)) => kept.put(slot, Verification::Before, size),
                None => {
                    let removed = sys::unlink_at(&self.0, &entry.name);
                    tracing::debug!(?removed, "what was being fetched");
                }
            }
        }
        Ok(kept)
    }

    /// Opens a file, if it exists and has the expected size.
    pub fn open(&self, slot: Slot, size: u64) -> Option<File> {
        let file = sys::open_file_at(&self.0, &name_of(slot), Access::READ).ok()?;
        let stat = sys::stat_fd(&file).ok()?;
        (stat.kind == sys::Kind::File && stat.size == size).then_some(file)
    }

    /// Creates a temporary file for content of this size, and returns its name.
    ///
    /// # Errors
    /// Errors of open(2); ENOSPC: the filesystem would become full.
    pub fn begin(&self, slot: Slot, attempt: u64, size: u64) -> SysResult<(File, Vec<u8>)> {
        if !limits::has_room(&self.0, size, 1) {
            return Err(Errno::ENOSPC);
        }
        let name = format!("{}.{attempt}.new", slot.0).into_bytes();
        let file = sys::create_file_at(&self.0, &name, Access::READ_WRITE, 0o600)?;
        Ok((file, name))
    }

    /// Gives a complete file its final name, after an fsync if `synced`.
    ///
    /// # Errors
    /// Errors of fsync(2) and rename(2).
    pub fn finish(&self, file: &File, name: &[u8], slot: Slot, synced: bool) -> SysResult<()> {
        if synced {
            sys::fsync(file)?;
        }
        let to = name_of(slot);
        sys::rename_at(&self.0, name, &self.0, &to, sys::RenameMode::Replace)
    }

    /// Removes a temporary file.
    pub fn drop_new(&self, name: &[u8]) {
        let _ = sys::unlink_at(&self.0, name);
    }

    /// Removes a file; open descriptors remain valid.
    pub fn remove(&self, slot: Slot) {
        let removed = sys::unlink_at(&self.0, &name_of(slot));
        tracing::debug!(?removed, slot = slot.0, "it is not here any more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_the_longest_time_goes_first() {
        let mut kept = LocalFiles::default();
        (2..5).for_each(|n| kept.put(Slot(n), Verification::Before, n));
        assert_eq!(
            (kept.used(Slot(2)), kept.used(Slot(9))),
            (Some(Verification::Before), None)
        );
        kept.put(Slot(3), Verification::Proven, 30);
        assert_eq!(
            (kept.bytes, kept.files(), kept.oldest()),
            (36, 3, Some(Slot(4)))
        );
        kept.remove(Slot(4));
        kept.remove(Slot(4));
        assert_eq!((kept.bytes, kept.oldest()), (32, Some(Slot(2))));
    }

    #[test]
    fn what_is_none_of_the_tree_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["2", "3", "03", "2.1.new", "x", "99999999999999999999"] {
            std::fs::write(dir.path().join(name), "abc").expect("written");
        }
        let cache = ContentCache(File::open(dir.path()).expect("opened").into());
        let kept = cache
            .kept(|slot| (slot == Slot(2)).then_some(3))
            .expect("read");
        assert_eq!((kept.files(), kept.bytes), (1, 3));
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1);
        assert!(cache.open(Slot(2), 3).is_some() && cache.open(Slot(2), 4).is_none());
    }
}
