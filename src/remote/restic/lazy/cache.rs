//! Files that were fetched: one for each inode, in the store. What is there under its number is
//! whole.
//!
//! A file of one blob is not synced, and is compared with its hash when it is first opened by a
//! worker that has not fetched it; one of more is synced before it gets its name.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;

use crate::remote::limits;
use crate::store::ids::Slot;
use crate::sys::{self, Errno, Open, SysResult};

/// How a file came to be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// By a worker before this one: nobody has looked at it since.
    Before,
    /// It was fetched, or compared with its hashes, since.
    Proven,
}

/// What is here, by the number. The one that was opened last goes last.
#[derive(Debug, Default)]
pub struct Kept {
    here: HashMap<Slot, (Found, u64, u64)>,
    by_use: BTreeMap<u64, Slot>,
    uses: u64,
    /// Bytes of all.
    pub bytes: u64,
}

impl Kept {
    /// How many there are.
    pub fn files(&self) -> u64 {
        self.here.len() as u64
    }

    /// Whether a file is here; it is used.
    pub fn used(&mut self, slot: Slot) -> Option<Found> {
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

    /// A file of this size is here.
    pub fn put(&mut self, slot: Slot, found: Found, size: u64) {
        self.remove(slot);
        self.uses += 1;
        self.here.insert(slot, (found, size, self.uses));
        self.by_use.insert(self.uses, slot);
        self.bytes += size;
    }

    /// A file is not here any more.
    pub fn remove(&mut self, slot: Slot) {
        if let Some((_, size, used)) = self.here.remove(&slot) {
            self.by_use.remove(&used);
            self.bytes -= size;
        }
    }

    /// The file that was not used for the longest time.
    pub fn oldest(&self) -> Option<Slot> {
        self.by_use.first_key_value().map(|(_, slot)| *slot)
    }
}

/// The directory.
pub struct Cache(pub OwnedFd);

fn name_of(slot: Slot) -> Vec<u8> {
    slot.0.to_string().into_bytes()
}

impl Cache {
    /// What a worker before us has left. `size`: that of a file of the tree; what is none of it goes.
    ///
    /// # Errors
    /// Those of reading the directory.
    pub fn kept(&self, size: impl Fn(Slot) -> Option<u64>) -> SysResult<Kept> {
        let mut kept = Kept::default();
        for entry in sys::list_dir(&self.0)? {
            let number = std::str::from_utf8(&entry.name).ok();
            let slot = number.and_then(|text| text.parse().ok()).map(Slot);
            let known = slot.and_then(|slot| Some((slot, size(slot)?)));
            match known.filter(|(slot, _)| name_of(*slot) == entry.name) {
                Some((slot, size)) => kept.put(slot, Found::Before, size),
                None => {
                    let removed = sys::unlink_at(&self.0, &entry.name);
                    tracing::debug!(?removed, "what was being fetched");
                }
            }
        }
        Ok(kept)
    }

    /// Opens a file, if it is here and as long as it must be.
    pub fn open(&self, slot: Slot, size: u64) -> Option<File> {
        let file = sys::open_file_at(&self.0, &name_of(slot), Open::READ).ok()?;
        let stat = sys::stat_fd(&file).ok()?;
        (stat.kind == sys::Kind::File && stat.size == size).then_some(file)
    }

    /// A new file that will have this size, and its name until it is whole.
    ///
    /// # Errors
    /// Those of open(2); ENOSPC: the filesystem would be full then.
    pub fn begin(&self, slot: Slot, attempt: u64, size: u64) -> SysResult<(File, Vec<u8>)> {
        if !limits::has_room(&self.0, size, 1) {
            return Err(Errno::ENOSPC);
        }
        let name = format!("{}.{attempt}.new", slot.0).into_bytes();
        let file = sys::create_file_at(&self.0, &name, Open::READ_WRITE, 0o600)?;
        Ok((file, name))
    }

    /// A new file is whole, and `synced` before it gets its name.
    ///
    /// # Errors
    /// Those of fsync(2) and rename(2).
    pub fn finish(&self, file: &File, name: &[u8], slot: Slot, synced: bool) -> SysResult<()> {
        if synced {
            sys::fsync(file)?;
        }
        let to = name_of(slot);
        sys::rename_at(&self.0, name, &self.0, &to, sys::RenameMode::Replace)
    }

    /// A new file is not wanted.
    pub fn drop_new(&self, name: &[u8]) {
        let _ = sys::unlink_at(&self.0, name);
    }

    /// A file goes; who has it open reads on.
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
        let mut kept = Kept::default();
        (2..5).for_each(|n| kept.put(Slot(n), Found::Before, n));
        assert_eq!(
            (kept.used(Slot(2)), kept.used(Slot(9))),
            (Some(Found::Before), None)
        );
        kept.put(Slot(3), Found::Proven, 30);
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
        let cache = Cache(File::open(dir.path()).expect("opened").into());
        let kept = cache
            .kept(|slot| (slot == Slot(2)).then_some(3))
            .expect("read");
        assert_eq!((kept.files(), kept.bytes), (1, 3));
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1);
        assert!(cache.open(Slot(2), 3).is_some() && cache.open(Slot(2), 4).is_none());
    }
}
