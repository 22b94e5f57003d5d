//! What changed since the tree was written down last (the baseline): every key that has an undo
//! record from the epoch on that was open then.
//!
//! A key has a record at its first change in an epoch only, so all of that epoch counts. What makes
//! no record is known by something that does: an inode that was made since by its name in a
//! directory that was there before, and all that is in a directory that was made since by that
//! directory. One that was walked while its epoch was still open is noted here, for what changes in
//! it makes none either.
//!
//! It is in memory, and gone with the daemon: then the tree is walked again. What is in the tables
//! of the open epoch and of closed ones that the index does not have is told from there; the
//! indexer leaves their keys here when it takes them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::catalogue::Catalogue;
use super::epochs::Epochs;
use super::table::Table;
use crate::store::ids::{Epoch, Name, Slot};
use crate::sys::lock::Mutex;

/// With more keys than this all of the tree is walked instead.
const KEYS_MAX: usize = 200_000;

/// What changed, or may have, since some moment.
#[derive(Clone, Debug)]
pub struct Since {
    from: Epoch,
    /// How often there was no checkpoint, by then.
    unrecorded: u64,
    /// Names in directories.
    pub names: BTreeSet<(Slot, Name)>,
    /// Inodes.
    pub nodes: HashSet<Slot>,
    /// Directories of which not all changes were recorded.
    pub unsure: HashSet<Slot>,
    /// Inodes that have lost their last name.
    pub gone: HashSet<Slot>,
    /// There is more than is held.
    lost: bool,
}

impl Since {
    fn new(from: Epoch, unrecorded: u64) -> Since {
        let (names, nodes) = (BTreeSet::new(), HashSet::new());
        Since {
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
            *self = Since {
                lost: true,
                ..Since::new(self.from, self.unrecorded)
            };
        }
    }

    /// How many keys there are.
    pub fn keys(&self) -> usize {
        self.names.len() + self.nodes.len()
    }
}

/// What is kept track of. Behind one mutex, a leaf.
#[derive(Debug, Default)]
struct Tracked {
    /// Since the baseline that there is; `None`: there is none that could be brought up to date.
    since: Option<Since>,
    /// Since the beginning of the one that is being made.
    next: Option<Since>,
    /// Changes that are beside the baseline.
    changes: usize,
    /// Inodes of any epoch that have lost their last name.
    gone: HashSet<Slot>,
}

impl Tracked {
    fn take(&mut self, table: &Table) {
        self.since
            .iter_mut()
            .chain(&mut self.next)
            .for_each(|since| since.take(table));
    }

    /// An inode was made, or has lost its last name.
    fn set_gone(&mut self, slot: Slot, gone: bool) {
        if !gone {
            self.gone.remove(&slot);
        } else if self.gone.len() < KEYS_MAX {
            self.gone.insert(slot);
        }
    }
}

/// Keeps track of what changes since the tree was written down. See the module.
pub struct Baseline {
    catalogue: Arc<Catalogue>,
    epochs: Arc<Epochs>,
    /// A leaf.
    tracked: Mutex<Tracked>,
}

impl Baseline {
    pub(super) fn new(catalogue: Arc<Catalogue>, epochs: Arc<Epochs>) -> Baseline {
        Baseline {
            catalogue,
            epochs,
            tracked: Mutex::default(),
        }
    }

    /// The tree is written down from now on; what changes counts for the next time. `false`: no
    /// checkpoint shows anything, so no change is recorded.
    pub fn begin_baseline(&self) -> bool {
        // No epoch is closed meanwhile, or the indexer could take it before what is to note it is
        // there.
        let tables = self.epochs.read();
        let checkpoints = self.catalogue.read();
        if checkpoints.is_empty() {
            return false;
        }
        let (from, unrecorded) = (tables.open().epoch, checkpoints.emptied());
        self.tracked.lock().next = Some(Since::new(from, unrecorded));
        true
    }

    /// It was written down, with so many changes beside it; `None`: it was not.
    pub fn end_baseline(&self, written: Option<usize>) {
        let recorded = self.epochs.recorded_now();
        let mut tracked = self.tracked.lock();
        let next = tracked.next.take();
        if let Some(changes) = written {
            // Of all others there is no record since.
            tracked.gone.retain(|slot| {
                recorded.contains(slot)
                    || next.as_ref().is_some_and(|next| next.nodes.contains(slot))
            });
            (tracked.since, tracked.changes) = (next, changes);
        }
    }

    /// The last daemon has written it down, with so many changes beside it; these inodes were gone
    /// then, and all that changed after is on record in the epoch that was open at the beginning,
    /// or later.
    pub fn trust_baseline(&self, changes: usize, gone: impl IntoIterator<Item = Slot>) {
        let (from, unrecorded) = (self.epochs.epoch(), self.catalogue.read().emptied());
        let mut tracked = self.tracked.lock();
        tracked.gone.extend(gone);
        (tracked.since, tracked.changes) = (Some(Since::new(from, unrecorded)), changes);
    }

    /// What there was is not to be believed any more.
    pub fn distrust_baseline(&self) {
        self.tracked.lock().since = None;
    }

    /// How many changes are beside the baseline; `None`: there is none that can be brought up to
    /// date.
    pub fn baseline_changes(&self) -> Option<usize> {
        let unrecorded = self.catalogue.read().emptied();
        let tracked = self.tracked.lock();
        tracked
            .since
            .as_ref()
            .filter(|since| !since.lost && since.unrecorded == unrecorded)
            .map(|_| tracked.changes)
    }

    /// Something of a directory that is being written down could not be seen as it is: it counts as
    /// changed.
    pub fn note_missed(&self, dir: Slot, name: &Name) {
        if let Some(next) = &mut self.tracked.lock().next {
            next.nodes.insert(dir);
            next.names.insert((dir, name.clone()));
        }
    }

    /// What changes in this directory is not recorded, although it is written down.
    pub fn note_unsure(&self, dir: Slot) {
        if let Some(next) = &mut self.tracked.lock().next {
            next.unsure.insert(dir);
        }
    }

    /// An inode was made: its number is not that of one that is gone.
    pub(super) fn note_made(&self, slot: Slot) {
        self.tracked.lock().set_gone(slot, false);
    }

    /// An inode is nowhere any more, although nobody removed it through the mount.
    pub fn note_gone(&self, slot: Slot) {
        self.tracked.lock().set_gone(slot, true);
    }

    /// How many keys have changed since the baseline, about.
    pub fn changed_keys(&self) -> usize {
        let open = self.epochs.read().open().nodes().count();
        open + self.tracked.lock().since.as_ref().map_or(0, Since::keys)
    }

    /// What changed since the baseline. `None`: there is none, or too much has.
    pub fn changed_since(&self) -> Option<Since> {
        // No table goes meanwhile: its keys are noted before.
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

    /// Of the inodes that have lost their last name, those that have a record in the open epoch.
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

    /// The index takes this epoch over: what it changed is noted before its table goes.
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
    use crate::store::Store;
    use crate::store::ids::CheckpointId;
    use crate::store::record::{Checkpoint, Place, Reason, Record, Undo};

    fn close(timeline: &Timeline, id: u64) {
        let (tags, note) = (Vec::new(), String::new());
        let checkpoint = Checkpoint {
            id: CheckpointId(id),
            tags,
            note,
            created_ns: 1,
            atomic: true,
            dirty: 0,
            reason: Reason::Asked,
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

    /// All of the epoch in which the tree was written down counts, and what the index has taken
    /// since; nothing does after a moment without a checkpoint.
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
        // Another that was not finished changes nothing.
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
