//! The worker's predecessor and successor (docs/adr/0009-the-mount-outlives-its-daemon.md).

use std::sync::Arc;

use crate::live::{FdKeeper, KeptFds};
use ckptfs_sys::Ledger;

/// State handed over between workers.
pub struct WorkerHandover {
    /// State for the next worker; contains that of the previous one.
    pub ledger: Arc<Ledger>,
    /// Keeps descriptors for the next worker.
    pub keeper: Arc<dyn FdKeeper>,
    /// Descriptors of the previous worker; `None`: this one is the first.
    pub orphans: Option<KeptFds>,
    /// The process that would start the next worker.
    pub holder: u32,
    /// Number of takeovers.
    pub takeovers: u32,
    /// Time of the last takeover: RFC 3339, UTC.
    pub taken_over: Option<String>,
}

impl std::fmt::Debug for WorkerHandover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Succession")
            .field("holder", &self.holder)
            .field("takeovers", &self.takeovers)
            .finish_non_exhaustive()
    }
}

impl WorkerHandover {
    /// Returns whether the holder, which is our parent, is alive.
    pub fn is_held(&self) -> bool {
        std::os::unix::process::parent_id() == self.holder
    }
}
