//! The contents of `.ckptfs/`: the journal, the layers, and the index over them.
//!
//! The journal is the source of truth about the past, the layers have the data of old versions, and
//! the index locates records in the journal and can be rebuilt from it. This module knows the
//! encoding of records and their verification, not their meaning: callers decide which record is
//! written when.
//!
//! Invariants: one process writes a store at a time (`layout`); nothing is opened by a path below
//! the mount (`at`); bytes from the disk are verified before use, and bad ones are errors, never
//! panics. `docs/format.md` has the complete format.
//!
//! Locking: each module documents its locks. None is held while another part is called, except that
//! [`Index::rebuild`] reads the journal under the index's lock.

mod at;
pub mod baseline;
pub mod blocks;
pub mod check;
pub mod dedup;
pub mod error;
pub mod expiry;
pub mod extents;
pub mod hash;
pub mod ids;
pub mod index;
pub mod journal;
pub mod layers;
pub mod layout;
pub mod lineage;
mod link;
pub mod operation;
mod ordered_file;
mod packing;
pub mod record;
pub mod reserve;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::error::{StoreError, StoreResult, UntrustedReason};
pub use self::expiry::ExpiredItems;
pub use self::index::{Batch, RetentionNeeds};
use self::index::{Index, RebuildReason};
pub use self::journal::Address;
use self::journal::Journal;
use self::layers::Layers;
use self::layout::Layout;
use self::record::{CheckpointState, Record};
use self::reserve::Reserve;

/// An open store. Shared by reference between threads; dropping it releases its lock.
#[derive(Debug)]
pub struct Store {
    // Dropped in this order: the lock in `layout` last.
    /// Locates records in the journal.
    pub index: Index,
    /// The data of old versions.
    pub layers: Layers,
    /// Space and inodes for a full filesystem.
    pub reserve: Arc<Reserve>,
    /// All changes to the past.
    pub journal: Journal,
    /// Number of the last frame with a deletion of a checkpoint since the store was opened.
    deleted: AtomicU64,
    /// The directory of the store.
    pub layout: Layout,
}

/// Result of opening a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The store was created.
    pub created: bool,
    /// The end of the journal was torn, as after a power cut, and was repaired.
    pub torn: bool,
    /// The index was rebuilt from the journal, for this reason.
    pub rebuilt: Option<RebuildReason>,
}

impl Store {
    /// Opens and locks the store of a directory; with `create`, creates it if missing. Repairs the
    /// end of the journal after a power cut, and rebuilds an index that cannot be trusted. Records
    /// after [`Index::applied`] are not applied: the caller loads them into memory.
    ///
    /// `root` is the backing directory itself, opened before anything was mounted over it.
    ///
    /// Errors: those of [`Layout::open`], [`Journal::open`], [`Index::open`], [`Index::rebuild`].
    pub fn open(root: impl AsFd, create: bool) -> StoreResult<(Store, Opened)> {
        Store::open_with(root, create, None)
    }

    /// As [`Store::open`], with a directory for the index on a system without `/proc/self/fd`: see
    /// [`Layout::with_index_home`].
    pub fn open_with(
        root: impl AsFd,
        create: bool,
        index_home: Option<PathBuf>,
    ) -> StoreResult<(Store, Opened)> {
        Store::open_in(Layout::open(root, create)?.with_index_home(index_home))
    }

    /// As [`Store::open`], for the store of a branch, which is created if missing. `reserve` is
    /// that of its parent, which refills it.
    pub fn open_branch(root: impl AsFd, reserve: Arc<Reserve>) -> StoreResult<(Store, Opened)> {
        Store::open_in(Layout::open_with_reserve(root, true, Some(reserve))?)
    }

    fn open_in(layout: Layout) -> StoreResult<(Store, Opened)> {
        // The journal exists before any object does. Without this check a store that lost its
        // journal would start an empty history.
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
            // An empty journal needs no index.
            index::IndexOpening::Rebuild(RebuildReason::Missing)
                if found.end == journal.start() =>
            {
                None
            }
            index::IndexOpening::Rebuild(doubt) => Some(doubt),
            index::IndexOpening::Ready => doubt_of(&index, &journal)?,
        };
        if let Some(doubt) = rebuilt {
            if index.is_waiting() {
                tracing::debug!("the index is made in memory");
            } else {
                tracing::info!(reason = %doubt, "the index is made anew");
            }
            let end = Some(end_of_closed(&journal)?);
            if opening == index::IndexOpening::Ready {
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

    /// Moves the index of a branch to disk once it is large enough. The thread that applies batches
    /// calls this first.
    ///
    /// Errors: those of [`Index::rebuild`].
    pub fn index_where_due(&self) -> StoreResult<()> {
        if self.index.is_waiting() && !is_short(&self.journal) {
            let end = Some(end_of_closed(&self.journal)?);
            index::onto_disk(&self.index, &self.journal, end)?;
        }
        Ok(())
    }

    /// Sets the index aside and rebuilds it from the journal, as opening does with one that cannot
    /// be trusted.
    ///
    /// Errors: those of [`Index::rebuild`].
    pub fn rebuild_index(&self) -> StoreResult<()> {
        self.index
            .rebuild(&self.journal, Some(end_of_closed(&self.journal)?))
    }

    /// As [`Journal::append`], with space from the reserve if necessary.
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

    /// Returns whether all deletions of checkpoints are on disk and no deleted one reappears after
    /// a power cut.
    pub fn has_synced_deletions(&self) -> bool {
        self.journal.is_on_disk(self.deleted.load(Ordering::SeqCst))
    }

    /// As [`Index::apply`]; without space on the filesystem the index continues in memory.
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

    /// Rebuilds the index in memory because of the error `why`. The index on disk stays unchanged.
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

/// Reading a journal of up to this size is faster than opening the files of an index, which take
/// 600 KiB and a dozen inodes. Because many branches may exist, the index of one with so short a
/// journal is in memory.
const SHORT_JOURNAL: u32 = 256 << 10;

/// Returns whether this store needs no index on disk: it belongs to a branch and has a short
/// journal.
pub fn may_lack_index(layout: &Layout, journal: &Journal) -> bool {
    layout.is_branch() && is_short(journal)
}

fn is_short(journal: &Journal) -> bool {
    let Address { segment, offset } = journal.position();
    segment == Address::START.segment && offset < SHORT_JOURNAL
}

/// Returns the checkpoints in the readable part of a journal, in order of their ids.
pub fn checkpoints_of(journal: &Journal) -> Vec<CheckpointState> {
    let mut batch = Batch::new();
    for (at, record) in journal.scan(journal.start(), None).map_while(Result::ok) {
        if is_of_checkpoints(&record) && batch.add(at, &record).is_err() {
            break;
        }
    }
    batch.into_checkpoints()
}

/// Returns whether the record is about checkpoints, versions dropped from them, or the actor of the
/// next record.
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

/// Checks that the journal reaches the end noted at the last orderly shutdown. A shorter one has
/// lost durable data, even if its last frame is intact.
///
/// Errors: `JournalDamaged`.
pub fn check_end(layout: &Layout, journal: &Journal) -> StoreResult<()> {
    let Address { segment, offset } = journal.position();
    match layout.noted_end() {
        Some((noted, _)) if noted > journal.position() => {
            Err(StoreError::JournalDamaged { segment, offset })
        }
        _ => Ok(()),
    }
}

/// Returns the end of the last checkpoint's record. An index contains only closed epochs: the open
/// one is in memory, where its records may be voided.
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

/// Checks the opened index against the journal: it may lag behind but not be ahead, and its last
/// record must exist.
fn doubt_of(index: &Index, journal: &Journal) -> StoreResult<Option<RebuildReason>> {
    let (last, end) = match index.last_applied() {
        Ok(Some(applied)) => applied,
        Ok(None) => return Ok(None),
        Err(StoreError::IndexDamaged) => return Ok(Some(RebuildReason::Damaged)),
        Err(error) => return Err(error),
    };
    if end > journal.position() {
        return Ok(Some(RebuildReason::Ahead));
    }
    let fits = journal
        .read(last)
        .is_ok_and(|record| last.after(&record) == Ok(end));
    Ok(if fits {
        None
    } else {
        Some(RebuildReason::Unfit)
    })
}

/// Returns the checkpoints of a store, mounted or not, in order of their ids, read from the
/// journal. Takes no lock and writes nothing; of a store in use, the newest checkpoints may be
/// missing.
///
/// Errors: those of [`Layout::open_existing_readonly`] and of reading the journal.
pub fn read_checkpoints(root: impl AsFd) -> StoreResult<Vec<CheckpointState>> {
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
