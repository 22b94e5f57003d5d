//! Changes since the last baseline: every key with an undo record in the epoch of the baseline or
//! later.
//!
//! A key has a record only at its first change in an epoch, so the whole epoch of the baseline
//! counts. Changes without a record are covered by others. A new inode is covered by its name in an
//! existing directory, and everything in a new directory by that directory. A directory walked
//! while its epoch was still open is noted here, because changes in it are not recorded.
//!
//! The state is in memory and lost with the daemon; then the whole tree is walked again. Tables in
//! memory (of the open epoch and of closed epochs not in the index) are read directly. The indexer
//! adds the keys of a table here before it removes the table.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::catalogue::Catalogue;
use super::epochs::Epochs;
use super::table::Table;
use ckptfs_api::Epoch;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::lock::Mutex;

/// Maximum number of keys; beyond it the whole tree is walked.
const KEYS_MAX: usize = 200_000;

/// Possible changes since the start of a baseline.
#[derive(Clone, Debug)]
pub struct ChangedSince {
    from: Epoch,
    /// Value of `Checkpoints::emptied` at that time.
    unrecorded: u64,
    /// Names, by directory.
    pub names: BTreeSet<(Slot, Name)>,
    /// Inodes.
    pub nodes: HashSet<Slot>,
    /// Directories whose changes are not all recorded.
    pub unsure: HashSet<Slot>,
    /// Inodes that lost their last name.
    pub gone: HashSet<Slot>,
    /// The maximum was exceeded and the sets are incomplete.
    lost: bool,
}

impl ChangedSince {
    fn new(from: Epoch, unrecorded: u64) -> ChangedSince {
        let (names, nodes) = (BTreeSet::new(), HashSet::new());
        ChangedSince {
            from,
            unrecorded,
            names,
            nodes,
            unsure: HashSet::new(),
            gone: HashSet::new(),
            lost: false,
        }
    }

    fn take(&mut self, table: &Table) {
        if table.epoch < self.from || self.lost {
            return;
        }
        for (dir, name, _) in table.entries() {
            self.nodes.insert(dir);
            self.names.insert((dir, name.clone()));
        }
        self.nodes.extend(table.nodes().map(|(slot, _)| slot));
        if self.keys() > KEYS_MAX {
            *self = ChangedSince {
                lost: true,
                ..ChangedSince::new(self.from, self.unrecorded)
            };
        }
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> usize {
        self.names.len() + self.nodes.len()
    }
}

/// Tracked state, behind one leaf mutex.
#[derive(Debug, Default)]
struct Tracked {
    /// Changes since the current baseline; `None` without a baseline that can be updated.
    since: Option<ChangedSince>,
    /// Changes since the start of the baseline in progress.
    next: Option<ChangedSince>,
    /// Number of changes stored next to the baseline.
    changes: usize,
    /// Inodes, of any epoch, that lost their last name.
    gone: HashSet<Slot>,
}

impl Tracked {
    fn take(&mut self, table: &Table) {
        self.since
            .iter_mut()
            .chain(&mut self.next)
            .for_each(|since| since.take(table));
    }

    /// Notes an inode that was created, or that lost its last name.
    fn set_gone(&mut self, slot: Slot, gone: bool) {
        if !gone {
            self.gone.remove(&slot);
        } else if self.gone.len() < KEYS_MAX {
            self.gone.insert(slot);
        }
    }
}

/// Tracks changes since the last baseline. See the module.
pub struct BaselineTracker {
    catalogue: Arc<Catalogue>,
    epochs: Arc<Epochs>,
    /// A leaf lock.
    tracked: Mutex<Tracked>,
}

impl BaselineTracker {
    pub(super) fn new(catalogue: Arc<Catalogue>, epochs: Arc<Epochs>) -> BaselineTracker {
        BaselineTracker {
            catalogue,
            epochs,
            tracked: Mutex::default(),
        }
    }

    /// Starts a baseline; later changes count for the next one. Returns `false` if no checkpoint
    /// exists, so that changes are not recorded.
    pub fn begin_baseline(&self) -> bool {
        // No epoch is closed under this lock; otherwise the indexer could remove its table before
        // `next` is set.
        let tables = self.epochs.read();
        let checkpoints = self.catalogue.read();
        if checkpoints.is_empty() {
            return false;
        }
        let (from, unrecorded) = (tables.open().epoch, checkpoints.emptied());
        self.tracked.lock().next = Some(ChangedSince::new(from, unrecorded));
        true
    }

    /// Ends a baseline. `written` is the number of changes stored next to it; `None` if it was not
    /// written.
    pub fn end_baseline(&self, written: Option<usize>) {
        let recorded = self.epochs.recorded_now();
        let mut tracked = self.tracked.lock();
        let next = tracked.next.take();
        if let Some(changes) = written {
            // All others have no record since.
            tracked.gone.retain(|slot| {
                recorded.contains(slot)
                    || next.as_ref().is_some_and(|next| next.nodes.contains(slot))
            });
            (tracked.since, tracked.changes) = (next, changes);
        }
    }

    /// Accepts the baseline written by the previous daemon, with `changes` stored next to it and
    /// these removed inodes. All later changes are recorded in the current epoch or a later one.
    pub fn trust_baseline(&self, changes: usize, gone: impl IntoIterator<Item = Slot>) {
        let (from, unrecorded) = (self.epochs.epoch(), self.catalogue.read().emptied());
        let mut tracked = self.tracked.lock();
        tracked.gone.extend(gone);
        (tracked.since, tracked.changes) = (Some(ChangedSince::new(from, unrecorded)), changes);
    }

    /// Invalidates the baseline.
    pub fn distrust_baseline(&self) {
        self.tracked.lock().since = None;
    }

    /// Returns the number of changes stored next to the baseline; `None` without a baseline that
    /// can be updated.
    pub fn baseline_changes(&self) -> Option<usize> {
        let unrecorded = self.catalogue.read().emptied();
        let tracked = self.tracked.lock();
        tracked
            .since
            .as_ref()
            .filter(|since| !since.lost && since.unrecorded == unrecorded)
            .map(|_| tracked.changes)
    }

    /// Marks a name as changed because its current state could not be read during the walk.
    pub fn note_missed(&self, dir: Slot, name: &Name) {
        if let Some(next) = &mut self.tracked.lock().next {
            next.nodes.insert(dir);
            next.names.insert((dir, name.clone()));
        }
    }

    /// Marks a directory whose changes are not recorded, although the baseline includes it.
    pub fn note_unsure(&self, dir: Slot) {
        if let Some(next) = &mut self.tracked.lock().next {
            next.unsure.insert(dir);
        }
    }

    /// Notes a created inode, whose number may be that of a removed one.
    pub(super) fn note_made(&self, slot: Slot) {
        self.tracked.lock().set_gone(slot, false);
    }

    /// Notes an inode that was removed past the mount.
    pub fn note_gone(&self, slot: Slot) {
        self.tracked.lock().set_gone(slot, true);
    }

    /// Returns the approximate number of keys changed since the baseline.
    pub fn changed_keys(&self) -> usize {
        let open = self.epochs.read().open().nodes().count();
        open + self
            .tracked
            .lock()
            .since
            .as_ref()
            .map_or(0, ChangedSince::keys)
    }

    /// Returns the changes since the baseline; `None` without a baseline, or with too many changes.
    pub fn changed_since(&self) -> Option<ChangedSince> {
        // Tables stay in memory under this lock; their keys are noted before they are removed.
        let tables = self.epochs.read();
        let unrecorded = self.catalogue.read().emptied();
        let (since, gone) = {
            let tracked = self.tracked.lock();
            (tracked.since.clone(), tracked.gone.clone())
        };
        let mut since = since.filter(|since| !since.lost && since.unrecorded == unrecorded)?;
        since.gone = gone;
        tables.all().for_each(|table| since.take(table));
        Some(since).filter(|since| !since.lost)
    }

    /// Returns the inodes that lost their last name and have a record in the open epoch.
    pub fn gone_now(&self) -> Vec<Slot> {
        let gone = self.tracked.lock().gone.clone();
        let tables = self.epochs.read();
        let mut gone: Vec<Slot> = gone
            .into_iter()
            .filter(|slot| tables.open().node(*slot).is_some())
            .collect();
        gone.sort_unstable();
        gone
    }

    /// Notes the keys of a table before the indexer removes it.
    pub(super) fn note_indexed(&self, table: &Table) {
        self.tracked.lock().take(table);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::attribution::Author;
    use crate::history::timeline::Timeline;
    use ckptfs_api::CheckpointId;
    use ckptfs_store::Store;
    use ckptfs_store::record::{Checkpoint, Place, Record, Undo};

    fn close(timeline: &Timeline, id: u64) {
        let (tags, note) = (Vec::new(), String::new());
        let checkpoint = Checkpoint {
            id: CheckpointId(id),
            tags,
            note,
            created_ns: 1,
            atomic: true,
            dirty: 0,
            reason: ckptfs_api::Reason::Asked,
        };
        timeline
            .close_epoch(None, checkpoint, Vec::new(), &[])
            .unwrap();
    }

    fn change(timeline: &Timeline, slot: u64) {
        let before = Place {
            parent: Slot::ROOT,
            name: Name::new(b"name"),
        };
        timeline
            .epochs
            .record(
                &Author::default(),
                vec![Undo::Home {
                    slot: Slot(slot),
                    before,
                }],
                Vec::new(),
            )
            .unwrap();
    }

    fn nodes(timeline: &Timeline) -> Option<Vec<u64>> {
        let mut nodes: Vec<u64> = timeline
            .baseline
            .changed_since()?
            .nodes
            .into_iter()
            .map(|slot| slot.0)
            .collect();
        nodes.sort_unstable();
        Some(nodes)
    }

    /// The whole epoch of the baseline counts, and epochs indexed since; nothing is known after a
    /// time without a checkpoint.
    #[test]
    fn what_changed_since_is_what_was_recorded_from_that_epoch_on() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(std::fs::File::open(dir.path()).unwrap(), true).unwrap();
        let timeline = Timeline::open(Arc::new(store)).unwrap().0;
        change(&timeline, 2);
        assert!(!timeline.baseline.begin_baseline(), "nothing is recorded");
        close(&timeline, 1);
        change(&timeline, 3);
        close(&timeline, 2);
        change(&timeline, 4);
        assert!(timeline.baseline.begin_baseline());
        change(&timeline, 5);
        timeline.baseline.note_unsure(Slot(6));
        timeline.baseline.end_baseline(Some(0));
        assert_eq!(nodes(&timeline), Some(vec![4, 5]));
        timeline.set_gone(Slot(5));
        close(&timeline, 3);
        change(&timeline, 7);
        timeline.indexer.index_closed().unwrap();
        assert_eq!(nodes(&timeline), Some(vec![4, 5, 7]));
        let since = timeline.baseline.changed_since().unwrap();
        assert!(since.unsure.contains(&Slot(6)) && since.gone.contains(&Slot(5)));
        assert_eq!(
            timeline.baseline.gone_now(),
            [],
            "it has no record in the open epoch"
        );
        // An unfinished baseline changes nothing.
        assert!(timeline.baseline.begin_baseline());
        timeline.baseline.end_baseline(None);
        assert_eq!(nodes(&timeline), Some(vec![4, 5, 7]));
        for id in 1..=3 {
            assert!(nodes(&timeline).is_some());
            timeline.catalogue.write().apply(Record::Deleted {
                id: CheckpointId(id),
            });
        }
        close(&timeline, 4);
        assert_eq!(
            (nodes(&timeline), timeline.baseline.baseline_changes()),
            (None, None)
        );
    }
}
