//! The mount or store that a verb acts on: the one that contains the working directory.
//!
//! The search for `.ckptfs` in each directory above costs a few microseconds. If one exists, the
//! kernel is asked for its owner ([`look`]) before anything else.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::error::{ErrorContext, error, hinted, io_error};
use crate::mounts;
use crate::tree_path::{beyond_links, normal};
use ckptfs_api::display::word;
use ckptfs_api::{Client, Code, STORE_NAME, StoreDir, StoreLookup, VerbError, VerbResult, look};
use ckptfs_sys::{Errno, MountPoint, host};

/// Attempts to find a daemon that should be there, and the pause between them.
const TRIES_MAX: u32 = 40;
const TRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

/// A tree with a daemon.
#[derive(Debug)]
pub struct ServedTree {
    /// The directory where the tree was found: its mount, or its backing directory if the mount is
    /// elsewhere.
    pub root: PathBuf,
    /// The directory that the verb starts from; absolute.
    pub cwd: PathBuf,
    /// Connection to the daemon.
    pub client: Client,
}

impl ServedTree {
    /// Returns the path of the mount. The kernel reports it; an answer of the daemon is not
    /// trusted.
    pub fn mount(&self) -> VerbResult<PathBuf> {
        if self.client.store().is_some_and(StoreDir::is_mounted) {
            return Ok(self.root.clone());
        }
        let whole = |mount: &MountPoint| mount.serves(&self.root) && mount.root == Path::new("/");
        let mount = mounts::all()?.into_iter().find(whole).map(|mount| mount.at);
        mount.ok_or_else(|| {
            error(
                Code::NotMounted,
                format!(
                    "a daemon serves {}, but its mount is not visible from here",
                    self.root.display()
                ),
            )
        })
    }

    /// Returns the path of the mount, and its root (`O_PATH`).
    pub fn open_mount(&self) -> VerbResult<(PathBuf, OwnedFd)> {
        let at = self.mount()?;
        let opened = self
            .client
            .store()
            .ok_or(Errno::ENOTCONN)
            .and_then(|store| store.open_mount(&at));
        let root = opened.on(at.display())?;
        Ok((at, root))
    }
}

/// Result of a search around a directory.
#[derive(Debug)]
pub enum TreeLocation {
    /// A tree with a daemon.
    Served(ServedTree),
    /// A tree that has a history and no daemon.
    Store {
        /// The directory that contains the store.
        root: PathBuf,
        /// The store.
        store: StoreDir,
    },
    /// A directory that may be a tree, and belongs to another user than the caller or root: no
    /// request is sent there, and the search ends.
    Foreign {
        /// The directory.
        root: PathBuf,
        /// Its owner, if known.
        owner: Option<u32>,
    },
    /// A mount whose daemon has died.
    Stale {
        /// Path of the mount.
        root: PathBuf,
    },
    /// No tree of ckptfs.
    Nothing {
        /// Start of the search.
        cwd: PathBuf,
    },
}

/// Returns the directory that a verb starts from, absolute: `dir`, or else the working directory.
/// It may be on a dead mount.
pub fn start(dir: Option<&Path>) -> VerbResult<PathBuf> {
    let cwd = || std::env::current_dir().on("the working directory");
    let Some(dir) = dir else { return cwd() };
    let path = if dir.is_absolute() {
        dir.to_owned()
    } else {
        cwd()?.join(dir)
    };
    // realpath(3) alone would not detect this: it sends no request to a dead mount.
    match std::fs::metadata(&path).and_then(|found| Ok((found.is_dir(), path.canonicalize()?))) {
        Ok((true, real)) => Ok(real),
        Ok((false, _)) => Err(error(
            Code::NotADirectory,
            format!("{} is not a directory", dir.display()),
        )),
        Err(cause) if is_disconnected(&cause) => {
            let path = normal(&path);
            Ok(beyond_links(&path).unwrap_or(path))
        }
        Err(cause) => Err(io_error(dir.display(), cause)),
    }
}

/// Finds the mount or store that contains `cwd`, an absolute path.
///
/// Retries on a live mount, because a daemon that has just taken over may not be found at once.
pub fn locate(cwd: PathBuf) -> VerbResult<TreeLocation> {
    for _ in 1..TRIES_MAX {
        match locate_once(&cwd)? {
            TreeLocation::Served(served) => return Ok(TreeLocation::Served(served)),
            // The check waits until a worker has taken over; on a dead mount it fails.
            _ if mounts::serves_around(&mounts::all()?, &cwd) => std::thread::sleep(TRY_PAUSE),
            other => return Ok(other),
        }
    }
    locate_once(&cwd)
}

/// Like [`locate`], but does not wait if another user controls the tree that is found.
pub fn at_once(cwd: &Path) -> VerbResult<TreeLocation> {
    match locate_once(cwd)? {
        found @ (TreeLocation::Served(_) | TreeLocation::Foreign { .. }) => Ok(found),
        _ => locate(cwd.to_owned()),
    }
}

/// Returns the daemon of the tree that contains `cwd`, if it answers now; does not wait.
pub fn served_at_once(cwd: &Path) -> VerbResult<Option<ServedTree>> {
    Ok(match locate_once(cwd)? {
        TreeLocation::Served(served) => Some(served),
        _ => None,
    })
}

fn locate_once(cwd: &Path) -> VerbResult<TreeLocation> {
    for dir in cwd.ancestors() {
        let root = dir.to_owned();
        let store = match look(dir) {
            Ok(StoreLookup::Nothing) => continue,
            // The search ends, because it could find another tree above.
            Ok(StoreLookup::Gone) => break,
            Ok(StoreLookup::Foreign(owner)) => {
                return Ok(TreeLocation::Foreign {
                    root,
                    owner: Some(owner),
                });
            }
            Ok(StoreLookup::Store(store)) => store,
            Err(Errno::EACCES | Errno::EPERM) => {
                return Ok(TreeLocation::Foreign { root, owner: None });
            }
            Err(cause) => return Err(io_error(dir.join(STORE_NAME).display(), cause)),
        };
        match Client::of(&store) {
            Ok(client) => {
                return Ok(TreeLocation::Served(ServedTree {
                    root,
                    client,
                    cwd: cwd.to_owned(),
                }));
            }
            Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(TreeLocation::Store { root, store });
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                // Any directory may have this name; a store has a format.
                if host::holds(store.dir(), "format") {
                    return Ok(TreeLocation::Store { root, store });
                }
            }
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(TreeLocation::Foreign { root, owner: None });
            }
            Err(cause) => return Err(io_error(format!("the daemon of {}", dir.display()), cause)),
        }
    }
    // A dead mount may show cached entries, or fail. The mount table is read only now, because that
    // takes longer.
    match mounts::dead_around(&mounts::all()?, cwd) {
        Some(mount) => Ok(TreeLocation::Stale {
            root: mount.at.clone(),
        }),
        None => Ok(TreeLocation::Nothing {
            cwd: cwd.to_owned(),
        }),
    }
}

/// Returns the daemon of the tree that contains `dir`, or the working directory, or an error with a
/// hint.
pub fn served(dir: Option<&Path>) -> VerbResult<ServedTree> {
    match locate(start(dir)?)? {
        TreeLocation::Served(served) => Ok(served),
        other => Err(not_served(&other)),
    }
}

/// Returns the error for a tree without an available daemon.
pub fn not_served(located: &TreeLocation) -> VerbError {
    match located {
        TreeLocation::Served(_) => error(Code::Internal, "the daemon was found"),
        TreeLocation::Store { root, .. } => {
            let root = root.display();
            hinted(
                Code::NotMounted,
                format!("{root} has a history but is not mounted"),
                format!("ckptfs mount {}", word(root)),
            )
        }
        TreeLocation::Stale { root } => {
            let root = root.display();
            hinted(
                Code::StaleMount,
                format!("the daemon of the mount at {root} has died"),
                format!("to repair it: ckptfs mount {}", word(root)),
            )
        }
        TreeLocation::Foreign { root, owner } => {
            let root = root.display();
            let (whose, act) = match owner {
                Some(owner) => (
                    format!(" (number {owner})"),
                    format!(": sudo -u '#{owner}' ckptfs ..."),
                ),
                None => (String::new(), String::new()),
            };
            let message =
                format!("{root} belongs to another user{whose}, whose daemon is not trusted");
            hinted(
                Code::NoPermission,
                message,
                format!(
                    "only the user who mounted it can control it{act}; to name another directory: -C DIR"
                ),
            )
        }
        TreeLocation::Nothing { cwd } => hinted(
            Code::NotMounted,
            format!(
                "{} is not inside a directory mounted by ckptfs",
                cwd.display()
            ),
            "ckptfs mount DIR",
        ),
    }
}

/// Reports whether an error is that of a mount whose daemon has died.
pub fn is_disconnected(cause: &io::Error) -> bool {
    cause
        .raw_os_error()
        .is_some_and(|number| [Errno::ENOTCONN.0, Errno::ECONNABORTED.0].contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_daemon_is_found_from_below_and_a_stranger_s_directory_is_not() {
        let dir = tempfile::tempdir().expect("directory");
        let root = dir.path().canonicalize().expect("path");
        std::fs::create_dir_all(root.join("a/.ckptfs")).expect("mkdir");
        std::fs::create_dir_all(root.join("a/b/.ckptfs")).expect("mkdir");
        std::fs::write(root.join("a/.ckptfs/format"), "x").expect("write");
        let TreeLocation::Store { root: found, .. } = locate(root.join("a/b")).expect("locate")
        else {
            panic!("no store")
        };
        assert_eq!(found, root.join("a"));
        assert!(matches!(
            locate(root.clone()).expect("locate"),
            TreeLocation::Nothing { .. }
        ));
        assert_eq!(
            served(Some(&root.join("a"))).expect_err("no daemon").code,
            Code::NotMounted
        );
        assert_eq!(
            served(Some(&root.join("none")))
                .expect_err("no directory")
                .code,
            Code::NotFound
        );
    }
}
