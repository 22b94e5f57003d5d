//! Files that have just lost one of several names.
//!
//! The kernel counts an inode's names down by itself once UNLINK or RENAME is answered
//! (`fuse_entry_unlinked` in fs/fuse/dir.c). Attributes that were asked for in between say so
//! already, and if they reach the kernel first it counts the same name twice: it takes an inode
//! with a name for one without, and refuses to link it (ENOENT). What a listing volunteers is not
//! needed, so for a moment it says no more of such a file than its number and kind.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::store::ids::Slot;
use crate::sys::lock::Mutex;

/// Far longer than a caller takes to wake up and take its answer.
const LATELY: Duration = Duration::from_secs(1);
/// Files beyond which those of earlier are looked for and let go.
const KEPT: usize = 1024;

/// The files. Its mutex is a leaf.
#[derive(Default)]
pub struct RecentUnlinks(Mutex<HashMap<Slot, Instant>>);

impl RecentUnlinks {
    /// A file has lost a name, and has others.
    pub(super) fn note(&self, slot: Slot) {
        let mut map = self.0.lock();
        if map.len() >= KEPT {
            map.retain(|_, at| at.elapsed() < LATELY);
        }
        map.insert(slot, Instant::now());
    }

    /// Whether a file lost a name a moment ago.
    pub fn has(&self, slot: Slot) -> bool {
        self.0
            .lock()
            .get(&slot)
            .is_some_and(|at| at.elapsed() < LATELY)
    }
}
