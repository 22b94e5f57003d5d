//! Finding the store of a directory, and deciding whether to trust it.
//!
//! A user who may write to a directory above the working directory can put an imitation of a tree
//! there: a socket that answers, a link to another tree's store, a FUSE filesystem. A client
//! therefore sends no request before the kernel has confirmed the owner:
//! - **a mount** is a ckptfs mount of the caller or root, and the directory is its root. Then its
//!   link `.ckptfs`, which the daemon provides, is followed;
//! - **a plain directory** contains its store: a directory, never a link, of the caller or root,
//!   that others cannot write. Owners reported by another user's FUSE filesystem are not trusted.
//!
//! All checks use descriptors, so a directory exchanged during the checks is not mistaken for the
//! one checked.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::STORE_NAME;
use ckptfs_sys::{self as sys, Errno, Kind, MountPoint, OpenKind, SysResult, host};

/// Maximum number of attempts for a directory whose mount ends during the check.
const TRIES_MAX: usize = 8;
/// Permission bits that let other users create entries.
const OTHERS_WRITE: u32 = 0o022;

/// A trusted store.
#[derive(Debug)]
pub struct StoreDir {
    /// The directory (`O_PATH`).
    pub(super) dir: OwnedFd,
    /// Its owner, who must also own the peer of its socket.
    pub(super) owner: u32,
    /// Its tree, as the source of the mount, if known.
    pub(super) tree: Option<String>,
    mounted: bool,
}

/// The result of examining a directory.
#[derive(Debug)]
pub enum StoreLookup {
    /// No store.
    Nothing,
    /// A store, or the mount that shows one.
    Store(StoreDir),
    /// The root of a ckptfs mount whose daemon has ended, or was just replaced by another.
    Gone,
    /// A store, or a mount, of this user, who is neither the caller nor root.
    Foreign(u32),
}

impl StoreLookup {
    fn store(self) -> Option<StoreDir> {
        match self {
            StoreLookup::Store(store) => Some(store),
            StoreLookup::Nothing | StoreLookup::Gone | StoreLookup::Foreign(_) => None,
        }
    }
}

/// Examines the directory at `dir`, an absolute path without links.
///
/// # Errors
/// EACCES: the caller lacks permission. Those of open(2), statx(2), and of reading the mount table.
pub fn look(dir: &Path) -> SysResult<StoreLookup> {
    for _ in 1..TRIES_MAX {
        match look_once(dir) {
            // A mount was detached, or a store removed, between two calls.
            Err(Errno::ENOENT) => {}
            seen => return seen,
        }
    }
    look_once(dir)
}

fn look_once(dir: &Path) -> SysResult<StoreLookup> {
    // Most directories have no such entry, and need no further calls.
    match host::look_at(&dir.join(STORE_NAME)) {
        Ok(()) => {}
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG) => {
            return Ok(StoreLookup::Nothing);
        }
        Err(Errno::ENOTCONN) => return Ok(StoreLookup::Gone),
        Err(errno) => return Err(errno),
    }
    let root = host::open_dir_itself(dir)?;
    let (mount, is_root) = sys::mount_of(&root)?;
    match mount.owner {
        Some(owner) if mount.is_foreign() => Ok(StoreLookup::Foreign(owner)),
        Some(owner)
            if is_root && mount.is_ours() && mount.root == Path::new("/") && mount.at == dir =>
        {
            shown(&root, mount, owner)
        }
        _ => plain(&root, dir),
    }
}

/// Examines the store of a plain directory, without reading the mount table: the caller has checked
/// the mount.
fn plain(root: &OwnedFd, dir: &Path) -> SysResult<StoreLookup> {
    let store = sys::open_path_at(root, STORE_NAME.as_bytes())?;
    let stat = sys::stat_fd(&store)?;
    // A leftover from copying a mount: a link to an unrelated descriptor.
    if stat.kind != Kind::Dir {
        return Ok(StoreLookup::Nothing);
    }
    if sys::is_trusted(stat.uid) && stat.mode & OTHERS_WRITE == 0 {
        return Ok(StoreLookup::Store(StoreDir {
            dir: store,
            owner: stat.uid,
            tree: Some(sys::mount_source(dir)),
            mounted: false,
        }));
    }
    // Any user may have a directory of this name; only a store has a format file.
    match sys::stat_at(&store, b"format") {
        Err(Errno::ENOENT) => Ok(StoreLookup::Nothing),
        _ => Ok(StoreLookup::Foreign(stat.uid)),
    }
}

/// Examines the store that a ckptfs mount shows.
fn shown(root: &OwnedFd, mount: MountPoint, owner: u32) -> SysResult<StoreLookup> {
    match host::open_dir_in(root, STORE_NAME) {
        // A link to a process that has ended.
        Err(Errno::ENOENT | Errno::ENOTCONN | Errno::ECONNABORTED) => Ok(StoreLookup::Gone),
        Err(errno) => Err(errno),
        Ok(dir) => match sys::stat_fd(&dir)?.uid {
            uid if uid == owner => Ok(StoreLookup::Store(StoreDir {
                dir,
                owner,
                tree: Some(mount.source),
                mounted: true,
            })),
            uid => Ok(StoreLookup::Foreign(uid)),
        },
    }
}

/// Returns whether two descriptors name the same directory.
///
/// # Errors
/// Those of fstat(2).
pub fn is_same(one: impl AsFd, other: impl AsFd) -> SysResult<bool> {
    let (one, other) = (sys::stat_fd(one)?, sys::stat_fd(other)?);
    Ok(one.kind == Kind::Dir && (one.dev, one.ino, one.kind) == (other.dev, other.ino, other.kind))
}

impl StoreDir {
    /// Returns the store of a directory, if it is trusted.
    ///
    /// # Errors
    /// As [`look`].
    pub fn of(dir: &Path) -> SysResult<Option<StoreDir>> {
        look(dir).map(StoreLookup::store)
    }

    /// As [`StoreDir::of`], for a directory open at `root` that was found at `dir`, ignoring later
    /// mounts over it.
    ///
    /// # Errors
    /// Those of openat(2) and fstat(2). ENOENT: it has no store.
    pub fn below(root: &OwnedFd, dir: &Path) -> SysResult<Option<StoreDir>> {
        plain(root, dir).map(StoreLookup::store)
    }

    /// Trusts a directory that the caller has verified to be a store.
    pub(super) fn known(dir: impl AsFd) -> std::io::Result<StoreDir> {
        let dir = dir.as_fd().try_clone_to_owned()?;
        Ok(StoreDir {
            owner: sys::stat_fd(&dir)?.uid,
            dir,
            tree: None,
            mounted: false,
        })
    }

    /// Returns the directory (`O_PATH`).
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Returns its tree, as the source of the mount, if known.
    pub fn tree(&self) -> Option<&str> {
        self.tree.as_deref()
    }

    /// Returns whether it was found through the mount that shows it.
    pub fn is_mounted(&self) -> bool {
        self.mounted
    }

    /// Opens the root of the mount of this tree at `at` (`O_PATH`).
    ///
    /// # Errors
    /// ESTALE: another filesystem is mounted there. Those of open(2).
    pub fn open_mount(&self, at: &Path) -> SysResult<OwnedFd> {
        let root = host::open_dir_itself(at)?;
        let (mount, is_root) = sys::mount_of(&root)?;
        if is_root && mount.is_ours() && Some(&mount.source) == self.tree.as_ref() {
            Ok(root)
        } else {
            Err(Errno::ESTALE)
        }
    }

    /// Returns whether a descriptor received from the daemon names the directory that contains this
    /// store.
    ///
    /// # Errors
    /// Those of openat(2).
    pub fn is_in(&self, backing: impl AsFd) -> SysResult<bool> {
        is_same(
            &self.dir,
            sys::open_path_at(backing, STORE_NAME.as_bytes())?,
        )
    }

    /// Returns whether a descriptor received from the daemon names the directory at `path` in this
    /// store.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub fn has(&self, path: &[u8], dir: impl AsFd) -> SysResult<bool> {
        is_same(sys::open_beneath(&self.dir, path, OpenKind::Path)?, dir)
    }

    pub(super) fn try_clone(&self) -> std::io::Result<StoreDir> {
        Ok(StoreDir {
            dir: self.dir.try_clone()?,
            tree: self.tree.clone(),
            ..*self
        })
    }
}
