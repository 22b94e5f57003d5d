//! States of checkpoints found to be lost since the mount: changed without a record, or damaged.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use ckptfs_api::CheckpointId;
use ckptfs_store::ids::ObjectId;
use ckptfs_sys::Kind;
use ckptfs_sys::lock::Mutex;

/// Maximum number of paths per checkpoint, for `status`.
const MET_MAX: usize = 10_000;

/// Losses found since the mount. Not persistent: they are found again.
#[derive(Debug, Default)]
pub struct Losses {
    count: AtomicU64,
    /// Objects whose content differs from the captured content. A leaf lock.
    distrusted: Mutex<HashSet<ObjectId>>,
    /// Files found to be changed without a record, by checkpoint. A leaf lock.
    met: Mutex<BTreeMap<CheckpointId, BTreeMap<Vec<u8>, Kind>>>,
    /// Files changed without a record that count as unchanged by size and mtime, by checkpoint. A
    /// leaf lock.
    accepted: Mutex<BTreeMap<CheckpointId, BTreeSet<Vec<u8>>>>,
}

impl Losses {
    /// Returns the sequence number of losses (dropped, damaged, or changed without a record). While
    /// it is unchanged, known differences between two checkpoints are valid.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Increments the sequence number, after the loss was noted.
    pub(super) fn lost(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Reports a file changed without a record: logged once, and kept for `status`.
    pub(super) fn meet_unseen(&self, path: Vec<u8>, kind: Kind, id: CheckpointId) {
        let mut met = self.met.lock();
        let known = met.entry(id).or_default();
        if known.len() >= MET_MAX || known.contains_key(&path) {
            return;
        }
        tracing::warn!(path = %String::from_utf8_lossy(&path), checkpoint = id.0, "changed behind our back: what it was is not known, and its view gives EIO");
        known.insert(path, kind);
        drop(met);
        self.lost();
    }

    /// Whether the view of a checkpoint showed a file changed without a record.
    pub(super) fn has_met_unseen(&self, id: CheckpointId) -> bool {
        self.met.lock().contains_key(&id)
    }

    /// Returns the files changed without a record found in a checkpoint since the mount, by path.
    pub fn met_unseen(&self, id: CheckpointId) -> BTreeMap<Vec<u8>, Kind> {
        self.met.lock().get(&id).cloned().unwrap_or_default()
    }

    /// Notes a file changed without a record that counts as unchanged by size and mtime.
    pub(super) fn accept(&self, path: Vec<u8>, id: CheckpointId) {
        let mut accepted = self.accepted.lock();
        let known = accepted.entry(id).or_default();
        if known.len() < MET_MAX {
            known.insert(path);
        }
    }

    /// Returns the paths accepted as unchanged in a checkpoint since the mount.
    pub fn accepted(&self, id: CheckpointId) -> BTreeSet<Vec<u8>> {
        self.accepted.lock().get(&id).cloned().unwrap_or_default()
    }

    /// Marks an object as damaged. On return it can no longer be opened, and earlier results that
    /// depend on it are invalid.
    pub fn distrust(&self, object: ObjectId) {
        self.distrusted.lock().insert(object);
        self.lost();
    }

    /// Whether an object was marked as damaged.
    pub(super) fn distrusts(&self, object: ObjectId) -> bool {
        self.distrusted.lock().contains(&object)
    }
}
