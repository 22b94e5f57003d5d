//! Who deletes and frees: the daemon, or without a mount this process. A filesystem may be so full,
//! or a machine so broken, that nothing can be mounted.

use std::path::Path;

use super::error::On;
use super::locate::{Located, locate, not_served, start};
use super::{config, mount, serving};
use crate::control::History;
use crate::engine::api::VerbResult;
use crate::engine::{Config, Engine};
use crate::store::record::Actor;
use crate::sys;

/// Whoever does it for the tree that contains `dir`, or the working directory.
///
/// # Errors
/// There is no tree of ours, or its store cannot be opened.
pub fn freeing(dir: Option<&Path>) -> VerbResult<History> {
    match locate(start(dir)?)? {
        Located::Served(served) => Ok(History::Daemon(served.client)),
        Located::Store { root, .. } => here(&root),
        other => Err(not_served(&other)),
    }
}

fn here(root: &Path) -> VerbResult<History> {
    mount::check_store(root)?;
    // What a restore that was interrupted has yet to make gets its modes from us.
    sys::umask0();
    sys::raise_nofile();
    super::logging::log_to_stderr(Some("error"));
    let mut config = Config::bare(sys::open_root(root).on(root.display())?, root.to_owned());
    config.auto.absence = serving::parts_absences(&config::settings_of(root)?);
    let engine = Engine::open_unmounted(config)?;
    let ((uid, gid), pid) = (sys::ids(), std::process::id());
    let by = Actor {
        uid,
        gid,
        pid,
        process: sys::process_name(pid).unwrap_or_default(),
    };
    Ok(History::Here(engine, Box::new(by.into())))
}
