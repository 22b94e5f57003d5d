//! Which mount, or which store, a verb acts on: the one that contains the working directory.
//!
//! Walking up and looking for `.ckptfs` costs a few microseconds; the table of mounts is not read.

use std::io;
use std::path::{Path, PathBuf};

use super::error::{error, hinted, io_error};
use super::mounts;
use super::tree_path::{beyond_links, normal};
use crate::control::{Client, STORE_NAME};
use crate::engine::api::{AuditEvent, CheckpointInfo, Query, StateName, VerbError, VerbResult, Verbs};
use crate::engine::offline::Offline;
use crate::sys::Errno;
use crate::sys::{self, host};

/// How often a daemon is looked for where one should be, and how long after each other.
const TRIES_MAX: u32 = 40;
const TRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

/// A tree with a daemon.
#[derive(Debug)]
pub struct Served {
    /// The directory that the tree is seen at: its mount, or its backing directory if that is elsewhere.
    pub root: PathBuf,
    /// Where the user is; absolute.
    pub cwd: PathBuf,
    /// The daemon.
    pub client: Client,
}

/// What was found around a directory.
#[derive(Debug)]
pub enum Located {
    /// A tree with a daemon.
    Served(Served),
    /// A tree that has a history and no daemon.
    Store {
        /// The directory that holds the store.
        root: PathBuf,
    },
    /// A mount whose daemon has died.
    Stale {
        /// Where it is mounted.
        root: PathBuf,
    },
    /// Nothing of ours.
    Nothing {
        /// Where the search began.
        cwd: PathBuf,
    },
}

/// The directory that a verb starts from, absolute: `dir`, or else the working directory. It may belong to a dead mount.
pub fn start(dir: Option<&Path>) -> VerbResult<PathBuf> {
    let cwd = || std::env::current_dir().map_err(|cause| io_error("the working directory", cause));
    let Some(dir) = dir else { return cwd() };
    let path = if dir.is_absolute() { dir.to_owned() } else { cwd()?.join(dir) };
    // realpath(3) alone would not notice: it asks a dead mount for nothing.
    match std::fs::metadata(&path).and_then(|found| Ok((found.is_dir(), path.canonicalize()?))) {
        Ok((true, real)) => Ok(real),
        Ok((false, _)) => Err(error("not-a-directory", format!("{} is not a directory", dir.display()))),
        Err(cause) if is_disconnected(&cause) => {
            let path = normal(&path);
            Ok(beyond_links(&path).unwrap_or(path))
        }
        Err(cause) => Err(io_error(dir.display(), cause)),
    }
}

/// Finds the mount or store that contains `cwd`, an absolute path.
///
/// A daemon that has just taken over from another may not be found at once.
pub fn locate(cwd: PathBuf) -> VerbResult<Located> {
    for _ in 1..TRIES_MAX {
        match locate_once(&cwd)? {
            Located::Served(served) => return Ok(Located::Served(served)),
            // Asking the mount waits until somebody has taken over; a dead one says so.
            _ if mounts::serves_around(&mounts::all()?, &cwd) => std::thread::sleep(TRY_PAUSE),
            other => return Ok(other),
        }
    }
    locate_once(&cwd)
}

fn locate_once(cwd: &Path) -> VerbResult<Located> {
    for dir in cwd.ancestors() {
        let store = match host::open_dir_path(&dir.join(STORE_NAME)) {
            Ok(store) => store,
            Err(Errno::ENOTCONN) => break,
            // What is left of the link to a daemon that is gone; beyond it nothing is looked for, or another tree would be taken.
            Err(Errno::ENOENT) if dir.join(STORE_NAME).is_symlink() => break,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG) => continue,
            Err(Errno::EACCES | Errno::EPERM) => return Err(denied(dir)),
            Err(cause) => return Err(io_error(dir.join(STORE_NAME).display(), cause)),
        };
        match Client::connect(&store) {
            Ok(client) => return Ok(Located::Served(Served { root: dir.to_owned(), client, cwd: cwd.to_owned() })),
            Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => return Ok(Located::Store { root: dir.to_owned() }),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                // Anybody may have a directory of this name; a store says what it is.
                if host::holds(&store, "format") {
                    return Ok(Located::Store { root: dir.to_owned() });
                }
            }
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => return Err(denied(dir)),
            Err(cause) => return Err(io_error(format!("the daemon of {}", dir.display()), cause)),
        }
    }
    // A dead mount may show what the kernel remembers of it, or fail: the table of mounts is asked only now, where there is time.
    match mounts::dead_around(&mounts::all()?, cwd) {
        Some(mount) => Ok(Located::Stale { root: mount.at.clone() }),
        None => Ok(Located::Nothing { cwd: cwd.to_owned() }),
    }
}

/// The daemon of the tree that contains `dir`, or the working directory; what to do if there is none.
pub fn served(dir: Option<&Path>) -> VerbResult<Served> {
    match locate(start(dir)?)? {
        Located::Served(served) => Ok(served),
        other => Err(not_served(&other)),
    }
}

/// Whoever can tell the history of the tree that contains `dir`, or the working directory: its daemon, or without one its store.
pub fn history(dir: Option<&Path>) -> VerbResult<History> {
    match locate(start(dir)?)? {
        Located::Served(served) => Ok(History::Daemon(served.client)),
        Located::Store { root } => match offline(&root)? {
            Some(store) => Ok(History::Store(store)),
            None => Err(not_served(&Located::Store { root })),
        },
        other => Err(not_served(&other)),
    }
}

/// The history as the store alone tells it.
fn offline(root: &Path) -> VerbResult<Option<Box<dyn Verbs>>> {
    let root = sys::open_root(root).map_err(|cause| super::error::io_error(root.display(), cause))?;
    Ok(Some(Box::new(Offline::open(root)?)))
}

/// Who tells the history.
pub enum History {
    /// The daemon.
    Daemon(Client),
    /// The store, read by this process.
    Store(Box<dyn Verbs>),
}

impl History {
    /// The checkpoints that are asked for, newest first.
    pub fn find(&mut self, query: Query) -> VerbResult<Vec<CheckpointInfo>> {
        match self {
            History::Daemon(client) => client.find(query),
            History::Store(store) => store.find(&query),
        }
    }

    /// Who did what when, oldest first.
    pub fn audit(&mut self) -> VerbResult<Vec<AuditEvent>> {
        match self {
            History::Daemon(client) => client.audit(),
            History::Store(store) => store.audit(),
        }
    }

    /// One checkpoint.
    pub fn show(&mut self, state: &StateName) -> VerbResult<CheckpointInfo> {
        match self {
            History::Daemon(client) => client.show(state.clone()),
            History::Store(store) => store.show(state),
        }
    }
}

/// Why there is no daemon to ask.
pub fn not_served(located: &Located) -> VerbError {
    match located {
        Located::Served(_) => error("internal", "the daemon was found"),
        Located::Store { root } => {
            let root = root.display();
            hinted("not-mounted", format!("{root} has a history but is not mounted"), format!("ckptfs mount {root}"))
        }
        Located::Stale { root } => {
            let root = root.display();
            hinted("stale-mount", format!("the daemon of the mount at {root} has died"), format!("this repairs it: ckptfs mount {root}"))
        }
        Located::Nothing { cwd } => hinted("not-mounted", format!("{} is in no directory that ckptfs serves", cwd.display()), "ckptfs mount DIR"),
    }
}

fn denied(dir: &Path) -> VerbError {
    let message = format!("the mount at {} belongs to another user", dir.display());
    hinted("no-permission", message, "only the user who mounted it and root control it")
}

/// Whether this is how a mount fails whose daemon has died.
pub fn is_disconnected(cause: &io::Error) -> bool {
    cause.raw_os_error().is_some_and(|number| [Errno::ENOTCONN.0, Errno::ECONNABORTED.0].contains(&number))
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
        let Located::Store { root: found } = locate(root.join("a/b")).expect("locate") else { panic!("no store") };
        assert_eq!(found, root.join("a"));
        assert!(matches!(locate(root.clone()).expect("locate"), Located::Nothing { .. }));
        assert_eq!(served(Some(&root.join("a"))).expect_err("no daemon").code, "not-mounted");
        assert_eq!(served(Some(&root.join("none"))).expect_err("no directory").code, "not-found");
    }
}
