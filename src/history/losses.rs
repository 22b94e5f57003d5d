//! What cannot be told any more of what checkpoints held, as it was found since the mount: changed
//! behind our back, or damaged.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::ids::{CheckpointId, ObjectId};
use crate::sys::Kind;
use crate::sys::lock::Mutex;

/// Paths changed behind our back that are kept for `status`.
const MET_MAX: usize = 10_000;

/// What was found to be lost. Gone with the daemon: it is found again.
#[derive(Debug, Default)]
pub struct Losses {
    count: AtomicU64,
    /// Objects that were found to hold something else than was captured. A leaf.
    distrusted: Mutex<HashSet<ObjectId>>,
    /// What was found to be changed behind our back since the mount, by checkpoint. A leaf.
    met: Mutex<BTreeMap<CheckpointId, BTreeMap<Vec<u8>, Kind>>>,
    /// What was changed behind our back, and counts as unchanged by its size and time of
    /// modification, by checkpoint. A leaf.
    accepted: Mutex<BTreeMap<CheckpointId, BTreeSet<Vec<u8>>>>,
}

impl Losses {
    /// A number that grows when it turns out that something a checkpoint held cannot be told any
    /// more: it was dropped, damaged, or changed behind our back. As long as it stays, what was
    /// found to differ between two checkpoints is so.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Something was lost; it is noted already.
    pub(super) fn lost(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Somebody met a file that was changed behind our back: it is logged, once, and kept for
    /// `status`.
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

    /// Whether something changed behind our back was met in the view of a checkpoint.
    pub(super) fn has_met_unseen(&self, id: CheckpointId) -> bool {
        self.met.lock().contains_key(&id)
    }

    /// What was met of that kind, by path, since the mount.
    pub fn met_unseen(&self, id: CheckpointId) -> BTreeMap<Vec<u8>, Kind> {
        self.met.lock().get(&id).cloned().unwrap_or_default()
    }

    /// Notes a file that was changed behind our back and counts as unchanged by its size and time of
    /// modification.
    pub(super) fn accept(&self, path: Vec<u8>, id: CheckpointId) {
        let mut accepted = self.accepted.lock();
        let known = accepted.entry(id).or_default();
        if known.len() < MET_MAX {
            known.insert(path);
        }
    }

    /// The files that were accepted in the view of a checkpoint since the mount, by path.
    pub fn accepted(&self, id: CheckpointId) -> BTreeSet<Vec<u8>> {
        self.accepted.lock().get(&id).cloned().unwrap_or_default()
    }

    /// An object holds something else than was captured: when it returns nobody opens it any more,
    /// and what was told of it before is not believed.
    pub fn distrust(&self, object: ObjectId) {
        self.distrusted.lock().insert(object);
        self.lost();
    }

    /// An object was found to hold something else than was captured.
    pub(super) fn distrusts(&self, object: ObjectId) -> bool {
        self.distrusted.lock().contains(&object)
    }
}
