//! `ID:PATH`: a path in a state of the tree, read through the mount.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::error::{ErrorContext, hinted, io_error};
use crate::locate::{self, ServedTree};
use crate::tree_path::in_tree;
use ckptfs_api::display::word;
use ckptfs_api::{
    CheckpointInfo, Code, SNAPDIR, ShowCheckpoint, StateName, StoreDir, TreePath, VerbError,
    VerbResult, is_snapdir_name, noted_snapdir,
};
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, Stat, SysResult};

/// Returns the name of the snapshot directory in the mount of a store.
pub fn snapdir(store: Option<&StoreDir>) -> String {
    let noted = store.and_then(|store| noted_snapdir(store.dir()));
    noted.unwrap_or_else(|| SNAPDIR.to_owned())
}

/// Returns the same for a mount of another user, whose store cannot be read: a link leads to it,
/// unless the tree has an entry `.zfs`.
pub fn snapdir_of_others(root: &Path) -> String {
    let link = std::fs::read_link(root.join(".zfs/snapshot"));
    let name = link
        .ok()
        .and_then(|link| Some(link.strip_prefix("..").ok()?.to_str()?.to_owned()));
    name.filter(|name| is_snapdir_name(name))
        .unwrap_or_else(|| SNAPDIR.to_owned())
}

/// One state of a mounted tree, for reading.
pub struct StateTree {
    root: OwnedFd,
}

impl StateTree {
    /// Opens the tree at a checkpoint; `None`: the live tree.
    pub fn at(served: &ServedTree, checkpoint: Option<&CheckpointInfo>) -> VerbResult<StateTree> {
        let (at, root) = served.open_mount()?;
        let Some(checkpoint) = checkpoint else {
            return Ok(StateTree { root });
        };
        let view = format!("{}/{}", snapdir(served.client.store()), checkpoint.id);
        let root = sys::open_beneath(&root, view.as_bytes(), OpenKind::Path)
            .on(at.join(&view).display())?;
        Ok(StateTree { root })
    }

    /// Returns its root (`O_PATH`).
    pub fn into_root(self) -> OwnedFd {
        self.root
    }

    /// Opens a path (`O_PATH`), a link itself. No link on the way is followed.
    pub fn open_path(&self, path: &TreePath) -> SysResult<OwnedFd> {
        sys::open_beneath(&self.root, relative(path), OpenKind::Path)
    }

    /// Opens a regular file, and nothing else, because a FIFO would block.
    pub fn open_file(&self, path: &TreePath) -> SysResult<File> {
        let there = self.open_path(path)?;
        match sys::stat_fd(&there)?.kind {
            Kind::File => sys::reopen(&there, Access::READ),
            Kind::Dir => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Opens a directory.
    pub fn open_dir(&self, path: &TreePath) -> SysResult<OwnedFd> {
        sys::open_beneath(&self.root, relative(path), OpenKind::Dir)
    }

    /// Returns the attributes of a path, of a link itself.
    pub fn stat(&self, path: &TreePath) -> SysResult<Stat> {
        sys::stat_fd(self.open_path(path)?)
    }
}

fn relative(path: &TreePath) -> &[u8] {
    if path.0.is_empty() { b"." } else { &path.0 }
}

/// The meaning of `ID:PATH`: the state, the path in it, and the tree to read it from.
pub struct PathInState {
    /// The checkpoint; `None`: the live tree.
    pub checkpoint: Option<CheckpointInfo>,
    /// Path relative to the root of the tree.
    pub path: TreePath,
    /// The state.
    pub tree: StateTree,
    /// Name of the snapshot directory.
    snapdir: String,
}

impl PathInState {
    /// Returns a path in a checkpoint, or (`None`) in the live tree.
    pub fn new(
        served: &ServedTree,
        checkpoint: Option<CheckpointInfo>,
        path: TreePath,
    ) -> VerbResult<PathInState> {
        Ok(PathInState {
            path,
            tree: StateTree::at(served, checkpoint.as_ref())?,
            checkpoint,
            snapdir: snapdir(served.client.store()),
        })
    }

    /// Returns the path below the mount.
    fn below_mount(&self, path: &str) -> String {
        match &self.checkpoint {
            Some(checkpoint) => format!("{}/{}/{path}", self.snapdir, checkpoint.id),
            None => path.to_owned(),
        }
    }

    /// Returns the error for a path that cannot be read.
    pub fn failed(&self, cause: Errno) -> VerbError {
        let path = String::from_utf8_lossy(&self.path.0);
        let state = self
            .checkpoint
            .as_ref()
            .map_or("live".to_owned(), |checkpoint| checkpoint.id.to_string());
        let name = format!("{state}:{path}");
        match cause {
            Errno::ENOENT | Errno::ENOTDIR => hinted(
                Code::NotFound,
                format!("{name} does not exist"),
                format!("to list its versions: ckptfs log {}", word(&path)),
            ),
            Errno::ELOOP => hinted(
                Code::IsLink,
                format!("{name} goes through a symbolic link"),
                format!(
                    "`readlink -f {}` shows where it leads",
                    word(self.below_mount(&path))
                ),
            ),
            Errno::EINVAL => hinted(
                Code::NotAFile,
                format!("{name} is not a regular file"),
                format!("`ls -l {}` shows what it is", word(self.below_mount(&path))),
            ),
            Errno::ENODATA => {
                let show = format!(
                    "ckptfs show {state} shows what was dropped; ckptfs log {} lists the other versions",
                    word(&path)
                );
                hinted(
                    Code::Dropped,
                    format!("the content of {name} was dropped by a retention rule"),
                    show,
                )
            }
            Errno::EIO => hinted(
                Code::Io,
                format!("{name} cannot be read: {cause}"),
                "it may have been changed while nothing was mounted: ckptfs status",
            ),
            _ => io_error(name, cause),
        }
    }
}

/// Parses `ID:PATH`. PATH starts at the working directory, and an empty PATH is that directory. An
/// ID may contain colons: the first prefix that names a state is the ID.
pub fn find(dir: Option<&Path>, text: &std::ffi::OsStr) -> VerbResult<PathInState> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = text.as_bytes();
    let mut served = locate::served(dir)?;
    let mut first = None;
    for colon in bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b':')
        .map(|(index, _)| index)
    {
        let (id, path) = (
            bytes.get(..colon).unwrap_or_default(),
            bytes.get(colon + 1..).unwrap_or_default(),
        );
        let Ok(id) = std::str::from_utf8(id) else {
            break;
        };
        match state(&mut served, id) {
            Ok(checkpoint) => {
                let path = in_tree(
                    &served.root,
                    &served.cwd,
                    &PathBuf::from(std::ffi::OsStr::from_bytes(path)),
                )?;
                return PathInState::new(&served, checkpoint, path);
            }
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| {
        let text = text.to_string_lossy();
        hinted(
            Code::Usage,
            format!("{text:?} is not ID:PATH"),
            format!("for example: {}", word(format!("latest:{text}"))),
        )
    }))
}

/// Returns the checkpoint of a name; `None`: the live tree.
pub fn state(served: &mut ServedTree, name: &str) -> VerbResult<Option<CheckpointInfo>> {
    if name == "live" {
        Ok(None)
    } else {
        served
            .client
            .ask(ShowCheckpoint {
                state: StateName(name.to_owned()),
            })
            .map(Some)
    }
}
