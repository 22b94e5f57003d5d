//! Compares a copy with an export, byte by byte.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;

use super::Sink;
use super::dirs::{open_below, split};
use super::inode::is_as_told;
use ckptfs_api::ExportEntry;
use ckptfs_store::extents::same_bytes;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, SysResult};

/// A sink that collects differences.
pub struct Checker {
    root: OwnedFd,
    owners: bool,
    /// Paths that differ or are missing.
    wrong: Mutex<Vec<Vec<u8>>>,
    seen: Mutex<HashSet<Vec<u8>>>,
    /// Exported inode -> inode at the destination: hard links must match.
    inodes: Mutex<HashMap<u64, u64>>,
}

impl Checker {
    /// Returns a checker of the tree below `root`.
    pub fn new(root: OwnedFd) -> Checker {
        Checker {
            root,
            owners: sys::ids().0 == 0,
            wrong: Mutex::default(),
            seen: Mutex::default(),
            inodes: Mutex::default(),
        }
    }

    /// Returns every path that differs, is missing, or is not in the export; sorted.
    ///
    /// # Errors
    /// Those of reading the destination.
    pub fn finish(&self) -> SysResult<Vec<Vec<u8>>> {
        let seen = std::mem::take(&mut *self.seen.lock());
        let mut wrong = std::mem::take(&mut *self.wrong.lock());
        let mut open: Vec<Vec<u8>> = vec![Vec::new()];
        while let Some(path) = open.pop() {
            let dir = open_below(&self.root, &path, OpenKind::Dir)?;
            for entry in sys::list_dir(&dir)? {
                let below = if path.is_empty() {
                    entry.name.clone()
                } else {
                    [&path, b"/".as_slice(), &entry.name].concat()
                };
                if !seen.contains(&below) {
                    wrong.push(below);
                } else if sys::stat_at(&dir, &entry.name)?.kind == Kind::Dir {
                    open.push(below);
                }
            }
        }
        wrong.sort();
        wrong.dedup();
        Ok(wrong)
    }

    fn is_right(&self, entry: &ExportEntry, file: Option<&File>) -> SysResult<bool> {
        let fd = match split(&entry.path.0) {
            Some((above, name)) => {
                sys::open_path_at(open_below(&self.root, above, OpenKind::Path)?, name)?
            }
            None => open_below(&self.root, b"", OpenKind::Path)?,
        };
        if !is_as_told(&fd, entry, self.owners)? {
            return Ok(false);
        }
        if entry.is_linked() {
            let ino = sys::stat_fd(&fd)?.ino;
            if *self.inodes.lock().entry(entry.inode).or_insert(ino) != ino {
                return Ok(false);
            }
        }
        file.map_or(Ok(true), |file| {
            same_bytes(file, &sys::reopen(&fd, Access::READ)?)
        })
    }
}

impl Sink for Checker {
    type Hand = ();

    fn remove(&self, _path: &[u8]) -> SysResult<()> {
        Ok(())
    }

    fn entry(&self, _hand: &mut (), entry: ExportEntry, file: Option<File>) -> SysResult<()> {
        file.as_ref().map(super::regular).transpose()?;
        let right = match self.is_right(&entry, file.as_ref()) {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => false,
            right => right?,
        };
        let path = entry.path.0;
        self.seen.lock().insert(path.clone());
        let mut wrong = self.wrong.lock();
        if entry.again {
            wrong.retain(|known| *known != path);
        }
        if !right {
            wrong.push(path);
        }
        Ok(())
    }
}
