//! Who takes over from this worker, and from whom it takes over
//! (docs/adr/0009-the-mount-outlives-its-daemon.md).

use std::sync::Arc;

use crate::live::{Keeper, Orphans};
use crate::sys::Ledger;

/// Who takes over from this worker, and from whom it takes over.
pub struct Succession {
    /// What the next worker shall know; it has what the one before left.
    pub ledger: Arc<Ledger>,
    /// Holds descriptors for the next worker.
    pub keeper: Arc<dyn Keeper>,
    /// What it held for the one before; `None`: there was none.
    pub orphans: Option<Orphans>,
    /// The process that would start the next.
    pub holder: u32,
    /// How often one has taken over.
    pub takeovers: u32,
    /// When that was last: RFC 3339, UTC.
    pub taken_over: Option<String>,
}

impl std::fmt::Debug for Succession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Succession")
            .field("holder", &self.holder)
            .field("takeovers", &self.takeovers)
            .finish_non_exhaustive()
    }
}

impl Succession {
    /// The holder, our parent, lives.
    pub fn is_held(&self) -> bool {
        std::os::unix::process::parent_id() == self.holder
    }
}
