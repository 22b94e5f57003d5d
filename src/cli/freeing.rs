//! Who deletes and frees: the daemon, or without a mount this process. A filesystem may be so full, or a machine so broken, that nothing can be mounted.

use std::path::Path;
use std::sync::Arc;

use super::error::io_error;
use super::locate::{Located, locate, not_served, start, whole};
use super::{config, mount};
use crate::control::Client;
use crate::engine::api::{CheckpointInfo, GcOptions, GcReport, Query, StateName, VerbResult, Verbs};
use crate::engine::{Config, Engine};
use crate::store::record::Actor;
use crate::sys;

/// See the module.
pub enum Freeing {
    /// The daemon does it.
    Daemon(Client),
    /// We do, with the store open: it is served by nobody meanwhile, and closed in order at the end.
    Here(Arc<Engine>, Actor),
}

impl Freeing {
    /// Whoever does it for the tree that contains `dir`, or the working directory.
    pub fn of(dir: Option<&Path>) -> VerbResult<Freeing> {
        match locate(start(dir)?)? {
            Located::Served(served) => Ok(Freeing::Daemon(served.client)),
            Located::Store { root, .. } => Freeing::here(&root),
            other => Err(not_served(&other)),
        }
    }

    fn here(root: &Path) -> VerbResult<Freeing> {
        mount::check_store(root)?;
        // What a restore that was interrupted has yet to make gets its modes from us.
        sys::umask0();
        sys::raise_nofile();
        super::log_to_stderr(Some("error"));
        let mut config = Config::bare(sys::open_root(root).map_err(|cause| io_error(root.display(), cause))?, root.to_owned());
        config.auto.absence = mount::parts_absences(&config::settings_of(root)?);
        let engine = Engine::open_unmounted(config)?;
        let (uid, gid) = sys::ids();
        let pid = std::process::id();
        Ok(Freeing::Here(engine, Actor { uid, gid, pid, process: sys::process_name(pid).unwrap_or_default() }))
    }

    /// One checkpoint, named whole: see [`whole`].
    pub fn whole(&mut self, name: &str) -> VerbResult<CheckpointInfo> {
        match self {
            Freeing::Daemon(client) => whole(name, |state| client.show(state)),
            Freeing::Here(engine, _) => whole(name, |state| engine.show(&state)),
        }
    }

    /// The checkpoints that are asked for.
    pub fn find(&mut self, query: Query) -> VerbResult<Vec<CheckpointInfo>> {
        match self {
            Freeing::Daemon(client) => client.find(query),
            Freeing::Here(engine, _) => engine.find(&query),
        }
    }

    /// Deletes a checkpoint; `now`: for good.
    pub fn delete(&mut self, state: StateName, now: bool) -> VerbResult<CheckpointInfo> {
        match self {
            Freeing::Daemon(client) if now => client.free(state),
            Freeing::Daemon(client) => client.delete(state),
            Freeing::Here(engine, by) => engine.delete(by, &state, now),
        }
    }

    /// A part of a `gc`.
    pub fn gc(&mut self, options: GcOptions) -> VerbResult<GcReport> {
        match self {
            Freeing::Daemon(client) => client.gc(options),
            Freeing::Here(engine, by) => engine.gc(by, &options),
        }
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        if let Freeing::Here(engine, _) = self {
            engine.close();
        }
    }
}
