//! What is read of a history to be looked at.

use std::io::Read;

use super::super::hunks::Style;
use super::super::locate::Served;
use super::super::output::{Out, escape};
use super::super::past::{self, Found, Tree};
use super::super::patch;
use super::super::show::names;
use crate::engine::api::{
    Change, CheckpointInfo, Code, Compare, ListVersions, Query, StateName, TreePath, VerbResult,
    VersionInfo,
};
use crate::store::ids::CheckpointId;
use crate::sys::Kind;

/// Checkpoints that are asked for at once.
pub const PAGE: usize = 200;
/// Bytes of a file, or of a patch, that are shown.
const SHOWN_MAX: usize = 1 << 20;
/// A NUL in so many bytes makes a file binary, as in git.
const LOOKED_AT_BYTES: usize = 8000;

/// A name in a directory as it was.
pub struct Entry {
    /// Where it is in the tree.
    pub path: TreePath,
    /// What it is; `None`: it cannot be told.
    pub kind: Option<Kind>,
}

/// A tree with a daemon, read.
pub struct History {
    served: Served,
}

impl History {
    pub fn new(served: Served) -> History {
        History { served }
    }

    /// Where the tree is: what `-C` takes.
    pub fn root(&self) -> &std::path::Path {
        &self.served.root
    }

    /// Checkpoints before this one, the newest first.
    pub fn page(&mut self, before: Option<CheckpointId>) -> VerbResult<Vec<CheckpointInfo>> {
        self.served.client.ask(Query {
            limit: Some(PAGE),
            before,
            ..Query::default()
        })
    }

    /// The newest checkpoint.
    pub fn newest(&mut self) -> VerbResult<Option<CheckpointId>> {
        let newest = self.served.client.ask(Query {
            limit: Some(1),
            ..Query::default()
        })?;
        Ok(newest.first().map(|state| state.id))
    }

    /// What changes are told since: of a checkpoint the one that it comes from, as `log` counts
    /// them; of the tree as it is now the newest that somebody asked for, as `diff` does. `None`:
    /// there is none.
    ///
    /// # Errors
    /// Those of asking the daemon.
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

    /// Versions of a path, the newest first.
    pub fn versions(&mut self, path: &TreePath) -> VerbResult<Vec<VersionInfo>> {
        self.served.client.ask(ListVersions { path: path.clone() })
    }

    /// What changed from one checkpoint to another; `None`: to the tree as it is now.
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

    fn found(&self, state: Option<&CheckpointInfo>, path: &TreePath) -> VerbResult<Found> {
        Found::new(&self.served, state.cloned(), path.clone())
    }

    /// What is in a directory, directories first.
    pub fn list(&self, state: Option<&CheckpointInfo>, dir: &TreePath) -> VerbResult<Vec<Entry>> {
        let found = self.found(state, dir)?;
        let names = names::names(&found).map_err(|cause| found.failed(cause))?;
        let entry = |name: &Vec<u8>| {
            let path = names::below(dir, name);
            let kind = found.tree.stat(&path).map(|stat| stat.kind).ok();
            Entry { path, kind }
        };
        let mut entries: Vec<Entry> = names.iter().map(entry).collect();
        entries.sort_by_key(|entry| entry.kind != Some(Kind::Dir));
        Ok(entries)
    }

    /// What is at a path, as lines that are harmless on a terminal.
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

    /// A change as a patch, as lines that are harmless on a terminal.
    pub fn patch(
        &self,
        change: &Change,
        from: &CheckpointInfo,
        to: Option<&CheckpointInfo>,
    ) -> VerbResult<Vec<String>> {
        let (before, after) = (
            Tree::at(&self.served, Some(from))?,
            Tree::at(&self.served, to)?,
        );
        let mut out = Out::to_memory(SHOWN_MAX);
        // What has no room is not shown.
        let _ = patch::print(
            &mut out,
            std::slice::from_ref(change),
            (&before, &after),
            Style::default(),
        );
        Ok(lines(&out.kept().0))
    }
}

/// The last name of a path, with a slash if it is a directory.
pub fn label(path: &TreePath, kind: Option<Kind>) -> String {
    let name = path
        .0
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    let end = if kind == Some(Kind::Dir) { "/" } else { "" };
    escape(name) + end
}

/// Lines of a text that are harmless on a terminal.
fn lines(bytes: &[u8]) -> Vec<String> {
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = |line: &[u8]| {
        let parts: Vec<String> = line.split(|byte| *byte == b'\t').map(escape).collect();
        parts.join("    ")
    };
    text.split(|byte| *byte == b'\n').map(line).collect()
}
