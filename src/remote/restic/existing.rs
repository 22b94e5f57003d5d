//! Existing files at the destination of a pull: content that they have is not fetched.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustic_core::{DataId, IndexedFullStatus, Repository};

use super::pull::{blob_length, is_hash};
use ckptfs_api::ExportEntry;
use ckptfs_store::layout::STORE_NAME;
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, SysResult};
use ckptfs_transfer::dirs::{open_below, split};
use ckptfs_transfer::inode::is_as_told;
use ckptfs_transfer::walk::Walk;

/// Minimum size of a file to be searched elsewhere; a smaller one is fetched sooner.
const ELSEWHERE_BYTES_MIN: u64 = 64 << 10;
/// Limit of files of the same size compared with one file.
const ALIKE_MAX: usize = 8;

/// A tree that may contain files of a snapshot. All content is verified by hashes.
pub(super) struct ExistingTree {
    root: OwnedFd,
    /// Its files by size, once one was searched.
    by_size: OnceLock<HashMap<u64, Vec<Vec<u8>>>>,
}

impl ExistingTree {
    pub(super) fn new(root: OwnedFd) -> ExistingTree {
        ExistingTree {
            root,
            by_size: OnceLock::new(),
        }
    }

    /// Returns whether the file at the path of an entry has its attributes and, verified by hashes,
    /// its content.
    pub(super) fn has(
        &self,
        entry: &ExportEntry,
        blobs: &[DataId],
        repo: &Repository<IndexedFullStatus>,
    ) -> SysResult<bool> {
        let there = self.inode(&entry.path.0)?;
        if entry.is_linked() || !is_as_told(&there, entry, sys::ids().0 == 0)? {
            return Ok(false);
        }
        holds(&sys::reopen(&there, Access::READ)?, entry.size, blobs, repo)
    }

    /// Finds a file with the content of an entry, whatever its name and attributes: it was renamed
    /// or copied, or is a hard link.
    pub(super) fn find(
        &self,
        entry: &ExportEntry,
        blobs: &[DataId],
        repo: &Repository<IndexedFullStatus>,
    ) -> Option<File> {
        if entry.size < ELSEWHERE_BYTES_MIN {
            return None;
        }
        let by_size = self.by_size.get_or_init(|| self.list().unwrap_or_default());
        let alike = by_size.get(&entry.size)?.iter().take(ALIKE_MAX);
        alike
            .filter_map(|path| self.inode(path).ok())
            .filter(|inode| {
                sys::stat_fd(inode)
                    .is_ok_and(|stat| stat.kind == Kind::File && stat.size == entry.size)
            })
            .filter_map(|inode| sys::reopen(&inode, Access::READ).ok())
            .find(|file| holds(file, entry.size, blobs, repo).unwrap_or(false))
    }

    /// Returns the file at the path of an entry, which may contain some of its blobs at the same
    /// offsets; `None` for small files.
    pub(super) fn earlier(&self, entry: &ExportEntry) -> Option<File> {
        if entry.size < ELSEWHERE_BYTES_MIN {
            return None;
        }
        let inode = self.inode(&entry.path.0).ok()?;
        let kind = sys::stat_fd(&inode).ok()?.kind;
        (kind == Kind::File).then(|| sys::reopen(&inode, Access::READ).ok())?
    }

    fn inode(&self, path: &[u8]) -> SysResult<OwnedFd> {
        let (above, name) = split(path).ok_or(Errno::EINVAL)?;
        let dir = open_below(&self.root, above, OpenKind::Dir)?;
        sys::open_path_at(&dir, name)
    }

    fn list(&self) -> SysResult<HashMap<u64, Vec<Vec<u8>>>> {
        let root = self.root.try_clone().map_err(Errno::from)?;
        let mut walk = Walk::new(root)?;
        let mut by_size = HashMap::<u64, Vec<Vec<u8>>>::new();
        while let Some(met) = walk.next() {
            if let Ok((entry, _)) = met
                && entry.kind == Kind::File
                && entry.size >= ELSEWHERE_BYTES_MIN
                && !entry.path.0.starts_with(STORE_NAME.as_bytes())
            {
                by_size.entry(entry.size).or_default().push(entry.path.0);
            }
        }
        Ok(by_size)
    }
}

/// Returns whether a file consists of exactly these blobs.
fn holds(
    file: &File,
    size: u64,
    blobs: &[DataId],
    repo: &Repository<IndexedFullStatus>,
) -> SysResult<bool> {
    let mut at = 0;
    for id in blobs {
        let length = blob_length(repo, id).filter(|length| *length <= size.saturating_sub(at));
        let Some(length) = length else {
            return Ok(false);
        };
        if piece(file, id, (at, length))?.is_none() {
            return Ok(false);
        }
        at += length;
    }
    Ok(at == size)
}

/// Reads a range of a file, if it is the blob.
pub(super) fn piece(
    file: &File,
    id: &DataId,
    (at, length): (u64, u64),
) -> SysResult<Option<Vec<u8>>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Errno::EINVAL)?];
    sys::read_full_at(file, &mut bytes, at)?;
    Ok(is_hash(id, &bytes).then_some(bytes))
}
