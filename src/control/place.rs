//! Where a daemon is asked, and which are believed.
//!
//! Whoever may write to a directory above the working directory can put something there that looks
//! like a tree of ours: a socket that answers, a link to another tree's store, a FUSE filesystem of
//! their own. So nothing is asked before the kernel has said whose it is:
//! - **a mount** is one of ours, of the caller or root, and the directory is its root. Then its
//!   link `.ckptfs` is followed: the daemon made it;
//! - **a plain directory** has its store in it: a directory, never a link, of the caller or root,
//!   that others cannot write. What a FUSE filesystem of somebody else says of owners is not
//!   believed.
//!
//! Everything is asked of descriptors: a directory that is exchanged meanwhile is not the one that
//! was looked at.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use super::STORE_NAME;
use crate::sys::{self, Errno, Kind, MountPoint, OpenKind, SysResult, host};

/// How often a directory is looked at whose mount goes away meanwhile.
const TRIES_MAX: usize = 8;
/// Permission bits with which others could put something in.
const OTHERS_WRITE: u32 = 0o022;

/// A store that may be believed.
#[derive(Debug)]
pub struct Store {
    /// The directory (`O_PATH`).
    pub(super) dir: OwnedFd,
    /// Whose it is, and who must be at the other end of its socket.
    pub(super) owner: u32,
    /// Which tree it is of, as the source of its mount names it, if that is known.
    pub(super) tree: Option<String>,
    mounted: bool,
}

/// What is in a directory.
#[derive(Debug)]
pub enum Seen {
    /// Nothing of ours.
    Nothing,
    /// A store, or the mount that shows one.
    Store(Store),
    /// The root of a mount of ours whose daemon is gone, or has just been followed by another.
    Gone,
    /// A store, or a mount, of this user, who is neither the caller nor root.
    Foreign(u32),
}

impl Seen {
    fn store(self) -> Option<Store> {
        match self {
            Seen::Store(store) => Some(store),
            Seen::Nothing | Seen::Gone | Seen::Foreign(_) => None,
        }
    }
}

/// What is in the directory at `dir`, an absolute path without links.
///
/// # Errors
/// EACCES: this user may not look. Those of open(2), statx(2), and of reading the table of mounts.
pub fn look(dir: &Path) -> SysResult<Seen> {
    for _ in 1..TRIES_MAX {
        match look_once(dir) {
            // Between two calls a mount was detached, or a store removed.
            Err(Errno::ENOENT) => {}
            seen => return seen,
        }
    }
    look_once(dir)
}

fn look_once(dir: &Path) -> SysResult<Seen> {
    // Most directories have nothing of this name, and then nothing else is asked.
    match host::look_at(&dir.join(STORE_NAME)) {
        Ok(()) => {}
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG) => {
            return Ok(Seen::Nothing);
        }
        Err(Errno::ENOTCONN) => return Ok(Seen::Gone),
        Err(errno) => return Err(errno),
    }
    let root = host::open_dir_itself(dir)?;
    let (mount, is_root) = sys::mount_of(&root)?;
    match mount.owner {
        Some(owner) if mount.is_foreign() => Ok(Seen::Foreign(owner)),
        Some(owner)
            if is_root && mount.is_ours() && mount.root == Path::new("/") && mount.at == dir =>
        {
            shown(&root, mount, owner)
        }
        _ => plain(&root, dir),
    }
}

/// The store of a plain directory, where nothing is asked of the table of mounts: it is known what
/// the directory is on.
fn plain(root: &OwnedFd, dir: &Path) -> SysResult<Seen> {
    let store = sys::open_path_at(root, STORE_NAME.as_bytes())?;
    let stat = sys::stat_fd(&store)?;
    // What is left of a copy of a mount: a link that leads to some descriptor of some process.
    if stat.kind != Kind::Dir {
        return Ok(Seen::Nothing);
    }
    if sys::is_trusted(stat.uid) && stat.mode & OTHERS_WRITE == 0 {
        return Ok(Seen::Store(Store {
            dir: store,
            owner: stat.uid,
            tree: Some(sys::mount_source(dir)),
            mounted: false,
        }));
    }
    // Anybody may have a directory of this name; a store says what it is.
    match sys::stat_at(&store, b"format") {
        Err(Errno::ENOENT) => Ok(Seen::Nothing),
        _ => Ok(Seen::Foreign(stat.uid)),
    }
}

/// The store that a mount of ours shows.
fn shown(root: &OwnedFd, mount: MountPoint, owner: u32) -> SysResult<Seen> {
    match host::open_dir_in(root, STORE_NAME) {
        // A link to a process that is gone.
        Err(Errno::ENOENT | Errno::ENOTCONN | Errno::ECONNABORTED) => Ok(Seen::Gone),
        Err(errno) => Err(errno),
        Ok(dir) => match sys::stat_fd(&dir)?.uid {
            uid if uid == owner => Ok(Seen::Store(Store {
                dir,
                owner,
                tree: Some(mount.source),
                mounted: true,
            })),
            uid => Ok(Seen::Foreign(uid)),
        },
    }
}

/// Whether two descriptors are of one directory.
///
/// # Errors
/// Those of fstat(2).
pub fn is_same(one: impl AsFd, other: impl AsFd) -> SysResult<bool> {
    let (one, other) = (sys::stat_fd(one)?, sys::stat_fd(other)?);
    Ok(one.kind == Kind::Dir && (one.dev, one.ino, one.kind) == (other.dev, other.ino, other.kind))
}

impl Store {
    /// The store of a directory, if it may be believed.
    ///
    /// # Errors
    /// As [`look`].
    pub fn of(dir: &Path) -> SysResult<Option<Store>> {
        look(dir).map(Seen::store)
    }

    /// As [`Store::of`], of a directory that is open at `root` and was found at `dir`, whatever has
    /// been mounted over it since.
    ///
    /// # Errors
    /// Those of openat(2) and fstat(2). ENOENT: it has no store.
    pub fn below(root: &OwnedFd, dir: &Path) -> SysResult<Option<Store>> {
        plain(root, dir).map(Seen::store)
    }

    /// The store at a directory that the caller knows to be one.
    pub(super) fn known(dir: impl AsFd) -> std::io::Result<Store> {
        let dir = dir.as_fd().try_clone_to_owned()?;
        Ok(Store {
            owner: sys::stat_fd(&dir)?.uid,
            dir,
            tree: None,
            mounted: false,
        })
    }

    /// The directory (`O_PATH`).
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Which tree it is of, as the source of its mount names it, if that is known.
    pub fn tree(&self) -> Option<&str> {
        self.tree.as_deref()
    }

    /// It was found through the mount that shows it.
    pub fn is_mounted(&self) -> bool {
        self.mounted
    }

    /// Opens the root of the mount that shows this tree (`O_PATH`); it is at `at`.
    ///
    /// # Errors
    /// ESTALE: something else is mounted there. Those of open(2).
    pub fn open_mount(&self, at: &Path) -> SysResult<OwnedFd> {
        let root = host::open_dir_itself(at)?;
        let (mount, is_root) = sys::mount_of(&root)?;
        if is_root && mount.is_ours() && Some(&mount.source) == self.tree.as_ref() {
            Ok(root)
        } else {
            Err(Errno::ESTALE)
        }
    }

    /// Whether a descriptor that came from the daemon is the directory that this store is in.
    ///
    /// # Errors
    /// Those of openat(2).
    pub fn is_in(&self, backing: impl AsFd) -> SysResult<bool> {
        is_same(
            &self.dir,
            sys::open_path_at(backing, STORE_NAME.as_bytes())?,
        )
    }

    /// Whether one that came from it is the directory at `path` in this store.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub fn has(&self, path: &[u8], dir: impl AsFd) -> SysResult<bool> {
        is_same(sys::open_beneath(&self.dir, path, OpenKind::Path)?, dir)
    }

    pub(super) fn try_clone(&self) -> std::io::Result<Store> {
        Ok(Store {
            dir: self.dir.try_clone()?,
            tree: self.tree.clone(),
            ..*self
        })
    }
}
