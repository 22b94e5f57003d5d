//! Deletion and freeing, by the daemon, or without a mount by this process: on a full filesystem or
//! a broken machine, nothing may be mountable.

use std::path::Path;

use super::{config, mount, serving};
use ckptfs_api::{Actor, VerbResult};
use ckptfs_core::engine::{Config, Engine};
use ckptfs_daemon::VerbExecutor;
use ckptfs_sys as sys;
use ckptfs_ui::error::ErrorContext;
use ckptfs_ui::locate::{TreeLocation, locate, not_served, start};

/// Returns the connection or the engine for the tree that contains `dir`, or the working directory.
///
/// # Errors
/// No tree of ckptfs is there, or its store cannot be opened.
pub fn freeing(dir: Option<&Path>) -> VerbResult<VerbExecutor> {
    match locate(start(dir)?)? {
        TreeLocation::Served(served) => Ok(VerbExecutor::Daemon(served.client)),
        TreeLocation::Store { root, .. } => here(&root),
        other => Err(not_served(&other)),
    }
}

fn here(root: &Path) -> VerbResult<VerbExecutor> {
    mount::check_store(root)?;
    // An interrupted restore that is finished here creates files, with their recorded modes.
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
    Ok(VerbExecutor::Here(engine, Box::new(by.into())))
}
