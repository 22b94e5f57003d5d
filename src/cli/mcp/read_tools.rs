//! The read-only tools: `status`, `log`, `diff`, `read_past`, `find_version`.

use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use base64::Engine as _;

use super::results::{Changes, Diff, FileContent, Log, Status, Version, Versions, name, warnings};
use super::{McpContext, params, path_of, paths_of, state_or_latest};
use crate::executor;
use ckptfs_api::{
    Change, CheckpointInfo, Compare, GetStatus, ListBranches, ListVersions, Query, ShowCheckpoint,
    StateName, TreePath, VerbResult, VersionInfo, is_among,
};
use ckptfs_sys::Kind;
use ckptfs_ui::error::io_error;
use ckptfs_ui::hunks::Style;
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::output::{Out, escape};
use ckptfs_ui::past::{PathInState, StateTree, state};
use ckptfs_ui::patch;

/// Maximum size of a version that is searched for a text, bytes.
const LOOKED_AT_BYTES_MAX: u64 = 16 << 20;
/// Maximum size of all searched versions, bytes.
const LOOKED_AT_ALL_MAX: u64 = 256 << 20;

pub fn status(seat: &McpContext, asked: params::Status) -> VerbResult<Status> {
    let mut served = seat.served()?;
    let status = served.client.ask(GetStatus)?;
    let branches = served.client.ask(ListBranches::default())?;
    Ok(Status {
        mount: escape(status.mount.as_os_str().as_bytes()),
        since: status.base.map(|base| base.0),
        latest: status.latest.map(|latest| latest.0),
        checkpoints: status.checkpoints,
        changed: Changes::first(&status.dirty, params::limit(asked.limit)),
        branches: branches.into_iter().map(|branch| branch.name).collect(),
        warnings: warnings(status.warnings),
    })
}

pub fn log(seat: &McpContext, asked: params::Log) -> VerbResult<Log> {
    let limit = params::limit(asked.limit);
    let mut query = Query {
        tag: asked.tag,
        note: asked.note,
        since: asked.since,
        until: asked.until,
        // One more, to detect a next page.
        limit: Some(limit + 1),
        counted: true,
        ..Query::default()
    };
    let mut history = match &asked.path {
        Some(path) => {
            let served = seat.served()?;
            query.path = Some(path_of(&served, path)?);
            ckptfs_daemon::VerbExecutor::Daemon(served.client)
        }
        None => executor::history(seat.dir.as_deref())?,
    };
    if let Some(before) = asked.before {
        let state = StateName(before);
        query.before = Some(history.ask(ShowCheckpoint { state })?.id);
    }
    let found = history.ask(query)?;
    Ok(Log {
        checkpoints: found.iter().take(limit).map(Into::into).collect(),
        more: found.len() > limit,
    })
}

fn state_name(state: Option<&CheckpointInfo>) -> String {
    state.map_or("live".to_owned(), |checkpoint| checkpoint.id.to_string())
}

pub fn diff(seat: &McpContext, asked: params::Diff) -> VerbResult<Diff> {
    let mut served = seat.served()?;
    let paths = paths_of(&served, &asked.paths)?;
    // Resolve names to numbers once: a time or `latest` may mean another checkpoint in the next
    // request.
    let from = state(&mut served, &state_or_latest(asked.from).0)?;
    let to = asked.to.map_or(Ok(None), |to| state(&mut served, &to))?;
    let mut changes = served.client.ask(Compare {
        from: StateName(state_name(from.as_ref())),
        to: Some(StateName(state_name(to.as_ref()))),
        sizes: false,
    })?;
    let is_asked = |path: &TreePath| is_among(&path.0, &paths);
    changes.retain(|change| is_asked(&change.path) || change.from.as_ref().is_some_and(is_asked));
    let patch = if asked.patch {
        let trees = (
            StateTree::at(&served, from.as_ref())?,
            StateTree::at(&served, to.as_ref())?,
        );
        Some(patch_of(&changes, &trees, params::bytes(asked.max_bytes))?)
    } else {
        None
    };
    let (patch, patch_cut, said) = match patch {
        Some((text, cut, said)) => (Some(text), cut, said),
        None => (None, false, Vec::new()),
    };
    Ok(Diff {
        from: state_name(from.as_ref()),
        to: state_name(to.as_ref()),
        changed: Changes::first(&changes, params::limit(asked.limit)),
        patch,
        patch_cut,
        warnings: warnings(said),
    })
}

/// Returns a patch, whether it was truncated, and warnings about missing paths.
fn patch_of(
    changes: &[Change],
    (before, after): &(StateTree, StateTree),
    bytes_max: usize,
) -> VerbResult<(String, bool, Vec<String>)> {
    let mut out = Out::to_memory(bytes_max);
    let (cut, left_out) = match patch::print(&mut out, changes, (before, after), Style::default()) {
        Ok(left_out) => (false, left_out),
        // The output exceeds the limit.
        Err(cause) if cause.kind() == io::ErrorKind::WriteZero => (true, Default::default()),
        Err(cause) => return Err(io_error("the patch", cause)),
    };
    let strange = left_out.strange.iter().map(|path| {
        format!(
            "{} is not in the patch: git tracks only files and symbolic links",
            name(path)
        )
    });
    let unread = left_out
        .unread
        .iter()
        .map(|(path, errno)| format!("{} is not in the patch: {errno}", name(path)));
    let said = strange.chain(unread).collect();
    let (mut text, _) = out.kept();
    if cut {
        text.truncate(whole(&text));
    }
    Ok((String::from_utf8_lossy(&text).into_owned(), cut, said))
}

/// Returns the length of the text without a character truncated at its end.
fn whole(text: &[u8]) -> usize {
    match std::str::from_utf8(text) {
        // The last character is incomplete.
        Err(cause) if cause.error_len().is_none() => cause.valid_up_to(),
        _ => text.len(),
    }
}

pub fn read_past(seat: &McpContext, asked: params::ReadPast) -> VerbResult<FileContent> {
    let mut served = seat.served()?;
    let checkpoint = state(&mut served, &asked.checkpoint)?;
    let path = path_of(&served, &asked.path)?;
    let found = PathInState::new(&served, checkpoint, path)?;
    let failed = |cause: io::Error| found.failed(cause.into());
    let file = found
        .tree
        .open_file(&found.path)
        .map_err(|cause| found.failed(cause))?;
    let size = file.metadata().map_err(failed)?.len();
    let offset = asked.offset.min(size);
    let mut content = vec![0; params::bytes(asked.max_bytes)];
    let mut filled = 0;
    while let Some(room) = content.get_mut(filled..).filter(|room| !room.is_empty()) {
        match file.read_at(room, offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(failed(cause)),
        }
    }
    content.truncate(filled);
    let is_text = !content.contains(&0) && {
        let end = whole(&content);
        std::str::from_utf8(content.get(..end).unwrap_or_default()).is_ok() && end > 0
    };
    if is_text && offset + (content.len() as u64) < size {
        content.truncate(whole(&content));
    }
    let end = offset + content.len() as u64;
    let left_out = size.saturating_sub(end);
    let text = (is_text || content.is_empty())
        .then(|| String::from_utf8(content.clone()).ok())
        .flatten();
    Ok(FileContent {
        checkpoint: state_name(found.checkpoint.as_ref()),
        path: name(&found.path),
        size,
        offset,
        base64: text
            .is_none()
            .then(|| base64::engine::general_purpose::STANDARD.encode(&content)),
        text,
        bytes_left_out: left_out,
        next_offset: (left_out > 0).then_some(end),
    })
}

pub fn find_version(seat: &McpContext, asked: params::FindVersion) -> VerbResult<Versions> {
    let limit = params::limit(asked.limit);
    let mut served = seat.served()?;
    let path = path_of(&served, &asked.path)?;
    let all = served.client.ask(ListVersions { path: path.clone() })?;
    let mut looked = TextSearch::default();
    let versions = all
        .iter()
        .take(limit)
        .map(|version| Version {
            checkpoint: version.checkpoint.as_ref().map(|made| made.id.0),
            created: version.checkpoint.as_ref().map(|made| made.created.clone()),
            change: version.change.into(),
            size: version.size,
            contains: asked
                .containing
                .as_deref()
                .and_then(|text| looked.contains(&served, version, &path, text)),
        })
        .collect();
    Ok(Versions {
        path: name(&path),
        versions,
        versions_left_out: all.len().saturating_sub(limit) as u64,
        not_looked_at: looked.not,
    })
}

/// Search of versions for a text.
#[derive(Default)]
struct TextSearch {
    bytes: u64,
    /// Number of versions that were not searched.
    not: u64,
}

impl TextSearch {
    /// Returns whether a version contains a text; `None`: not a file, or not searched.
    fn contains(
        &mut self,
        served: &ServedTree,
        version: &VersionInfo,
        path: &TreePath,
        text: &str,
    ) -> Option<bool> {
        let size = version.size.filter(|_| version.kind == Some(Kind::File))?;
        if size > LOOKED_AT_BYTES_MAX || self.bytes.saturating_add(size) > LOOKED_AT_ALL_MAX {
            self.not += 1;
            return None;
        }
        self.bytes += size;
        let mut content = Vec::new();
        let file = StateTree::at(served, version.checkpoint.as_ref())
            .ok()
            .and_then(|tree| tree.open_file(path).ok());
        let read = file.and_then(|file| {
            file.take(LOOKED_AT_BYTES_MAX)
                .read_to_end(&mut content)
                .ok()
        });
        if read.is_none() {
            self.not += 1;
            return None;
        }
        Some(String::from_utf8_lossy(&content).contains(text))
    }
}
