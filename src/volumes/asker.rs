//! Who asks for the use of a volume.

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use crate::sys;

/// Who asked for a use: one process, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    pid: i32,
    /// When it started, in clock ticks since boot (proc_pid_stat(5)).
    started: u64,
}

impl Asker {
    /// Who is at the other end of a connection; `None` where its process has no number here, as in
    /// another namespace of processes.
    pub fn of(stream: impl AsFd) -> Option<Asker> {
        let (_, _, pid) = sys::peer_cred(stream).ok()?;
        Some(Asker {
            pid,
            started: sys::process_starttime(pid).ok()?,
        })
    }

    /// This process.
    pub(super) fn this() -> Option<Asker> {
        let pid = i32::try_from(std::process::id()).ok()?;
        Some(Asker {
            pid,
            started: sys::process_starttime(pid).ok()?,
        })
    }

    /// Whether it still runs. One that cannot be looked at does.
    pub(super) fn lives(&self) -> bool {
        match sys::process_starttime(self.pid) {
            Ok(started) => started == self.started,
            Err(errno) => errno != sys::Errno::ENOENT,
        }
    }
}
