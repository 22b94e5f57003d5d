//! The executor of verbs for the tree that contains a directory: its daemon, or its store.

use std::path::Path;

use ckptfs_api::{CheckpointInfo, ErrorContext, ShowCheckpoint, StateName, VerbResult, not_exact};
use ckptfs_core::engine::offline::Offline;
use ckptfs_daemon::VerbExecutor;
use ckptfs_sys as sys;
use ckptfs_ui::locate::{TreeLocation, locate, not_served, start};

/// Returns the history of the tree that contains `dir`, or the working directory: from its daemon,
/// or without one from its store.
pub fn history(dir: Option<&Path>) -> VerbResult<VerbExecutor> {
    match locate(start(dir)?)? {
        TreeLocation::Served(served) => Ok(VerbExecutor::Daemon(served.client)),
        TreeLocation::Store { root, .. } => {
            let root = sys::open_root(&root).on(root.display())?;
            Ok(VerbExecutor::Store(Box::new(Offline::open(root)?)))
        }
        other => Err(not_served(&other)),
    }
}

/// Returns the checkpoint of a name, for which a prefix of a tag is not enough.
///
/// # Errors
/// Those of `show`; `not-exact`.
pub fn whole(name: &str, history: &mut VerbExecutor) -> VerbResult<CheckpointInfo> {
    let mut show = |name: &str| {
        history.ask(ShowCheckpoint {
            state: StateName(name.to_owned()),
        })
    };
    let found = show(name)?;
    let base = name.rsplit_once('~').map_or(name, |(base, _)| base);
    let told = base.is_empty() || base.starts_with("@{") || base.parse::<jiff::Timestamp>().is_ok();
    let word = ["latest", "auto"].contains(&base) || base.parse::<u64>().is_ok();
    if told || word || found.tags.iter().any(|tag| tag == name) {
        return Ok(found);
    }
    let tags = show(base)?.tags;
    match tags.iter().find(|tag| tag.starts_with(base)) {
        Some(tag) if tag != base && !tags.iter().any(|tag| tag == base) => {
            Err(not_exact(name, tag))
        }
        _ => Ok(found),
    }
}
