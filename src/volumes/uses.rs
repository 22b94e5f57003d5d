//! Uses of volumes: which of them have ended although nobody gave them back, and which checkpoints they look at.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use super::error::hinted;
use super::options::Options;
use super::pool::{Place, Pool};
use super::record::{MountId, Record, boot};
use crate::engine::api::{ListCheckpoints, PinCheckpoint, StateName, VerbResult};
use crate::sys;

/// Why a checkpoint is pinned that somebody uses as a volume. A pin with another reason is somebody else's.
const PINNED_FOR_USE: &str = "in use as a volume";

/// Who asked for a use: one process, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    pid: i32,
    /// When it started, in clock ticks since boot (proc_pid_stat(5)).
    started: u64,
}

impl Asker {
    /// Who is at the other end of a connection; `None` where its process has no number here, as in another namespace of processes.
    pub fn of(stream: &UnixStream) -> Option<Asker> {
        let (_, _, pid) = sys::peer_cred(stream).ok()?;
        Some(Asker { pid, started: sys::process_starttime(pid).ok()? })
    }

    /// Whether it still runs. One that cannot be looked at does.
    fn lives(&self) -> bool {
        match sys::process_starttime(self.pid) {
            Ok(started) => started == self.started,
            Err(errno) => errno != sys::Errno::ENOENT,
        }
    }
}

impl MountId {
    /// Whether whoever asked for it runs no more. An engine that was killed gives nothing back; Podman ends when its container runs, so this alone does not
    /// say that the use has ended.
    pub(super) fn is_orphan(&self) -> bool {
        self.boot != boot() || self.by.is_some_and(|by| !by.lives())
    }
}

impl Pool {
    /// Ends the use of an ephemeral volume if all who asked for it were killed and no container has it, so that the next one gets a fresh copy.
    ///
    /// # Errors
    /// `in-use`: something still has the old copy open.
    pub(super) fn end_orphans(&self, record: &mut Record, options: &Options, place: &Place) -> VerbResult<()> {
        let orphans = !record.mounts.is_empty() && record.mounts.iter().all(MountId::is_orphan);
        if !options.ephemeral || !orphans || self.still_elsewhere(place)?.is_some() {
            return Ok(());
        }
        tracing::info!(name = record.name, dropped = record.mounts.len(), "uses whose engine was killed");
        record.mounts.clear();
        record.save(&self.meta(&record.name))?;
        self.rest(record, true)?;
        if record.mounted {
            let message = format!("what an engine that was killed has left of volume {} is still in use", record.name);
            return Err(hinted("in-use", message, "end the processes that have files of it open"));
        }
        Ok(())
    }

    /// Pins the checkpoints that uses look at, so that no rule of retention takes them, and unpins those that none looks at any more. The pin of somebody
    /// else stays as it is, and is as good.
    ///
    /// # Errors
    /// Those of the daemon.
    pub(super) fn pin_used(&self, record: &Record) -> VerbResult<()> {
        let Some(mut client) = self.daemon(record)? else { return Ok(()) };
        let used: BTreeSet<u64> = record.mounts.iter().filter_map(|mount| mount.checkpoint).collect();
        for one in client.ask(ListCheckpoints)? {
            let reason = match (one.pinned.as_deref(), used.contains(&one.id.0)) {
                (None, true) => Some(PINNED_FOR_USE.to_owned()),
                (Some(PINNED_FOR_USE), false) => None,
                _ => continue,
            };
            client.ask(PinCheckpoint { state: StateName(one.id.to_string()), reason })?;
        }
        Ok(())
    }

    /// The same, where a pin that cannot be changed keeps no container from starting or ending: a checkpoint that is pinned too long is told by `log`.
    pub(super) fn try_pin_used(&self, record: &Record) {
        if let Err(error) = self.pin_used(record) {
            tracing::warn!(name = record.name, error = error.message, "the pins of past states in use are not as they should be");
        }
    }
}
