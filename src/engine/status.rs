//! What a daemon tells of itself: `status` and `stats`.

use std::sync::atomic::Ordering;

use super::Engine;
use super::api::{DaemonInfo, SealerInfo, Stats, Status, VerbError, VerbResult};
use super::error;
use crate::history::state::State;
use crate::live::HashMode;
use crate::sys;

impl Engine {
    pub(super) fn status(&self) -> VerbResult<Status> {
        let failed = |errno| {
            let failed = error::failed("the tree cannot be compared", errno);
            let warnings = self.warnings();
            if warnings.is_empty() { failed } else { VerbError { hint: Some(warnings.join("; ")), ..failed } }
        };
        self.checkpoints.settle();
        let (latest, base) = (self.live.timeline().catalogue.latest(), self.live.timeline().base());
        let dirty = match base {
            Some(id) => self.states.compare_all(State::At(id), State::Live).map_err(failed)?,
            None => Vec::new(),
        };
        let mut warnings = self.warnings();
        if let Some(id) = base {
            let unserved = self.states.changed_unserved(id).map_err(failed)?;
            if !unserved.is_empty() {
                warnings.push(format!(
                    "{} paths were changed while nothing was mounted, or past the mount: checkpoints before that cannot show them",
                    unserved.len()
                ));
            }
        }
        let (io, writes) = self.io();
        Ok(Status {
            mount: self.serving.config.mount.clone(),
            backing: self.serving.config.backing.clone(),
            store: self.serving.config.backing.join(".ckptfs"),
            filesystem: self.serving.config.filesystem.to_owned(),
            capture: if self.live.reflink() { "reflink" } else { "copy" }.to_owned(),
            io: io.to_owned(),
            writes: writes.to_owned(),
            daemon: self.daemon_info(),
            epoch: self.live.timeline().epochs.epoch().0,
            latest,
            base,
            checkpoints: self.live.timeline().catalogue.checkpoint_count() as u64,
            dirty,
            shared: {
                let (files, bytes) = self.live.sharing.counts().get();
                super::dedup::Count { files, bytes }
            },
            absence: self.absences.absence(),
            warnings,
            had_below: self.had_below.load(Ordering::Relaxed),
        })
    }

    pub(super) fn stats(&self) -> VerbResult<Stats> {
        let memory = sys::own_memory().map_err(|errno| error::failed("the daemon's memory cannot be asked for", errno))?;
        let (io, writes) = self.io();
        Ok(Stats {
            mount: self.serving.config.mount.clone(),
            daemon: self.daemon_info(),
            io: io.to_owned(),
            writes: writes.to_owned(),
            requests: self.serving.counts.by_kind(),
            rss_bytes: memory.rss_bytes,
            threads: memory.threads,
            open_files: (self.live.handles.count() + self.views.past.open_handles()) as u64,
            inodes: self.live.nodes.count() as u64,
            past_inodes: self.views.past.known() as u64,
            announcing: self.announcer.is_at_work(),
            sealer: self.sealer_info(),
        })
    }

    /// Who does reads, and who does writes: `passthrough` or `daemon`.
    pub fn io(&self) -> (&'static str, &'static str) {
        (self.io_name(), if self.serving.config.strict_writes { "daemon" } else { self.io_name() })
    }

    /// What somebody should know.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.serving.warnings.lock().clone();
        if self.live.timeline().store().journal.is_latched() {
            let next = "unmount, run `ckptfs fsck`, and mount again";
            warnings.push(format!(
                "the journal or a version cannot be written: changes to what checkpoints can see fail with EIO until the next mount; {next}"
            ));
        }
        if let Some(why) = self.live.timeline().indexer.trouble() {
            let refused = if self.live.timeline().indexer.takes_checkpoints() { "will soon be" } else { "are" };
            warnings.push(format!(
                "the index failed ({why}): new checkpoints {refused} refused until there is room, or until the next mount makes it anew"
            ));
        }
        if self.live.timeline().store().index.is_in_memory() {
            warnings.push("the filesystem was full: the index is in memory until the next mount, which takes longer for it; free some space".into());
        }
        warnings.extend(self.checkpoints.hooks.as_ref().and_then(super::hooks::Hooks::warning));
        warnings.extend(self.serving.store_file.look(&self.serving.store_dir).1);
        let over = self.collector.over_bytes.load(std::sync::atomic::Ordering::Relaxed);
        if over > 0 {
            warnings.push(format!(
                "the history takes {over} bytes more than retention.max-size: the rest is pinned, tagged or the newest; `ckptfs du` tells what takes it"
            ));
        }
        if self.succession.as_ref().is_some_and(|after| !after.is_held()) {
            warnings.push("the holder of the mount has died: if this daemon dies too, the mount is dead (ckptfs mount repairs it)".into());
        }
        warnings
    }

    fn daemon_info(&self) -> DaemonInfo {
        let after = self.succession.as_ref();
        DaemonInfo {
            pid: std::process::id(),
            started: self.started.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            holder: after.filter(|after| after.is_held()).map(|after| after.holder),
            takeovers: after.map_or(0, |after| after.takeovers),
            taken_over: after.and_then(|after| after.taken_over.clone()),
        }
    }

    fn sealer_info(&self) -> SealerInfo {
        let stats = self.live.sealer.stats();
        let mode = match self.serving.config.seal {
            HashMode::Off => "off",
            HashMode::Hash => "hash",
            HashMode::Full => "full",
        };
        SealerInfo { mode: mode.to_owned(), caught_up: stats.caught_up, objects: stats.objects, bytes: stats.bytes, read: stats.read }
    }

    fn io_name(&self) -> &'static str {
        if self.live.passthrough.is_on() { "passthrough" } else { "daemon" }
    }
}
