//! What was changed behind our back.
//!
//! Such a change has no record, so it is found by a walk over the whole tree: where there was an absence after the checkpoint in question, and
//! then once for that checkpoint and mount, and when `verify` is asked for it. What is changed while the tree is served, past the mount, is known
//! when somebody meets it in a view.

use std::sync::Arc;

use super::Engine;
use super::api::{Change, ChangeKind, TreePath};
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::view::State;
use crate::store::ids::{CheckpointId, Name};
use crate::store::record::Child;
use crate::sys::{Errno, Kind, SysResult};

impl Engine {
    /// Every path that is known to have been changed behind our back, after checkpoint `id`; what it was then, nobody knows. A directory is among them
    /// if names in it came or went.
    ///
    /// # Errors
    /// Those of reading the live tree.
    pub(super) fn changed_unserved(&self, id: CheckpointId) -> SysResult<Vec<Change>> {
        let mut known = (*self.changed_in_absence(id)?).clone();
        known.extend(self.timeline().met_unseen(id).into_iter().map(|(path, kind)| unknown(&path, kind)));
        known.sort_by(|a, b| a.path.cmp(&b.path));
        known.dedup_by(|a, b| a.path == b.path);
        Ok(known)
    }

    /// What was changed while nobody served the tree.
    fn changed_in_absence(&self, id: CheckpointId) -> SysResult<Arc<Vec<Change>>> {
        if !self.timeline().was_absent_after(id) {
            return Ok(Arc::default());
        }
        if let Some(known) = self.unserved.lock().get(&id) {
            return Ok(Arc::clone(known));
        }
        let found = Arc::new(self.find_unserved(id)?);
        self.unserved.lock().insert(id, Arc::clone(&found));
        Ok(found)
    }

    /// As [`Engine::changed_unserved`], found by a walk.
    pub(super) fn find_unserved(&self, id: CheckpointId) -> SysResult<Vec<Change>> {
        let (then, live) = (self.view(State::At(id)), self.view(State::Live));
        let mut found = Vec::new();
        let mut open: Vec<(Vec<u8>, Arc<Trail>)> = vec![(Vec::new(), Trail::root())];
        while let Some((path, dir)) = open.pop() {
            let names = match then.list(&dir) {
                Err(Errno::EIO) => {
                    if !path.is_empty() {
                        found.push(unknown(&path, Kind::Dir));
                    }
                    live.list(&dir)
                }
                names => names,
            };
            for (name, child) in there(names)? {
                let path = join(&path, &name);
                let child = match then.child(&dir, &name) {
                    Err(Errno::EIO) => {
                        found.push(unknown(&path, child.kind));
                        continue;
                    }
                    Ok(Some(child)) => child,
                    Ok(None) | Err(_) => continue,
                };
                let trail = dir.step(&name, child.slot);
                if child.kind == Kind::Dir {
                    open.push((path, trail));
                } else if then.attr(&trail) == Err(Errno::EIO) {
                    found.push(unknown(&path, child.kind));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }
}

fn unknown(path: &[u8], kind: Kind) -> Change {
    Change { path: TreePath(path.to_vec()), change: ChangeKind::Modified, from: None, kind, old_size: None, size: None }
}

/// A directory that is gone has no names.
fn there(names: SysResult<Vec<(Name, Child)>>) -> SysResult<Vec<(Name, Child)>> {
    match names {
        Err(Errno::ESTALE | Errno::ENOENT) => Ok(Vec::new()),
        names => names,
    }
}
