//! The store of a branch: its mark, and how it is made. Nothing of it is synced one by one, but all
//! of it once, before the first change in the branch.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use super::super::at;
use super::branches::{BranchEntry, DOT_GIT, MARK, existing, read_entry};
use super::{STORE_NAME, StoreId, open_trusted, read_format};
use crate::store::error::{StoreError, StoreResult};
use crate::sys::{self, Kind};

/// What the store in the directory `root` says of whose branch it is; `None`: of nobody's.
///
/// # Errors
/// `BadBranch`; those of open(2).
pub fn branch_mark(root: impl AsFd) -> StoreResult<Option<BranchEntry>> {
    match existing(&root, STORE_NAME)? {
        Some(dir) => read_entry(&dir, MARK),
        None => Ok(None),
    }
}

/// Which store is to be made here, if it is that of a branch.
pub(super) fn marked(store: &OwnedFd) -> StoreResult<Option<StoreId>> {
    Ok(read_entry(store, MARK)?.map(|mark| mark.id))
}

/// The id of the store in the directory `root`, if there is one that can be read.
pub fn store_id(root: impl AsFd) -> Option<StoreId> {
    let dir = open_trusted(&root, &root, STORE_NAME).ok()?;
    read_format(&dir).ok().map(|format| format.id)
}

/// Makes the directory of a branch's store in `root`, with nothing but the mark of whose it is, so
/// that whatever is made in it afterwards can be told from something else. Not durable on return:
/// see [`sync_branch`].
///
/// # Errors
/// EEXIST: there is a store. Those of mkdir(2), write(2).
pub fn mark_branch(root: impl AsFd, entry: &BranchEntry) -> StoreResult<()> {
    let failed = || StoreError::io("mark", STORE_NAME);
    if !at::make_dir(&root, STORE_NAME).map_err(failed())? {
        return Err(failed()(Errno::EXIST.into()));
    }
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    at::write_unsynced(&dir, MARK, &entry.text()).map_err(failed())
}

/// Makes a branch in which nothing was changed yet durable: its directory, with the file that tells
/// git of it, and of its store all but the index, which is a cache.
///
/// # Errors
/// Those of fsync(2).
pub fn sync_branch(root: impl AsFd) -> StoreResult<()> {
    let failed = || StoreError::io("sync", STORE_NAME);
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    let sync_all = |of: &OwnedFd| -> std::io::Result<()> {
        for name in at::names(of)? {
            // The socket is of this process, the index can be made anew.
            if !matches!(name.as_slice(), b"control.sock" | b"index") {
                at::sync_name(of, &name)?;
            }
        }
        at::sync_dir(of)
    };
    let journal = open_trusted(&dir, &dir, "journal")?;
    sync_all(&journal)
        .and_then(|()| sync_all(&dir))
        .and_then(|()| at::sync_name(&root, DOT_GIT))
        .and_then(|()| at::sync_in_order(&root))
        .map_err(failed())
}

/// Takes back the store of a branch in which nothing was changed, if `root` has nothing else in it
/// but the file `.git` that it may begin with; `false`: it has, and was left alone. After a power
/// cut it may be there in part.
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
                // It was not written to its end, or its bytes did not reach the disk.
                Err(StoreError::BadBranch { .. }) => match read_format(&dir) {
                    Ok(format) => format.id == id,
                    Err(StoreError::NotAStore) => true,
                    Err(error) if error.errno() == sys::Errno::ENOENT => true,
                    Err(error) => return Err(error),
                },
                Ok(None) => at::names(&dir).map_err(failed())?.is_empty(),
                Err(error) => return Err(error),
            };
            if ours {
                at::remove_tree(&root, only).map_err(failed())?;
            }
            Ok(ours)
        }
        _ => Ok(false),
    }
}

/// As [`unmake_store`], and takes the file `.git` away too; whether `root` is empty then.
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
