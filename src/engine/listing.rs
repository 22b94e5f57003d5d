//! Open directories.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::request::{Fh, Listed, NodeId};
use crate::sys::lock::{Mutex, Rank};
use crate::sys::{Errno, SysResult};

/// Names handed out at once: more than fit into one reply of the kernel's.
const BATCH: usize = 512;

/// An open directory: its names as of the last time it was read from the beginning.
struct Listing {
    names: Mutex<Option<Arc<Vec<Listed>>>>,
}

/// All open directories.
#[derive(Default)]
pub(super) struct Listings {
    open: Mutex<HashMap<u64, Arc<Listing>>>,
    last: AtomicU64,
}

impl Listings {
    /// Opens one.
    pub(super) fn open(&self) -> Fh {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(id, Arc::new(Listing { names: Mutex::ranked(Rank::Listing, None) }));
        Fh(id)
    }

    /// Closes it.
    pub(super) fn close(&self, fh: Fh) {
        self.open.lock().remove(&fh.0);
    }

    /// Number of open directories.
    pub(super) fn count(&self) -> usize {
        self.open.lock().len()
    }

    /// The names from `offset` on; they are made anew when read from the beginning (rewinddir(3)).
    pub(super) fn read(&self, fh: Fh, offset: u64, make: impl FnOnce() -> SysResult<Vec<Listed>>) -> SysResult<Vec<Listed>> {
        let listing = self.open.lock().get(&fh.0).cloned().ok_or(Errno::EBADF)?;
        let mut names = listing.names.lock();
        let known = match (&*names, offset) {
            (Some(known), 1..) => Arc::clone(known),
            _ => {
                let made = Arc::new(make()?);
                *names = Some(Arc::clone(&made));
                made
            }
        };
        drop(names);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(known.len());
        Ok(known.iter().skip(from).take(BATCH).cloned().collect())
    }
}

/// A listing from (name, node, kind), numbered.
pub(super) fn numbered(names: impl IntoIterator<Item = (Vec<u8>, NodeId, crate::sys::Kind)>) -> Vec<Listed> {
    names.into_iter().zip(1..).map(|((name, node, kind), next)| Listed { name, node, kind, slot: node.0, next }).collect()
}
