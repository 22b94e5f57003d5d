//! Changes made directly in the backing directory, without the mount.
//!
//! Such a change has no record and is found by a walk over the whole tree. The walk runs after an
//! absence without a baseline comparison, once per checkpoint and mount, and for `verify`. A change
//! made while the tree is served is found when a view accesses it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::compare::StateComparer;
use crate::history::diff::join;
use crate::history::diff::ordered;
use crate::history::present::Trail;
use crate::history::state::TreeState;
use crate::history::view::KnownListing;
use ckptfs_api::{Change, CheckpointId, TreePath, Why};
use ckptfs_sys::{Errno, Kind, SysResult};

impl Engine {
    /// Monitors files reported to be open or mapped for writing without the mount; inode numbers
    /// are optional. Each checkpoint captures them while they are. Adds a warning for files that
    /// cannot be monitored.
    pub fn watch_held<'a>(&self, files: impl Iterator<Item = (&'a [u8], Option<u64>)>) {
        let mut failed = Vec::new();
        for (path, ino) in files {
            let shown = String::from_utf8_lossy(path).escape_debug().to_string();
            let room = self.views.check_descriptors().is_ok();
            match if room {
                self.live.recovery.watch_held(path, ino)
            } else {
                Err(Errno::EMFILE)
            } {
                Ok(true) => tracing::info!(
                    path = shown,
                    "somebody can write to a file past the mount: each checkpoint captures it"
                ),
                // Replaced, or not writable.
                Ok(false)
                | Err(
                    Errno::ENOENT | Errno::ESTALE | Errno::EINVAL | Errno::EXDEV | Errno::ENOTDIR,
                ) => {}
                Err(errno) => failed.push(format!("{shown} ({errno})")),
            }
        }
        if let Some(first) = failed.first() {
            let more = if failed.len() > 1 {
                format!(" and {} more", failed.len() - 1)
            } else {
                String::new()
            };
            let text = format!(
                "may be written to behind the mount and cannot be watched, so checkpoints may show later content: {first}{more}"
            );
            self.serving.warnings.lock().push(text);
        }
    }

    /// Records whether a process was found that uses the backing directory below the mount or
    /// reaches it by another mount of its filesystem (`found`), and whether the search was complete
    /// (`all`).
    pub fn tell_below(&self, found: bool, all: bool) {
        self.had_below.store(found || !all, Ordering::Relaxed);
        if is_alone(self) {
            self.live.idle.set_alone();
        }
        if !all {
            let text = "some processes could not be checked: others may also have the directory under the mount open";
            self.serving.warnings.lock().push(text.to_owned());
        }
    }
}

/// Returns whether no other process can reach the backing directory. A mount over the directory
/// itself leaves no new way.
pub(super) fn is_alone(engine: &Engine) -> bool {
    let config = &engine.serving.config;
    config.mount == config.backing && !engine.had_below.load(Ordering::Relaxed)
}

impl StateComparer {
    /// Returns all paths known to have changed without a record after checkpoint `id`; their former
    /// state is unknown. A directory is included if its names changed.
    ///
    /// # Errors
    /// Those of reading the live tree.
    pub(super) fn changed_unserved(&self, id: CheckpointId) -> SysResult<Vec<Change>> {
        let mut known = (*self.changed_in_absence(id)?).clone();
        known.extend(
            self.timeline()
                .losses
                .met_unseen(id)
                .into_iter()
                .map(|(path, kind)| unknown(&path, kind)),
        );
        known.sort_by(|a, b| a.path.cmp(&b.path));
        known.dedup_by(|a, b| a.path == b.path);
        Ok(known)
    }

    /// Returns the paths that cannot be compared between two states, because a change without a
    /// record destroyed the older state.
    ///
    /// # Errors
    /// As [`StateComparer::changed_unserved`].
    pub(super) fn unseen_between(&self, from: TreeState, to: TreeState) -> SysResult<Vec<Change>> {
        let (TreeState::At(older), newer, _) = ordered(from, to) else {
            return Ok(Vec::new());
        };
        let mut unseen = self.changed_unserved(older)?;
        if let TreeState::At(newer) = newer
            && !self.timeline().absences.was_absent_between(older, newer)
        {
            // A path changed only later was equal in both states, or has records of the difference.
            let later: HashSet<TreePath> = self
                .changed_unserved(newer)?
                .into_iter()
                .map(|change| change.path)
                .collect();
            unseen.retain(|change| !later.contains(&change.path));
        }
        Ok(unseen)
    }

    /// Returns offline changes, from the cache if possible.
    fn changed_in_absence(&self, id: CheckpointId) -> SysResult<Arc<Vec<Change>>> {
        if !self.timeline().absences.may_have_unseen(id) {
            return Ok(Arc::default());
        }
        if let Some(known) = self.unserved.lock().get(&id) {
            return Ok(Arc::clone(known));
        }
        let found = Arc::new(self.find_unserved(id)?);
        self.unserved.lock().insert(id, Arc::clone(&found));
        Ok(found)
    }

    /// As [`StateComparer::changed_unserved`], by a walk.
    pub(super) fn find_unserved(&self, id: CheckpointId) -> SysResult<Vec<Change>> {
        let (then, live) = (self.view(TreeState::At(id)), self.view(TreeState::Live));
        let (mut found, mut passed) = (Vec::new(), HashSet::new());
        let mut open: Vec<(Vec<u8>, Arc<Trail>)> = vec![(Vec::new(), Trail::root())];
        while let Some((path, dir)) = open.pop() {
            // In forged records, a directory may have several places.
            if !passed.insert(dir.slot) {
                found.push(unknown(&path, Kind::Dir));
                continue;
            }
            let known = there(then.list_known(&dir))?;
            if known.partial && !path.is_empty() {
                found.push(unknown(&path, Kind::Dir));
            }
            for name in known.unknown {
                let kind = live
                    .child(&dir, &name)
                    .ok()
                    .flatten()
                    .map_or(Kind::File, |child| child.kind);
                found.push(unknown(&join(&path, &name), kind));
            }
            for (name, child) in known.names {
                let (path, trail) = (join(&path, &name), dir.step(&name, child.slot));
                if child.kind == Kind::Dir {
                    open.push((path, trail));
                } else if matches!(then.child(&dir, &name), Err(Errno::EIO))
                    || then.attr(&trail) == Err(Errno::EIO)
                {
                    found.push(unknown(&path, child.kind));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }
}

fn unknown(path: &[u8], kind: Kind) -> Change {
    Change::unknown(path.to_vec(), kind, Why::ChangedUnseen)
}

/// Treats a missing directory as empty.
fn there(known: SysResult<KnownListing>) -> SysResult<KnownListing> {
    match known {
        Err(Errno::ESTALE | Errno::ENOENT) => Ok(KnownListing::default()),
        known => known,
    }
}
