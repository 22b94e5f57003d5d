//! Online deduplication: an object hashed by the sealer shares the extents of an older object with
//! the same content.
//!
//! Both belong to closed epochs, and the bytes are compared. With reflink the kernel compares;
//! otherwise the comparison precedes a hard link. Objects not shared here (the daemon was killed,
//! or the disk was full) are left to `dedup`.
//!
//! Locking: only the timeline's locks, briefly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shared_tables::SharedTables;
use crate::history::timeline::Timeline;
use ckptfs_store::dedup::{DedupFiles, DedupGroup, DedupOutcome, DedupStep, ShareMethod};
use ckptfs_store::extents::CALL_BYTES;
use ckptfs_store::ids::ObjectId;
use ckptfs_store::record::ObjectHash;
use ckptfs_sys::{self as sys, Errno, SysResult};

/// Maximum number of candidates tried for one object.
const TRIES_MAX: usize = 3;

/// Number and size of files deduplicated since the mount.
#[derive(Debug, Default)]
pub struct DedupCounts {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl DedupCounts {
    /// Counts one file.
    pub fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns their number and total size in bytes.
    pub fn get(&self) -> (u64, u64) {
        (
            self.files.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }
}

/// The older object and the new one.
struct ObjectPair<'a> {
    sharing: &'a OnlineDedup,
    objects: [ObjectId; 2],
}

impl DedupFiles for ObjectPair<'_> {
    fn open(&mut self, number: usize) -> SysResult<Arc<std::fs::File>> {
        let object = self.objects.get(number).ok_or(Errno::ENOENT)?;
        self.sharing
            .timeline
            .store()
            .layers
            .open(*object)
            .map(Arc::new)
            .map_err(Errno::from)
    }

    fn way(&self, _source: usize, _target: usize) -> ShareMethod {
        if self.sharing.reflink {
            ShareMethod::Extents
        } else {
            ShareMethod::Link
        }
    }

    fn link(&mut self, source: usize, target: usize) -> SysResult<bool> {
        let (Some(source), Some(target)) = (self.objects.get(source), self.objects.get(target))
        else {
            return Err(Errno::ENOENT);
        };
        self.sharing.timeline.store().link_same(*source, *target)
    }

    /// Prefers the older object.
    fn rank(&self, number: usize) -> u8 {
        u8::from(number == 0)
    }
}

/// Deduplicates objects.
pub struct OnlineDedup {
    timeline: Arc<Timeline>,
    reflink: bool,
    shared: DedupCounts,
}

impl OnlineDedup {
    pub(super) fn new(tables: &SharedTables) -> Arc<OnlineDedup> {
        Arc::new(OnlineDedup {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            shared: DedupCounts::default(),
        })
    }

    /// Returns the number and size of objects deduplicated since the mount.
    pub fn counts(&self) -> &DedupCounts {
        &self.shared
    }

    /// Deduplicates objects that were just hashed and recorded. `go_on` is called with a number of
    /// bytes before they are read.
    pub(super) fn share_known(&self, hashed: &[ObjectHash], mut go_on: impl FnMut(u64) -> bool) {
        for sealed in hashed {
            let known = match self.timeline.contents.same_content(sealed) {
                Ok(known) => known,
                Err(errno) => {
                    return tracing::debug!(%errno, "the contents that are known cannot be looked up");
                }
            };
            for object in known
                .into_iter()
                .filter(|object| object.epoch < self.timeline.epochs.epoch())
                .take(TRIES_MAX)
            {
                match self.share_pair(object, sealed, &mut go_on) {
                    Some(true) => break,
                    Some(false) => {}
                    None => return,
                }
            }
        }
    }

    /// Returns whether the objects share all extents. `None` if the sealer is to end.
    fn share_pair(
        &self,
        known: ObjectId,
        sealed: &ObjectHash,
        go_on: &mut impl FnMut(u64) -> bool,
    ) -> Option<bool> {
        let mut pair = ObjectPair {
            sharing: self,
            objects: [known, sealed.object],
        };
        let mut same = DedupGroup::new(sealed.size, vec![1, 0], false);
        let mut shares = false;
        // Both objects are read for the comparison: small ones at once, large ones in one chunk per
        // step.
        let each = if sealed.size > CALL_BYTES {
            2 * CALL_BYTES
        } else {
            0
        };
        if !go_on(2 * CALL_BYTES.min(sealed.size)) {
            return None;
        }
        loop {
            if !go_on(each) {
                return None;
            }
            match same.step(&mut pair) {
                DedupStep::Some | DedupStep::Fate(0, _) => {}
                DedupStep::Fate(_, fate) => {
                    shares = matches!(
                        fate,
                        DedupOutcome::Already
                            | DedupOutcome::Shared { .. }
                            | DedupOutcome::Linked { .. }
                            | DedupOutcome::Unplaced
                    );
                    if matches!(
                        fate,
                        DedupOutcome::Shared { .. } | DedupOutcome::Linked { .. }
                    ) {
                        self.shared.add(sealed.size);
                        if let Ok(file) = pair.open(1) {
                            sys::drop_cached(&*file, 0, sealed.size);
                        }
                    }
                }
                DedupStep::All => return Some(shares),
            }
        }
    }
}
