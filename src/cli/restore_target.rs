//! Interpretation of `restore` without a checkpoint: `ID:PATH`, or paths alone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ckptfs_api::display::word;
use ckptfs_api::{
    Change, ChangeKind, CheckpointId, Code, Query, RestoreOptions, StateName, TreePath, VerbError,
    VerbResult,
};
use ckptfs_ui::error::hinted;
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::past;
use ckptfs_ui::tree_path::in_tree;

/// Limit of the versions of the paths that are tried.
const TRIED_MAX: usize = 100;

/// Returns the checkpoint and the paths of `restore WORD [PATHS]`. WORD is a checkpoint if it names
/// one, else `ID:PATH`, else a path. For a path, the checkpoint is the newest in which one of the
/// paths differs from the tree.
///
/// # Errors
/// `unknown-checkpoint` if WORD has no such meaning; `unknown-path` if no checkpoint has another
/// version.
pub fn meant(
    served: &mut ServedTree,
    word: &str,
    paths: &[PathBuf],
) -> VerbResult<(StateName, Vec<TreePath>)> {
    let mut inside: Vec<TreePath> = paths
        .iter()
        .map(|path| in_tree(&served.root, &served.cwd, path))
        .collect::<VerbResult<_>>()?;
    let unknown = match past::state(served, word) {
        Err(unknown) if unknown.code == Code::UnknownCheckpoint => unknown,
        _ => return Ok((StateName(word.to_owned()), inside)),
    };
    for (colon, _) in word.match_indices(':') {
        let (id, path) = word.split_at(colon);
        let path = path.strip_prefix(':').unwrap_or(path);
        if let Ok(Some(checkpoint)) = past::state(served, id) {
            inside.insert(0, in_tree(&served.root, &served.cwd, path.as_ref())?);
            return Ok((StateName(checkpoint.id.to_string()), inside));
        }
    }
    let Ok(path) = in_tree(&served.root, &served.cwd, word.as_ref()) else {
        return Err(unknown);
    };
    inside.insert(0, path);
    match newest_other(served, &inside)? {
        OtherVersion::Checkpoint(id) => Ok((StateName(id.to_string()), inside)),
        OtherVersion::NoOther => Err(no_other(word)),
        OtherVersion::NoPath => Err(unknown),
    }
}

enum OtherVersion {
    Checkpoint(CheckpointId),
    /// Every checkpoint has the version in the tree.
    NoOther,
    /// Neither a checkpoint nor the tree has such a path.
    NoPath,
}

/// Finds the newest checkpoint from which a restore of these paths would change something. A
/// version that equals the tree does not count, whenever it was made.
fn newest_other(served: &mut ServedTree, paths: &[TreePath]) -> VerbResult<OtherVersion> {
    let newest = |before, path: Option<&TreePath>| Query {
        limit: Some(1),
        path: path.cloned(),
        before,
        ..Query::default()
    };
    let is_there = |served: &ServedTree, path: &TreePath| {
        let path = served.root.join(OsStr::from_bytes(&path.0));
        path.symlink_metadata().is_ok()
    };
    if let Some(word) = paths.first()
        && !is_there(served, word)
        && served.client.ask(newest(None, Some(word)))?.is_empty()
    {
        return Ok(OtherVersion::NoPath);
    }
    let is_missing = paths.iter().any(|path| !is_there(served, path));
    let (mut candidate, mut changed) = (newest_before(served, None, is_missing)?, None);
    if candidate.is_none() {
        return Ok(OtherVersion::NoPath);
    }
    for _ in 0..TRIED_MAX {
        match candidate {
            None => break,
            Some(id) if would_change(served, id, paths)? => {
                return Ok(OtherVersion::Checkpoint(id));
            }
            Some(_) => {}
        }
        let before = changed.take();
        for path in paths {
            let last = served.client.ask(newest(before, Some(path)))?.pop();
            changed = changed.max(last.map(|checkpoint| checkpoint.id));
        }
        candidate = match changed {
            None => None,
            changed => newest_before(served, changed, is_missing)?,
        };
    }
    Ok(OtherVersion::NoOther)
}

/// Returns the newest checkpoint before another, or of all. If no path is missing in the tree,
/// guards are skipped: they contain the state that a restore replaced, and would bring it back.
fn newest_before(
    served: &mut ServedTree,
    mut before: Option<CheckpointId>,
    is_missing: bool,
) -> VerbResult<Option<CheckpointId>> {
    loop {
        let query = Query {
            limit: Some(1),
            before,
            ..Query::default()
        };
        match served.client.ask(query)?.pop() {
            Some(guard) if !is_missing && guard.reason.is_guard_or_mark() => {
                before = Some(guard.id)
            }
            found => return Ok(found.map(|found| found.id)),
        }
    }
}

/// Reports whether a restore of these paths would change anything, or whether that is unknown.
fn would_change(served: &mut ServedTree, id: CheckpointId, paths: &[TreePath]) -> VerbResult<bool> {
    let planned = served.client.ask(RestoreOptions {
        to: StateName(id.to_string()),
        paths: paths.to_vec(),
        dry_run: true,
        times: None,
    });
    match planned {
        Err(error) if error.code == Code::UnknownPath => Ok(false),
        planned => planned.map(|planned| {
            let goes = |change: &Change| {
                change.change == ChangeKind::Deleted && paths.contains(&change.path)
            };
            let stays = planned.changes.iter().all(goes);
            !(stays && planned.unknown.is_empty() && planned.dropped.is_empty())
        }),
    }
}

fn no_other(path: &str) -> VerbError {
    hinted(
        Code::UnknownPath,
        format!("no checkpoint has a different version of {path:?}"),
        format!("to list its versions: ckptfs log {}", word(path)),
    )
}
