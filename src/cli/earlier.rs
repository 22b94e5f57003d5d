//! What `restore` means where it is given no checkpoint: `ID:PATH`, or paths alone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::changes;
use super::error::hinted;
use super::locate::Served;
use super::past;
use super::tree_path::in_tree;
use crate::engine::api::{Code, Compare, Query, StateName, TreePath, VerbError, VerbResult};
use crate::engine::word::word;
use crate::store::ids::CheckpointId;

/// The checkpoint and the paths that `restore WORD [PATHS]` is about. WORD is a checkpoint if it
/// names one, else `ID:PATH`, else a path itself: then it is the newest checkpoint in which one of
/// the paths differs from the tree.
///
/// # Errors
/// `unknown-checkpoint`: it is none of them; `unknown-path`: no checkpoint has another version.
pub fn meant(
    served: &mut Served,
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
        Found::Checkpoint(id) => Ok((StateName(id.to_string()), inside)),
        Found::NoOther => Err(no_other(word)),
        Found::NoPath => Err(unknown),
    }
}

enum Found {
    Checkpoint(CheckpointId),
    /// Every checkpoint has what is in the tree.
    NoOther,
    /// No checkpoint has such a path, nor has the tree.
    NoPath,
}

fn newest_other(served: &mut Served, paths: &[TreePath]) -> VerbResult<Found> {
    let newest = |before, path: Option<&TreePath>| Query {
        limit: Some(1),
        path: path.cloned(),
        before,
        ..Query::default()
    };
    let Some(latest) = served.client.ask(newest(None, None))?.pop() else {
        return Ok(Found::NoPath);
    };
    let since = served.client.ask(Compare {
        from: StateName(latest.id.to_string()),
        to: None,
        sizes: false,
    })?;
    if since.iter().any(|change| changes::is_below(change, paths)) {
        return Ok(Found::Checkpoint(latest.id));
    }
    let mut changed = None;
    for path in paths {
        let last = served.client.ask(newest(None, Some(path)))?.pop();
        changed = changed.max(last.map(|checkpoint| checkpoint.id));
    }
    let Some(changed) = changed else {
        let at = |path: &TreePath| served.root.join(OsStr::from_bytes(&path.0));
        let is_there = paths.iter().any(|path| at(path).symlink_metadata().is_ok());
        return Ok(if is_there {
            Found::NoOther
        } else {
            Found::NoPath
        });
    };
    let before = served.client.ask(newest(Some(changed), None))?.pop();
    Ok(before.map_or(Found::NoOther, |before| Found::Checkpoint(before.id)))
}

fn no_other(path: &str) -> VerbError {
    hinted(
        Code::UnknownPath,
        format!("no checkpoint has a different version of {path:?}"),
        format!("to list its versions: ckptfs log {}", word(path)),
    )
}
