//! The store of a branch: its mark, its tree, and its creation. It is synced as a whole once,
//! before the first change in the branch.
//!
//! The own part of a tree that looks through to another is in `tree/` inside the store. Its names,
//! whiteouts and marks determine which parts of the other tree it shows, so no other process may
//! write them, mounted or not (docs/adr/0039-branch-marks.md).

use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::super::at;
use super::branches::{BranchEntry, DOT_GIT, MARK, existing, read_entry};
use super::{Layout, STORE_NAME, StoreId, TREE_NAME, open_trusted, read_format};
use crate::error::{StoreError, StoreResult};
use ckptfs_sys::{self as sys, Access, Kind, SysResult};

/// Size limit of a branch's file `.git`, in bytes; a path has up to 4096.
const GIT_BYTES_MAX: u64 = 8192;

/// Returns the branch entry in the store of the directory `root`; `None` if it is not a branch.
///
/// # Errors
/// `BadBranch`; those of open(2).
pub fn branch_mark(root: impl AsFd) -> StoreResult<Option<BranchEntry>> {
    match existing(&root, STORE_NAME)? {
        Some(dir) => read_entry(&dir, MARK),
        None => Ok(None),
    }
}

/// Returns the id for a new store, if it is that of a branch.
pub(super) fn marked(store: &OwnedFd) -> StoreResult<Option<StoreId>> {
    Ok(read_entry(store, MARK)?.map(|mark| mark.id))
}

/// Returns the id of the store in the directory `root`, if readable.
pub fn store_id(root: impl AsFd) -> Option<StoreId> {
    let dir = open_trusted(&root, &root, STORE_NAME).ok()?;
    read_format(&dir).ok().map(|format| format.id)
}

impl BranchEntry {
    /// The paths at which its directory may be: the registered one, and the same name next to the
    /// directory of the tree. The directory that contains both may have been renamed.
    pub fn places(&self, tree: Option<&Path>) -> Vec<PathBuf> {
        let name = self.path.file_name();
        let moved = tree.zip(name).map(|(tree, name)| tree.with_file_name(name));
        let mut places = vec![self.path.clone()];
        places.extend(moved.filter(|moved| *moved != self.path));
        places
    }
}

impl Layout {
    /// Opens the root directory of the own part of a tree that looks through to another.
    ///
    /// # Errors
    /// `Forgeable`: an older version created it. Those of open(2).
    pub fn tree(&self) -> StoreResult<OwnedFd> {
        at::open_dir(&self.dir, TREE_NAME).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => StoreError::Forgeable,
            _ => StoreError::io("open", TREE_NAME)(error),
        })
    }
}

/// Reports whether the own tree in this store is missing or unchanged.
pub(super) fn has_nothing(store: &OwnedFd) -> StoreResult<bool> {
    let names = match at::open_dir(store, TREE_NAME) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => return Ok(true),
        tree => tree.and_then(at::names),
    };
    let names = names.map_err(StoreError::io("list", TREE_NAME))?;
    Ok(names.iter().all(|name| name == DOT_GIT))
}

/// Copies the file `.git` of the backing directory into a tree. It is a copy, because a process
/// that has the original open must not have an inode of the tree.
fn copy_link_of_git(root: impl AsFd, tree: &OwnedFd) -> SysResult<()> {
    if !is_link_of_git(&root) {
        return Ok(());
    }
    let link = sys::open_file_at(root, DOT_GIT, Access::READ)?;
    let (stat, mut text) = (sys::stat_fd(&link)?, Vec::new());
    link.take(GIT_BYTES_MAX).read_to_end(&mut text)?;
    if stat.kind != Kind::File || text.len() as u64 == GIT_BYTES_MAX {
        return Err(sys::Errno::EINVAL);
    }
    let copy = sys::create_file_at(tree, DOT_GIT, Access::WRITE, 0o600)?;
    sys::write_all_at(&copy, &text, 0)?;
    match sys::set_file_owner(&copy, stat.uid, stat.gid) {
        Err(sys::Errno::EPERM) if sys::ids().0 != 0 => {}
        owned => owned?,
    }
    sys::set_file_mode(&copy, stat.mode & 0o777)
}

/// Creates the directory of a branch's store in `root`, with its mark and its tree. The mark comes
/// first, so that a partial store can be identified. Not durable on return; see [`sync_branch`].
///
/// # Errors
/// EEXIST: a store exists. Those of mkdir(2), write(2).
pub fn mark_branch(root: impl AsFd, entry: &BranchEntry) -> StoreResult<()> {
    let failed = || StoreError::io("mark", STORE_NAME);
    if !at::make_dir(&root, STORE_NAME).map_err(failed())? {
        return Err(failed()(Errno::EXIST.into()));
    }
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    at::write_unsynced(&dir, MARK, &entry.text()).map_err(failed())?;
    at::make_dir(&dir, TREE_NAME)
        .and_then(|_| at::open_dir(&dir, TREE_NAME))
        .and_then(|tree| Ok(copy_link_of_git(root, &tree)?))
        .map_err(failed())
}

/// Syncs a branch without changes: its directory with the file `.git`, and its store except the
/// index, which is a cache.
///
/// # Errors
/// Those of fsync(2).
pub fn sync_branch(root: impl AsFd) -> StoreResult<()> {
    let failed = || StoreError::io("sync", STORE_NAME);
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    let sync_all = |of: &OwnedFd| -> std::io::Result<()> {
        for name in at::names(of)? {
            // The socket belongs to this process; the index can be rebuilt.
            if !matches!(name.as_slice(), b"control.sock" | b"index") {
                at::sync_name(of, &name)?;
            }
        }
        at::sync_dir(of)
    };
    let journal = open_trusted(&dir, &dir, "journal")?;
    let tree = at::open_dir(&dir, TREE_NAME).map_err(failed())?;
    sync_all(&journal)
        .and_then(|()| at::sync_name(&tree, DOT_GIT))
        .and_then(|()| sync_all(&dir))
        .and_then(|()| at::sync_name(&root, DOT_GIT))
        .and_then(|()| at::sync_in_order(&root))
        .map_err(failed())
}

/// Removes the store of a branch without changes if `root` contains only that and perhaps an
/// initial `.git` file; otherwise returns `false` and changes nothing. After a power cut the store
/// may be partial.
///
/// # Errors
/// Those of unlink(2).
pub fn unmake_store(root: impl AsFd, id: StoreId) -> StoreResult<bool> {
    let failed = || StoreError::io("remove", STORE_NAME);
    let mut names = at::names(&root).map_err(failed())?;
    names.retain(|name| !(name == DOT_GIT && is_link_of_git(&root)));
    match names.as_slice() {
        [] => Ok(true),
        [only] if only == STORE_NAME.as_bytes() => {
            let dir = open_trusted(&root, &root, STORE_NAME)?;
            let ours = match read_entry(&dir, MARK) {
                Ok(Some(mark)) => mark.id == id,
                // The mark was written partly, or its data did not reach the disk.
                Err(StoreError::BadBranch { .. }) => match read_format(&dir) {
                    Ok(format) => format.id == id,
                    Err(StoreError::NotAStore) => true,
                    Err(error) if error.errno() == sys::Errno::ENOENT => true,
                    Err(error) => return Err(error),
                },
                Ok(None) => at::names(&dir).map_err(failed())?.is_empty(),
                Err(error) => return Err(error),
            };
            if ours && has_nothing(&dir)? {
                at::remove_tree(&root, only).map_err(failed())?;
                return Ok(true);
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}

/// As [`unmake_store`], and removes the file `.git`. Reports whether `root` is empty then.
///
/// # Errors
/// Those of unlink(2).
pub fn unmake_branch(root: impl AsFd, id: StoreId) -> StoreResult<bool> {
    if !unmake_store(&root, id)? {
        return Ok(false);
    }
    if is_link_of_git(&root) {
        let removed = sys::unlink_at(&root, DOT_GIT).map_err(std::io::Error::from);
        removed.map_err(StoreError::io("remove", STORE_NAME))?;
    }
    Ok(true)
}

fn is_link_of_git(root: impl AsFd) -> bool {
    sys::stat_at(root, DOT_GIT).is_ok_and(|link| link.kind == Kind::File)
}
