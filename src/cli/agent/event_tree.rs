//! The tree of an event: the one that contains the file of the event, or the working directory of
//! the agent.

use std::path::{Path, PathBuf};

use super::event::Event;
use ckptfs_api::VerbResult;
use ckptfs_ui::locate::{self, ServedTree, TreeLocation};
use ckptfs_ui::mounts;

/// How checkpoints can be made.
pub enum CheckpointRoute {
    /// By a request to the daemon.
    Served(Box<ServedTree>),
    /// By mkdir(2) in `.snapshots` of the mount at this path, which another user controls.
    Mount(PathBuf),
}

/// Returns the tree of an event; `None` if no directory of the event is in one.
///
/// # Errors
/// Those of the search for a daemon.
pub fn of(event: &Event) -> VerbResult<Option<CheckpointRoute>> {
    let mut seen: Vec<PathBuf> = Vec::new();
    for path in event.paths() {
        let Some(dir) = existing(&path).filter(|dir| !seen.contains(dir)) else {
            continue;
        };
        if let Some(place) = at(&dir)? {
            return Ok(Some(place));
        }
        seen.push(dir);
    }
    Ok(None)
}

/// Returns the tree that contains an existing directory.
///
/// # Errors
/// Those of the search for a daemon.
pub fn at(dir: &Path) -> VerbResult<Option<CheckpointRoute>> {
    Ok(match locate::at_once(dir)? {
        TreeLocation::Served(served) => Some(CheckpointRoute::Served(Box::new(served))),
        // A directory that only resembles a mount of ckptfs receives no request.
        TreeLocation::Foreign { root, .. } => {
            let table = mounts::all()?;
            let ours = mounts::top(&table, &root).is_some_and(|mount| mount.says_ours());
            ours.then_some(CheckpointRoute::Mount(root))
        }
        TreeLocation::Store { .. } | TreeLocation::Stale { .. } | TreeLocation::Nothing { .. } => {
            None
        }
    })
}

/// Returns the nearest existing directory at or above a path, without links.
pub fn existing(path: &Path) -> Option<PathBuf> {
    let real = |dir: &Path| dir.canonicalize().ok().filter(|real| real.is_dir());
    path.ancestors().find_map(real)
}
