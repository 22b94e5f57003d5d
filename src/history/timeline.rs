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
use super::checkpoints::Checkpoints;
use super::collect::Candidate;
use super::content::{Contents, Hashed};
use super::dropped::{DroppedVersions, Places};
use super::epochs::{Epochs, Tables};
use super::indexer::{Indexer, Parts};
use super::lookup::Lookup;
use super::losses::Losses;
use super::operations::{Operations, Order};
use super::processes::Processes;
use super::since::Baseline;
use super::wake::Wake;
use super::written::Written;
use crate::store::Store;
use crate::store::ids::{CheckpointId, ObjectId, Slot};
use crate::store::record::{Actor, Comparing, Place};
use crate::sys::lock::Mutex;
use crate::sys::{Errno, SysResult};

/// An inode that was to be renamed by an operation that may not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its place if all of it happened.
    pub to: Place,
    /// Places where it was before, the last one last. After a power cut several renames may be
    /// undone, and links that led to its names.
    pub before: Vec<Place>,
}

/// What the journal's tail said about how the last daemon ended.
#[derive(Clone, Debug, Default)]
pub struct Aftermath {
    /// The last daemon did not end in an orderly way.
    pub unclean: bool,
    /// Renames over existing inodes of which one may be half done: the last, or those of the last
    /// append.
    pub replacing: Vec<(Slot, Place, ObjectId, bool)>,
    /// The last renames recorded: each may not have happened.
    pub moved: HashMap<Slot, Moved>,
    /// A restore was under way.
    pub restoring: Option<(CheckpointId, CheckpointId, Vec<Vec<u8>>)>,
    /// It was to restore these names alone.
    pub restoring_only: Option<Vec<Vec<u8>>>,
    /// When the tree stopped being served, nanoseconds since 1970, if that is known.
    pub stopped_ns: Option<i64>,
    /// The latest time that a checkpoint or the last records tell of: the daemon lived then.
    /// Nanoseconds since 1970.
    pub recorded_ns: Option<i64>,
    /// The tree was being compared with what it was when it was last served.
    pub comparing: Option<Comparing>,
    /// After a power cut: inodes that were moved into a layer not long before. btrfs may have
    /// brought back the names that they had, too.
    pub moved_away: Vec<ObjectId>,
}

/// What is in memory of what the journal says.
pub(super) struct Memory {
    pub(super) tables: Tables,
    pub(super) checkpoints: Checkpoints,
    pub(super) order: Order,
    pub(super) absences: absence::Known,
    pub(super) hashed: Hashed,
    pub(super) dropped: Places,
}

/// The history of one tree. See the module.
pub struct Timeline {
    /// Appends what has no other place.
    pub journal: Arc<Appender>,
    /// What was found to be lost.
    pub losses: Arc<Losses>,
    /// What was dropped by a tier.
    pub dropped: Arc<DroppedVersions>,
    /// What versions hold.
    pub contents: Arc<Contents>,
    /// The checkpoints.
    pub catalogue: Arc<Catalogue>,
    /// What was done to them.
    pub operations: Arc<Operations>,
    /// What was changed behind our back.
    pub absences: Arc<Absences>,
    /// The open epoch, and closed ones.
    pub epochs: Arc<Epochs>,
    /// Who changes what.
    pub processes: Processes,
    /// What a key held at a checkpoint.
    pub lookup: Arc<Lookup>,
    /// What changed since the tree was written down.
    pub baseline: Arc<Baseline>,
    /// The tree as it was written down last.
    pub(super) written: Written,
    /// Moves closed epochs into the index.
    pub indexer: Arc<Indexer>,
    /// Versions that only the next checkpoint may need: see [`Timeline::unneeded_without`]. A leaf.
    pub(super) spared: Mutex<Vec<Candidate>>,
}

impl Timeline {
    pub(super) fn new(store: Arc<Store>, memory: Memory) -> Timeline {
        let journal = Arc::new(Appender::new(Arc::clone(&store)));
        let (losses, wake) = (Arc::<Losses>::default(), Arc::<Wake>::default());
        let dropped = Arc::new(DroppedVersions::new(
            Arc::clone(&journal),
            Arc::clone(&losses),
            memory.dropped,
        ));
        let contents = Arc::new(Contents::new(Arc::clone(&journal), memory.hashed));
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
        let baseline = Arc::new(Baseline::new(Arc::clone(&catalogue), Arc::clone(&epochs)));
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
            written: Written::new(store),
            indexer,
            spared: Mutex::default(),
        }
    }

    /// The store that it is kept in.
    pub fn store(&self) -> &Arc<Store> {
        self.journal.store()
    }

    /// The newest checkpoint that somebody asked for and that the tree comes from: after a restore
    /// of the whole tree it is what was restored, or what that comes from. If there is none,
    /// [`Catalogue::latest`].
    pub fn base(&self) -> Option<CheckpointId> {
        let tables = self.epochs.read();
        self.catalogue.read().base(tables.open().epoch.checkpoint())
    }

    /// Notes that the whole tree is what a checkpoint holds though nothing had to be restored for
    /// it: what comes after comes from that.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing was noted.
    pub fn comes_from(&self, by: &Actor, target: CheckpointId) -> SysResult<()> {
        self.operations.comes_from(
            by,
            target,
            CheckpointId(self.epochs.epoch().0.saturating_sub(1)),
        )
    }

    /// Notes that an inode was made.
    pub fn set_born(&self, author: &Author, slot: Slot) {
        self.epochs.add_born(author, slot);
        self.baseline.note_made(slot);
    }

    /// Notes that an inode has lost its last name.
    pub fn set_gone(&self, slot: Slot) {
        if self.epochs.has_past(slot) {
            self.baseline.note_gone(slot);
        }
        self.epochs.drop_born(slot);
    }

    /// Opens an object for reading; `None` if it is not there.
    ///
    /// # Errors
    /// EIO if it is there and cannot be opened.
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
    use crate::store::ids::Name;
    use crate::store::record::Record;

    /// On a filesystem that never gives a number twice, a program that makes, renames and removes
    /// directories would fill the table.
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
