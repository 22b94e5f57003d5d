//! The process that requests the use of a volume.

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use ckptfs_sys as sys;

/// A process, identified for good by pid and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdent {
    pid: i32,
    /// Start time in clock ticks since boot (proc_pid_stat(5)).
    started: u64,
}

impl ProcessIdent {
    /// Returns the peer of a connection; `None` if its process has no pid here, as in another pid
    /// namespace.
    pub fn of(stream: impl AsFd) -> Option<ProcessIdent> {
        let (_, _, pid) = sys::peer_cred(stream).ok()?;
        Some(ProcessIdent {
            pid,
            started: sys::process_starttime(pid).ok()?,
        })
    }

    /// Returns this process.
    pub(super) fn this() -> Option<ProcessIdent> {
        let pid = i32::try_from(std::process::id()).ok()?;
        Some(ProcessIdent {
            pid,
            started: sys::process_starttime(pid).ok()?,
        })
    }

    /// Whether the process still runs. An inspection failure other than ENOENT counts as running.
    pub(super) fn lives(&self) -> bool {
        match sys::process_starttime(self.pid) {
            Ok(started) => started == self.started,
            Err(errno) => errno != sys::Errno::ENOENT,
        }
    }
}
