//! Files that recently lost one of several names.
//!
//! The kernel decrements its link count when UNLINK or RENAME is answered (`fuse_entry_unlinked` in
//! fs/fuse/dir.c). Attributes read in between already have the new count. If they reach the kernel
//! first, it decrements the count twice: it treats an inode with a name as unlinked, and refuses to
//! link it (ENOENT). Attributes in a directory listing are optional. For such a file they are
//! omitted for a short time, except number and type.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::Mutex;

/// Far longer than a caller needs to wake up and process its reply.
const LATELY: Duration = Duration::from_secs(1);
/// Number of files above which old entries are discarded.
const KEPT: usize = 1024;

/// The files. The mutex is a leaf.
#[derive(Default)]
pub struct RecentUnlinks(Mutex<HashMap<Slot, Instant>>);

impl RecentUnlinks {
    /// Records that a file lost a name and has others.
    pub(super) fn note(&self, slot: Slot) {
        let mut map = self.0.lock();
        if map.len() >= KEPT {
            map.retain(|_, at| at.elapsed() < LATELY);
        }
        map.insert(slot, Instant::now());
    }

    /// Returns whether a file lost a name recently.
    pub fn has(&self, slot: Slot) -> bool {
        self.0
            .lock()
            .get(&slot)
            .is_some_and(|at| at.elapsed() < LATELY)
    }
}
