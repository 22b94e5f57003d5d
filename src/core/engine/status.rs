//! Implementation of `status` and `stats`.

use std::sync::atomic::Ordering;

use super::Engine;
use super::error;
use crate::history::state::TreeState;
use crate::live::SealerMode;
use ckptfs_api::display::count;
use ckptfs_api::{DaemonInfo, SealerInfo, Stats, Status, VerbError, VerbResult};
use ckptfs_sys as sys;

impl Engine {
    /// Returns the I/O paths of reads and writes: `passthrough` or `daemon`.
    pub fn io(&self) -> (&'static str, &'static str) {
        (
            io_name(self),
            if self.serving.config.strict_writes {
                "daemon"
            } else {
                io_name(self)
            },
        )
    }

    /// Returns the warnings for the user.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.serving.warnings.lock().clone();
        if self.timeline().store().journal.is_latched() {
            let next = "unmount, run `ckptfs verify --repair`, and mount again";
            warnings.push(format!(
                "the journal or a version cannot be written: changes to what checkpoints can see fail with EIO until the next mount; {next}"
            ));
        }
        if let Some(why) = self.timeline().indexer.trouble() {
            let refused = if self.timeline().indexer.takes_checkpoints() {
                "will soon be"
            } else {
                "are"
            };
            warnings.push(format!(
                "the index failed ({why}): new checkpoints {refused} refused until there is space, or until the next mount rebuilds it"
            ));
        }
        let index = &self.timeline().store().index;
        if index.is_in_memory() && !index.is_waiting() {
            warnings.push("the filesystem was full: the index is in memory until the next mount, which will take longer; free some space".into());
        }
        warnings.extend(
            self.checkpoints
                .hooks
                .as_ref()
                .and_then(super::hooks::Hooks::warning),
        );
        let yielded = self
            .collector
            .yielded
            .load(std::sync::atomic::Ordering::Relaxed);
        if yielded > 0 {
            warnings.push(format!(
                "space was short: {} made before files were removed {} freed; `ckptfs ops --all` names them",
                ckptfs_api::display::count(yielded, "checkpoint"),
                if yielded == 1 { "was" } else { "were" }
            ));
        }
        warnings.extend(self.serving.store_file.look(&self.serving.store_dir).1);
        let over = self
            .collector
            .over_bytes
            .load(std::sync::atomic::Ordering::Relaxed);
        if over > 0 {
            warnings.push(format!(
                "the history is {over} bytes over retention.max-size: the rest is pinned, tagged or the newest; `ckptfs du` shows what takes the space"
            ));
        }
        if self
            .succession
            .as_ref()
            .is_some_and(|after| !after.is_held())
        {
            warnings.push("the process that restarts the daemon has died: if the daemon dies too, the mount is dead (`ckptfs mount` repairs it)".into());
        }
        let trouble = self
            .origin
            .as_ref()
            .and_then(|origin| origin.info().trouble);
        warnings.extend(trouble);
        warnings.extend(super::room::warnings(self));
        warnings
    }
}

pub(super) fn status(engine: &Engine) -> VerbResult<Status> {
    let failed = |errno| {
        let failed = error::tree_not_compared(errno);
        let warnings = engine.warnings();
        if warnings.is_empty() {
            failed
        } else {
            VerbError {
                hint: Some(warnings.join("; ")),
                ..failed
            }
        }
    };
    engine.checkpoints.settle();
    let (latest, base) = (
        engine.timeline().catalogue.latest(),
        engine.timeline().base(),
    );
    let dirty = match base {
        Some(id) => engine
            .states
            .compare_all(TreeState::At(id), TreeState::Live)
            .map_err(failed)?,
        None => Vec::new(),
    };
    let mut warnings = engine.warnings();
    if let Some(id) = base {
        let unserved = engine.states.changed_unserved(id).map_err(failed)?;
        if !unserved.is_empty() {
            warnings.push(format!(
                "{} changed while nothing was mounted, or behind the mount: earlier checkpoints cannot show them",
                count(unserved.len(), "path")
            ));
        }
    }
    let (io, writes) = engine.io();
    let backing = engine.place().backing();
    Ok(Status {
        mount: engine.place().mount(),
        store: backing.join(".ckptfs"),
        backing,
        filesystem: engine.serving.config.filesystem.to_owned(),
        capture: if engine.live.reflink() {
            "reflink"
        } else {
            "copy"
        }
        .to_owned(),
        io: io.to_owned(),
        writes: writes.to_owned(),
        daemon: daemon_info(engine),
        epoch: engine.timeline().epochs.epoch().0,
        latest,
        base,
        checkpoints: engine.timeline().catalogue.checkpoint_count() as u64,
        dirty,
        shared: {
            let (files, bytes) = engine.live.sharing.counts().get();
            super::dedup::Count { files, bytes }
        },
        absence: engine.absences.absence(),
        origin: engine.origin.as_ref().map(|origin| origin.info()),
        warnings,
        had_below: engine.had_below.load(Ordering::Relaxed),
    })
}

pub(super) fn stats(engine: &Engine) -> VerbResult<Stats> {
    let memory =
        sys::own_memory().map_err(error::failed("the daemon's memory cannot be asked for"))?;
    let (io, writes) = engine.io();
    Ok(Stats {
        mount: engine.place().mount(),
        daemon: daemon_info(engine),
        io: io.to_owned(),
        writes: writes.to_owned(),
        requests: engine.serving.counts.by_kind(),
        rss_bytes: memory.rss_bytes,
        threads: memory.threads,
        open_files: (engine.live.handles.count() + engine.views.past.open_handles()) as u64,
        inodes: engine.live.nodes.count() as u64,
        past_inodes: engine.views.past.known() as u64,
        announcing: engine.announcer.is_at_work(),
        sealer: sealer_info(engine),
        upkeep: super::room::info(engine)?,
    })
}

fn daemon_info(engine: &Engine) -> DaemonInfo {
    let after = engine.succession.as_ref();
    DaemonInfo {
        pid: std::process::id(),
        started: engine.started.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        holder: after
            .filter(|after| after.is_held())
            .map(|after| after.holder),
        takeovers: after.map_or(0, |after| after.takeovers),
        taken_over: after.and_then(|after| after.taken_over.clone()),
        mounted_as: engine.place().mounted_as(),
    }
}

fn sealer_info(engine: &Engine) -> SealerInfo {
    let stats = engine.live.sealer.stats();
    let mode = match engine.serving.config.seal {
        SealerMode::Off => "off",
        SealerMode::Hash => "hash",
    };
    SealerInfo {
        mode: mode.to_owned(),
        caught_up: stats.caught_up,
        objects: stats.objects,
        bytes: stats.bytes,
        read: stats.read,
    }
}

fn io_name(engine: &Engine) -> &'static str {
    if engine.live.passthrough.is_on() {
        "passthrough"
    } else {
        "daemon"
    }
}
