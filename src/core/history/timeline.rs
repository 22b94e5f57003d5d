//! The timeline: the history of one tree, put together from its parts.
//!
//! Each part has its own lock and knows those below it alone:
//!
//! ```text
//! journal     appends records
//! losses, dropped, contents     what was lost, was dropped, is hashed
//! catalogue   the checkpoints; operations: what was done to them; absences: what nobody recorded
//! epochs      the open epoch and the closed ones in memory; processes: who changes what
//! lookup      what a key held at a checkpoint
//! baseline    what changed since the tree was written down
//! indexer     moves closed epochs into the index
//! ```
//!
//! **Locking.** The epochs are locked before the catalogue, and that before the rest, which are
//! leaves. Only whoever closes an epoch holds one of them while the journal is written to.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::absence::{self, Absences};
use super::append::Appender;
use super::attribution::Author;
use super::catalogue::Catalogue;
use super::checkpoints::CheckpointTable;
use super::collect::Candidate;
use super::content::{ContentHashes, HashRecords};
use super::dropped::{DroppedRecords, DroppedVersions};
use super::epochs::{Epochs, Tables};
use super::indexer::{Indexer, Parts};
use super::lookup::Lookup;
use super::losses::Losses;
use super::operations::{OperationOrder, Operations};
use super::processes::Processes;
use super::since::BaselineTracker;
use super::wake::IdleThread;
use super::written::BaselineCache;
use ckptfs_api::{Actor, CheckpointId};
use ckptfs_store::Store;
use ckptfs_store::ids::{ObjectId, Slot};
use ckptfs_store::record::{Comparing, Place};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Errno, SysResult};

/// An inode with a recorded rename that may not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncertainRename {
    /// Its place if every rename happened.
    pub to: Place,
    /// Its earlier places, the last one last. After a power cut several renames, and links to its
    /// names, may be undone.
    pub before: Vec<Place>,
}

/// State left by the previous daemon, from the journal's tail.
#[derive(Clone, Debug, Default)]
pub struct RecoveryState {
    /// The previous daemon did not shut down cleanly.
    pub unclean: bool,
    /// Renames over existing inodes. At most one of them is half done: the last one, or one of
    /// those in the last append.
    pub replacing: Vec<(Slot, Place, ObjectId, bool)>,
    /// The last recorded renames, each of which may not have happened.
    pub moved: HashMap<Slot, UncertainRename>,
    /// The restore that was in progress.
    pub restoring: Option<(CheckpointId, CheckpointId, Vec<Vec<u8>>)>,
    /// The names to which that restore was limited.
    pub restoring_only: Option<Vec<Vec<u8>>>,
    /// When service of the tree ended, in nanoseconds since 1970, if known.
    pub stopped_ns: Option<i64>,
    /// The latest time in a checkpoint or in the last records, at which the daemon was alive.
    /// Nanoseconds since 1970.
    pub recorded_ns: Option<i64>,
    /// The comparison with the baseline that was in progress.
    pub comparing: Option<Comparing>,
    /// After a power cut: inodes moved into a layer shortly before. btrfs may have restored their
    /// former names.
    pub moved_away: Vec<ObjectId>,
}

/// In-memory state replayed from the journal.
pub(super) struct ReplayedState {
    pub(super) tables: Tables,
    pub(super) checkpoints: CheckpointTable,
    pub(super) order: OperationOrder,
    pub(super) absences: absence::AbsenceTable,
    pub(super) hashed: HashRecords,
    pub(super) dropped: DroppedRecords,
}

/// The history of one tree. See the module.
pub struct Timeline {
    /// Appends records that belong to no other part.
    pub journal: Arc<Appender>,
    /// Versions found to be lost.
    pub losses: Arc<Losses>,
    /// Versions dropped by a tier.
    pub dropped: Arc<DroppedVersions>,
    /// Hashes of versions.
    pub contents: Arc<ContentHashes>,
    /// The checkpoints.
    pub catalogue: Arc<Catalogue>,
    /// Operations on the checkpoints.
    pub operations: Arc<Operations>,
    /// Changes made without a record.
    pub absences: Arc<Absences>,
    /// Undo records of the open epoch and of closed ones.
    pub epochs: Arc<Epochs>,
    /// Attribution of changes to processes.
    pub processes: Processes,
    /// Look-ups of keys at checkpoints.
    pub lookup: Arc<Lookup>,
    /// Changes since the baseline was written.
    pub baseline: Arc<BaselineTracker>,
    /// The last baseline.
    pub(super) written: BaselineCache,
    /// Moves closed epochs into the index.
    pub indexer: Arc<Indexer>,
    /// Versions that only the next checkpoint may need: see [`Timeline::unneeded_without`]. A leaf
    /// lock.
    pub(super) spared: Mutex<Vec<Candidate>>,
}

impl Timeline {
    pub(super) fn new(store: Arc<Store>, memory: ReplayedState) -> Timeline {
        let journal = Arc::new(Appender::new(Arc::clone(&store)));
        let (losses, wake) = (Arc::<Losses>::default(), Arc::<IdleThread>::default());
        let dropped = Arc::new(DroppedVersions::new(
            Arc::clone(&journal),
            Arc::clone(&losses),
            memory.dropped,
        ));
        let contents = Arc::new(ContentHashes::new(Arc::clone(&journal), memory.hashed));
        let catalogue = Arc::new(Catalogue::new(
            Arc::clone(&journal),
            Arc::clone(&dropped),
            memory.checkpoints,
        ));
        let appender = || Arc::clone(&journal);
        let operations = Operations::new(appender(), Arc::clone(&catalogue), memory.order);
        let operations = Arc::new(operations);
        let absences = Absences::new(appender(), Arc::clone(&catalogue), memory.absences);
        let absences = Arc::new(absences);
        let epochs = Arc::new(Epochs::new(
            Arc::clone(&journal),
            Arc::clone(&catalogue),
            memory.tables,
        ));
        let lookup = Arc::new(Lookup::new(
            Arc::clone(&store),
            Arc::clone(&catalogue),
            Arc::clone(&epochs),
            Arc::clone(&wake),
        ));
        let baseline = Arc::new(BaselineTracker::new(
            Arc::clone(&catalogue),
            Arc::clone(&epochs),
        ));
        let parts = Parts {
            catalogue: Arc::clone(&catalogue),
            operations: Arc::clone(&operations),
            absences: Arc::clone(&absences),
            dropped: Arc::clone(&dropped),
            contents: Arc::clone(&contents),
            epochs: Arc::clone(&epochs),
            baseline: Arc::clone(&baseline),
        };
        let indexer = Arc::new(Indexer::new(Arc::clone(&store), wake, parts));
        indexer.hurry_if_many(epochs.read().closed().len());
        Timeline {
            processes: Processes::new(Arc::clone(&journal), Arc::clone(&epochs)),
            journal,
            losses,
            dropped,
            contents,
            catalogue,
            operations,
            absences,
            epochs,
            lookup,
            baseline,
            written: BaselineCache::new(store),
            indexer,
            spared: Mutex::default(),
        }
    }

    /// The store of this history.
    pub fn store(&self) -> &Arc<Store> {
        self.journal.store()
    }

    /// Returns the newest requested checkpoint that the tree descends from. After a restore of the
    /// whole tree this is the restored checkpoint, or its nearest requested ancestor. Defaults to
    /// [`Catalogue::latest`].
    pub fn base(&self) -> Option<CheckpointId> {
        let tables = self.epochs.read();
        self.catalogue.read().base(tables.open().epoch.checkpoint())
    }

    /// Records that the whole tree equals a checkpoint although no restore was necessary. Later
    /// checkpoints descend from it.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing was recorded.
    pub fn comes_from(&self, by: &Actor, target: CheckpointId) -> SysResult<()> {
        self.operations.comes_from(
            by,
            target,
            CheckpointId(self.epochs.epoch().0.saturating_sub(1)),
        )
    }

    /// Marks an inode as created in the open epoch.
    pub fn set_born(&self, author: &Author, slot: Slot) {
        self.epochs.add_born(author, slot);
        self.baseline.note_made(slot);
    }

    /// Notes that an inode lost its last name.
    pub fn set_gone(&self, slot: Slot) {
        if self.epochs.has_past(slot) {
            self.baseline.note_gone(slot);
        }
        self.epochs.drop_born(slot);
    }

    /// Opens an object for reading; `None` if it does not exist.
    ///
    /// # Errors
    /// EIO if it exists and cannot be opened.
    pub fn open_object(&self, object: ObjectId) -> SysResult<Option<File>> {
        if self.losses.distrusts(object) {
            tracing::error!(?object, "a version is damaged and not shown");
            return Err(Errno::EIO);
        }
        match self.store().layers.open(object) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => {
                tracing::error!(%error, ?object, "a captured version cannot be opened");
                Err(Errno::EIO)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ckptfs_store::ids::Name;
    use ckptfs_store::record::Record;

    /// On a filesystem that never reuses an inode number, a program that creates, renames and
    /// removes directories would fill the table.
    #[test]
    fn a_directory_that_came_and_went_in_one_epoch_leaves_no_place() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(File::open(dir.path()).unwrap(), true).unwrap();
        let (timeline, _) = Timeline::open(Arc::new(store)).unwrap();
        let place = Place {
            parent: Slot::ROOT,
            name: Name::new(b"renamed"),
        };
        for slot in [Slot(500), Slot(501)] {
            timeline.set_born(&Author::default(), slot);
            timeline
                .epochs
                .record(
                    &Author::default(),
                    Vec::new(),
                    vec![Record::Moved {
                        places: vec![(slot, place.clone())],
                    }],
                )
                .unwrap();
        }
        timeline.epochs.drop_born(Slot(500));
        assert_eq!(timeline.lookup.place(Slot(500)), None);
        assert_eq!(timeline.lookup.place(Slot(501)), Some(place));
    }
}
