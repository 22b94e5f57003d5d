//! Read access to the history.

use std::io::Read;

use ckptfs_api::{
    Change, CheckpointId, CheckpointInfo, Code, Compare, ListVersions, Query, StateName, TreePath,
    VerbResult, VersionInfo,
};
use ckptfs_sys::Kind;
use ckptfs_ui::hunks::Style;
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::names;
use ckptfs_ui::output::{Out, escape};
use ckptfs_ui::past::{self, PathInState, StateTree};
use ckptfs_ui::patch;

/// Number of checkpoints in one request.
pub const PAGE: usize = 200;
/// Maximum size of a displayed file or patch, bytes.
const SHOWN_MAX: usize = 1 << 20;
/// A NUL within this many bytes makes a file binary, as in git.
const LOOKED_AT_BYTES: usize = 8000;

/// A directory entry of a state.
pub struct BrowseEntry {
    /// Its path in the tree.
    pub path: TreePath,
    /// Its type; `None`: stat failed.
    pub kind: Option<Kind>,
}

/// The history of a tree that a daemon serves.
pub struct History {
    served: ServedTree,
}

impl History {
    pub fn new(served: ServedTree) -> History {
        History { served }
    }

    /// Returns the root of the tree, for `-C`.
    pub fn root(&self) -> &std::path::Path {
        &self.served.root
    }

    /// Returns a page of checkpoints before this one, newest first.
    pub fn page(&mut self, before: Option<CheckpointId>) -> VerbResult<Vec<CheckpointInfo>> {
        self.served.client.ask(Query {
            limit: Some(PAGE),
            before,
            ..Query::default()
        })
    }

    /// Returns the newest checkpoint.
    pub fn newest(&mut self) -> VerbResult<Option<CheckpointId>> {
        let newest = self.served.client.ask(Query {
            limit: Some(1),
            ..Query::default()
        })?;
        Ok(newest.first().map(|state| state.id))
    }

    /// Returns the state to compare with: for a checkpoint its parent, as in `log`; for the live
    /// tree the newest checkpoint made on request, as in `diff`. `None`: no such checkpoint exists.
    ///
    /// # Errors
    /// Those of the daemon.
    pub fn before(&mut self, state: Option<&CheckpointInfo>) -> VerbResult<Option<CheckpointInfo>> {
        let before = match state {
            Some(state) => match state.parent {
                Some(parent) => parent.to_string(),
                None => return Ok(None),
            },
            None => "latest".to_owned(),
        };
        match past::state(&mut self.served, &before) {
            Err(unknown) if unknown.code == Code::UnknownCheckpoint => Ok(None),
            before => before,
        }
    }

    /// Returns the versions of a path, newest first.
    pub fn versions(&mut self, path: &TreePath) -> VerbResult<Vec<VersionInfo>> {
        self.served.client.ask(ListVersions { path: path.clone() })
    }

    /// Returns the changes between two states; `to` is `None` for the live tree.
    pub fn changes(
        &mut self,
        from: CheckpointId,
        to: Option<CheckpointId>,
    ) -> VerbResult<Vec<Change>> {
        self.served.client.ask(Compare {
            from: StateName(from.to_string()),
            to: to.map(|to| StateName(to.to_string())),
            sizes: false,
        })
    }

    fn found(&self, state: Option<&CheckpointInfo>, path: &TreePath) -> VerbResult<PathInState> {
        PathInState::new(&self.served, state.cloned(), path.clone())
    }

    /// Lists a directory, subdirectories first.
    pub fn list(
        &self,
        state: Option<&CheckpointInfo>,
        dir: &TreePath,
    ) -> VerbResult<Vec<BrowseEntry>> {
        let found = self.found(state, dir)?;
        let names = names::names(&found).map_err(|cause| found.failed(cause))?;
        let entry = |name: &Vec<u8>| {
            let path = names::below(dir, name);
            let kind = found.tree.stat(&path).map(|stat| stat.kind).ok();
            BrowseEntry { path, kind }
        };
        let mut entries: Vec<BrowseEntry> = names.iter().map(entry).collect();
        entries.sort_by_key(|entry| entry.kind != Some(Kind::Dir));
        Ok(entries)
    }

    /// Returns the content of a path as escaped lines.
    pub fn content(
        &self,
        state: Option<&CheckpointInfo>,
        path: &TreePath,
    ) -> VerbResult<Vec<String>> {
        let found = self.found(state, path)?;
        let read = || {
            let mut bytes = Vec::new();
            let file = found.tree.open_file(path)?;
            file.take(SHOWN_MAX as u64).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let stat = found.tree.stat(path).map_err(|cause| found.failed(cause))?;
        match stat.kind {
            Kind::File => {
                let bytes = read().map_err(|cause| found.failed(cause))?;
                Ok(
                    if bytes.iter().take(LOOKED_AT_BYTES).any(|byte| *byte == 0) {
                        vec![format!("binary, {} bytes", stat.size)]
                    } else {
                        lines(&bytes)
                    },
                )
            }
            Kind::Dir => {
                let entries = self.list(state, path)?;
                Ok(entries
                    .iter()
                    .map(|entry| label(&entry.path, entry.kind))
                    .collect())
            }
            kind => Ok(vec![format!("{kind:?}").to_lowercase()]),
        }
    }

    /// Returns a change as a patch, in escaped lines.
    pub fn patch(
        &self,
        change: &Change,
        from: &CheckpointInfo,
        to: Option<&CheckpointInfo>,
    ) -> VerbResult<Vec<String>> {
        let (before, after) = (
            StateTree::at(&self.served, Some(from))?,
            StateTree::at(&self.served, to)?,
        );
        let mut out = Out::to_memory(SHOWN_MAX);
        // Output beyond the limit is omitted.
        let _ = patch::print(
            &mut out,
            std::slice::from_ref(change),
            (&before, &after),
            Style::default(),
        );
        Ok(lines(&out.kept().0))
    }
}

/// Returns the file name of a path, with a slash for a directory.
pub fn label(path: &TreePath, kind: Option<Kind>) -> String {
    let name = path
        .0
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    let end = if kind == Some(Kind::Dir) { "/" } else { "" };
    escape(name) + end
}

/// Splits a text into lines and escapes them for a terminal.
fn lines(bytes: &[u8]) -> Vec<String> {
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = |line: &[u8]| {
        let parts: Vec<String> = line.split(|byte| *byte == b'\t').map(escape).collect();
        parts.join("    ")
    };
    text.split(|byte| *byte == b'\n').map(line).collect()
}
