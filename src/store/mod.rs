//! What is on disk in `.ckptfs/`: the journal, the layers, and the index over them.
//!
//! The journal is the truth about the past, the layers hold the data of old versions, the index
//! finds things in the journal and can be made from it. This layer knows what is written and how it
//! is checked, and nothing of what it means: which record is made when is decided above.
//!
//! Invariants: one process writes a store at a time (`layout`); nothing is opened by a path below
//! the mount (`at`); bytes from the disk are checked before they are believed, and bad ones are
//! errors, never panics. `docs/format.md` is the format in one place.
//!
//! Locking: each part has its own locks, told in its module; none is held when another part is
//! called, except that [`Index::rebuild`] reads the journal under the index's.

mod at;
pub mod baseline;
pub mod blocks;
pub mod check;
pub mod dedup;
pub mod error;
pub mod extents;
pub mod forget;
pub mod hash;
pub mod ids;
mod in_order;
pub mod index;
pub mod journal;
pub mod layers;
pub mod layout;
pub mod lineage;
mod link;
pub mod operation;
mod packing;
pub mod record;
pub mod reserve;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::error::{Mistrust, StoreError, StoreResult};
pub use self::forget::Forgotten;
pub use self::index::{Batch, Needs};
use self::index::{Doubt, Index};
pub use self::journal::Address;
use self::journal::Journal;
use self::layers::Layers;
use self::layout::Layout;
use self::record::{Kept, Record};
use self::reserve::Reserve;

/// An open store. Shared by reference between threads; its lock is given back when it is dropped.
#[derive(Debug)]
pub struct Store {
    // Dropped in this order: the lock in `layout` goes last.
    /// Finds things in the journal.
    pub index: Index,
    /// The data of old versions.
    pub layers: Layers,
    /// What is kept for when the filesystem is full.
    pub reserve: Arc<Reserve>,
    /// Every change to the past.
    pub journal: Journal,
    /// Number of the last frame with a deletion of a checkpoint since the store was opened.
    deleted: AtomicU64,
    /// The directory itself.
    pub layout: Layout,
}

/// What opening a store found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// It did not exist before.
    pub created: bool,
    /// The journal's end was torn, as a power cut tears it; it was repaired.
    pub torn: bool,
    /// The index was made anew from the journal, for this reason.
    pub rebuilt: Option<Doubt>,
}

impl Store {
    /// Opens the store of a directory, and makes it if there is none and `create` says so; locks
    /// it, repairs the journal's end after a power cut, and makes an index anew that cannot be
    /// trusted. Records after [`Index::applied`] are not applied: that is for the caller, who keeps
    /// them in memory.
    ///
    /// `root` is the backing directory itself, opened before anything was mounted over it.
    ///
    /// Errors: those of [`Layout::open`], [`Journal::open`], [`Index::open`], [`Index::rebuild`].
    pub fn open(root: impl AsFd, create: bool) -> StoreResult<(Store, Opened)> {
        Store::open_with(root, create, None)
    }

    /// [`Store::open`], with a directory for the index where the system has no `/proc/self/fd`: see
    /// [`Layout::with_index_home`].
    pub fn open_with(
        root: impl AsFd,
        create: bool,
        index_home: Option<PathBuf>,
    ) -> StoreResult<(Store, Opened)> {
        Store::open_in(Layout::open(root, create)?.with_index_home(index_home))
    }

    /// [`Store::open`] of the store of a branch, which is made if there is none. `reserve`: that of
    /// its parent, which keeps it filled.
    pub fn open_branch(root: impl AsFd, reserve: Arc<Reserve>) -> StoreResult<(Store, Opened)> {
        Store::open_in(Layout::open_with_reserve(root, true, Some(reserve))?)
    }

    fn open_in(layout: Layout) -> StoreResult<(Store, Opened)> {
        // The journal is there before anything is kept. Without this a history that lost it would
        // begin anew, as if there had been none.
        if Journal::is_missing(&layout)? && !Layers::new(&layout)?.epochs()?.is_empty() {
            return Err(StoreError::JournalDamaged {
                segment: 1,
                offset: 0,
            });
        }
        let reserve = Arc::clone(layout.reserve());
        let (journal, found) =
            reserve.with_last_room(|| Journal::open(&layout), StoreError::errno)?;
        check_end(&layout, &journal)?;
        let layers = Layers::new(&layout)?.with_reserve(Arc::clone(&reserve));
        let (index, opening) = if may_lack_index(&layout, &journal) {
            index::open_waiting(&layout)?
        } else {
            Index::open(&layout)?
        };
        let rebuilt = match opening {
            // Of nothing there is nothing to index.
            index::Opening::Rebuild(Doubt::Missing) if found.end == journal.start() => None,
            index::Opening::Rebuild(doubt) => Some(doubt),
            index::Opening::Ready => doubt_of(&index, &journal)?,
        };
        if let Some(doubt) = rebuilt {
            if index.is_waiting() {
                tracing::debug!("the index is made in memory");
            } else {
                tracing::info!(reason = %doubt, "the index is made anew");
            }
            let end = Some(end_of_closed(&journal)?);
            if opening == index::Opening::Ready {
                index.rebuild(&journal, end)?
            } else {
                index.fill(&journal, end)?
            }
        }
        let opened = Opened {
            created: layout.created(),
            torn: found.torn,
            rebuilt,
        };
        Ok((
            Store {
                index,
                layers,
                reserve,
                journal,
                deleted: AtomicU64::new(0),
                layout,
            },
            opened,
        ))
    }

    /// Has the index of a branch on disk once there is enough in it. To be called by who applies to
    /// it, before that.
    ///
    /// Errors: those of [`Index::rebuild`].
    pub fn index_where_due(&self) -> StoreResult<()> {
        if self.index.is_waiting() && !is_short(&self.journal) {
            let end = Some(end_of_closed(&self.journal)?);
            index::onto_disk(&self.index, &self.journal, end)?;
        }
        Ok(())
    }

    /// Sets the index aside and makes it anew from the journal, as opening does with one that
    /// cannot be trusted.
    ///
    /// Errors: those of [`Index::rebuild`].
    pub fn rebuild_index(&self) -> StoreResult<()> {
        self.index
            .rebuild(&self.journal, Some(end_of_closed(&self.journal)?))
    }

    /// As [`Journal::append`], with what room the reserve has for it.
    ///
    /// Errors: those of [`Journal::append`].
    pub fn append(&self, records: &[Record]) -> StoreResult<Vec<Address>> {
        let append = || {
            let places = self.journal.append(records)?;
            if records
                .iter()
                .any(|record| matches!(record, Record::Deleted { .. }))
            {
                self.deleted
                    .store(self.journal.last_number(), Ordering::SeqCst);
            }
            Ok(places)
        };
        if records.iter().any(Record::has_last_room) {
            self.reserve.with_last_room(append, StoreError::errno)
        } else {
            self.reserve.with_room(append, StoreError::errno)
        }
    }

    /// Whether the deletions of checkpoints are on the disk: after a power cut none of those comes back.
    pub fn has_synced_deletions(&self) -> bool {
        self.journal.is_on_disk(self.deleted.load(Ordering::SeqCst))
    }

    /// As [`Index::apply`]; on a filesystem that has no room for it the index goes on in memory.
    ///
    /// Errors: those of [`Index::apply`] and [`Index::rebuild`].
    pub fn apply(&self, batch: &mut Batch) -> StoreResult<()> {
        match self.index.apply(batch) {
            Err(error) if !self.index.is_in_memory() && self.index.is_for_want_of_room(&error) => {
                self.index_into_memory(&error)?;
                self.index.apply(batch)
            }
            applied => applied,
        }
    }

    /// Makes the index anew in memory, for `why`; that on disk stays as it is.
    ///
    /// Errors: those of [`Index::rebuild`].
    pub fn index_into_memory(&self, why: &StoreError) -> StoreResult<()> {
        tracing::warn!(
            error = why as &dyn std::error::Error,
            "there is no room for the index: it goes on in memory"
        );
        self.index
            .rebuild_in_memory(&self.journal, Some(end_of_closed(&self.journal)?))
    }
}

/// A journal of at most so many bytes is read in less time than the files of an index are opened
/// in, which take 600 KiB and a dozen inodes: the index of a branch is in memory as long as its
/// journal is that short. There may be many branches.
const SHORT_JOURNAL: u32 = 256 << 10;

/// Whether there need be no index of this store on disk: it is that of a branch, with a short
/// journal.
pub fn may_lack_index(layout: &Layout, journal: &Journal) -> bool {
    layout.is_branch() && is_short(journal)
}

fn is_short(journal: &Journal) -> bool {
    let Address { segment, offset } = journal.position();
    segment == Address::START.segment && offset < SHORT_JOURNAL
}

/// The checkpoints in what can be read of a journal, in order of their numbers.
pub fn checkpoints_of(journal: &Journal) -> Vec<Kept> {
    let mut batch = Batch::new();
    for (at, record) in journal.scan(journal.start(), None).map_while(Result::ok) {
        if is_of_checkpoints(&record) && batch.add(at, &record).is_err() {
            break;
        }
    }
    batch.into_checkpoints()
}

/// The record says something of checkpoints, of what they show no more, or who asked for what the
/// next record says.
pub fn is_of_checkpoints(record: &Record) -> bool {
    matches!(
        record,
        Record::Checkpoint(_)
            | Record::Tags { .. }
            | Record::Deleted { .. }
            | Record::Pinned { .. }
            | Record::Hidden { .. }
            | Record::RestoreBegin { .. }
            | Record::By { .. }
            | Record::Operation(_)
            | Record::Dropped { .. }
    )
}

/// A journal that ends before the place where it ended at the last orderly end has lost what was on
/// disk, however whole its last frame is.
///
/// Errors: `JournalDamaged`.
pub(crate) fn check_end(layout: &Layout, journal: &Journal) -> StoreResult<()> {
    let Address { segment, offset } = journal.position();
    match layout.noted_end() {
        Some((noted, _)) if noted > journal.position() => {
            Err(StoreError::JournalDamaged { segment, offset })
        }
        _ => Ok(()),
    }
}

/// Where the record of the last checkpoint ends. An index holds closed epochs only: the open one is
/// in memory, where its records may be taken back.
fn end_of_closed(journal: &Journal) -> StoreResult<Address> {
    let mut end = journal.start();
    for entry in journal.scan(journal.start(), None) {
        let (at, record) = entry?;
        if matches!(record, Record::Checkpoint(_)) {
            end = at.after(&record)?;
        }
    }
    Ok(end)
}

/// Whether the index that was opened fits the journal: it may be behind, but not ahead, and its
/// last record must be there.
fn doubt_of(index: &Index, journal: &Journal) -> StoreResult<Option<Doubt>> {
    let (last, end) = match index.last_applied() {
        Ok(Some(applied)) => applied,
        Ok(None) => return Ok(None),
        Err(StoreError::IndexDamaged) => return Ok(Some(Doubt::Damaged)),
        Err(error) => return Err(error),
    };
    if end > journal.position() {
        return Ok(Some(Doubt::Ahead));
    }
    let fits = journal
        .read(last)
        .is_ok_and(|record| last.after(&record) == Ok(end));
    Ok(if fits { None } else { Some(Doubt::Unfit) })
}

/// The checkpoints of a store that need not be mounted, in order of their numbers, read from the
/// journal. Takes no lock and writes nothing; of a store in use, checkpoints that are being made
/// may or may not be seen.
///
/// Errors: those of [`Layout::open_existing_readonly`] and of reading the journal.
pub fn read_checkpoints(root: impl AsFd) -> StoreResult<Vec<Kept>> {
    let layout = Layout::open_existing_readonly(root)?;
    let (journal, _) = Journal::open(&layout)?;
    let mut batch = Batch::new();
    for entry in journal.scan(journal.start(), None) {
        let (at, record) = entry?;
        if is_of_checkpoints(&record) {
            batch.add(at, &record)?;
        }
    }
    Ok(batch.into_checkpoints())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
pub(crate) mod tests;
