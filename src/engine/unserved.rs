//! What was changed while nobody served the tree.
//!
//! Such a change has no record, so it is found by a walk over the whole tree: only where there was an absence after the checkpoint in question.

use std::sync::Arc;

use super::Engine;
use super::api::{Change, ChangeKind, TreePath};
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::view::State;
use crate::store::ids::CheckpointId;
use crate::sys::{Errno, Kind, SysResult};

impl Engine {
    /// Every path that was changed while nobody served the tree, after checkpoint `id`; what it was then, nobody knows. A directory is among them
    /// if names in it came or went.
    ///
    /// # Errors
    /// Those of reading the live tree.
    pub(super) fn changed_unserved(&self, id: CheckpointId) -> SysResult<Vec<Change>> {
        if !self.timeline().was_absent_after(id) {
            return Ok(Vec::new());
        }
        let view = self.view(State::Live);
        let mut found = Vec::new();
        let mut open: Vec<(Vec<u8>, Arc<Trail>)> = vec![(Vec::new(), Trail::root())];
        while let Some((path, dir)) = open.pop() {
            let names = match view.list(&dir) {
                Err(Errno::ESTALE | Errno::ENOENT) => continue,
                names => names?,
            };
            for (name, child) in names {
                let (path, trail) = (join(&path, &name), dir.step(&name, child.slot));
                let Ok(attr) = view.attr(&trail) else { continue };
                if self.timeline().changed_in_absence(attr.stat.ctime, id) {
                    found.push(Change { path: TreePath(path.clone()), change: ChangeKind::Modified, from: None, kind: child.kind });
                }
                if child.kind == Kind::Dir {
                    open.push((path, trail));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }
}
