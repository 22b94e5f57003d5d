//! Opening and rebuilding an index.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::db::Db;
use super::files::{IndexDir, guarded};
use super::parts::{IndexParts, begin, fill, filled_in_memory, in_memory, listed};
use super::runs::Runs;
use super::{Index, applied_in, get, keys};
use crate::error::{StoreError, StoreResult};
use crate::journal::{Address, Journal};
use crate::layout::{Layout, StoreId};
use ckptfs_sys::lock::{Mutex, Rank, RwLock};

/// Result of opening the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexOpening {
    /// The index exists and belongs to this store.
    Ready,
    /// The index is new and empty, for this reason, and must be rebuilt.
    Rebuild(RebuildReason),
}

/// The reason why an index is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RebuildReason {
    /// No index exists.
    #[error("there was none")]
    Missing,
    /// sled cannot open it.
    #[error("it could not be opened")]
    Unreadable,
    /// An older version wrote it: equivalent to a missing one, and no damage.
    #[error("it is of an older version")]
    Older,
    /// It belongs to another store or version, or has no identity.
    #[error("it is not this store's, or of another version")]
    Foreign,
    /// A checksum does not match.
    #[error("it is damaged")]
    Damaged,
    /// It contains records that the journal lacks.
    #[error("it is ahead of the journal")]
    Ahead,
    /// The journal has a different record at the address of the index's last one.
    #[error("it does not fit the journal")]
    Unfit,
    /// The filesystem has no space for it: it is in memory, and the one on disk stays unchanged.
    #[error("the filesystem has no room for it")]
    NoRoom,
}

impl Index {
    fn new(layout: &Layout, home: IndexDir) -> Index {
        Index {
            home,
            id: layout.id(),
            reserve: Arc::clone(layout.reserve()),
            waits: AtomicBool::new(false),
            applying: Mutex::ranked(Rank::Applying, ()),
            db: RwLock::ranked(Rank::Database, None),
        }
    }

    /// Opens the index of a store. An index that cannot be trusted is set aside and a new one is
    /// opened, in memory if the disk has no space.
    ///
    /// Errors: `Io`, `Index`, `IndexPanic` if a new one cannot be created; `ReadOnly`;
    /// `NoIndexPath`.
    pub fn open(layout: &Layout) -> StoreResult<(Index, IndexOpening)> {
        let index = Index::new(layout, IndexDir::of(layout)?);
        let (parts, opening) = match index.open_parts(false)? {
            Ok(parts) => {
                if let Err(error) = index.home.delete_asides() {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "an old index cannot be deleted"
                    );
                }
                (parts, IndexOpening::Ready)
            }
            Err(RebuildReason::NoRoom) => (
                in_memory(index.id)?,
                IndexOpening::Rebuild(RebuildReason::NoRoom),
            ),
            Err(doubt) => (index.fresh()?, IndexOpening::Rebuild(doubt)),
        };
        *index.db.write() = Some(parts);
        Ok((index, opening))
    }

    /// Opens the index of an unmounted store for a check, or returns why it cannot be used. Sets
    /// nothing aside, although sled itself may repair its files.
    ///
    /// Errors: `Io`, `NoIndexPath`.
    pub fn open_to_check(layout: &Layout) -> StoreResult<Result<Index, RebuildReason>> {
        let index = Index::new(layout, IndexDir::to_check(layout)?);
        Ok(index.open_parts(true)?.map(|parts| {
            *index.db.write() = Some(parts);
            index
        }))
    }

    /// Opens the index on disk; `looked`: only for reading.
    fn open_parts(&self, looked: bool) -> StoreResult<Result<IndexParts, RebuildReason>> {
        if !self.home.exists()? {
            return Ok(Err(RebuildReason::Missing));
        }
        let (doubt, error) = match self.open_trusted(looked) {
            Ok(opened) => return Ok(opened),
            Err(StoreError::IndexDamaged) => return Ok(Err(RebuildReason::Damaged)),
            Err(error) if self.is_for_want_of_room(&error) => (RebuildReason::NoRoom, error),
            Err(error) => (RebuildReason::Unreadable, error),
        };
        if !looked {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the index cannot be opened: {doubt}"
            );
        }
        Ok(Err(doubt))
    }

    fn open_trusted(&self, looked: bool) -> StoreResult<Result<IndexParts, RebuildReason>> {
        let db = self.home.open()?;
        let opened = verify(&db, self.id).and_then(|doubt| match doubt {
            Some(doubt) => Ok(Err(doubt)),
            None => {
                let (lines, struck) = guarded("list", || listed(&db))?;
                Ok(Ok(Runs::open(self.home.runs()?, &lines, struck, looked)?))
            }
        });
        match opened {
            Ok(Ok(runs)) => Ok(Ok(IndexParts { db, runs })),
            Ok(Err(doubt)) => {
                close(db);
                Ok(Err(doubt))
            }
            Err(error) => {
                close(db);
                Err(error)
            }
        }
    }

    /// Returns whether a call failed because the filesystem is full; sled does not always report
    /// the cause.
    pub(crate) fn is_for_want_of_room(&self, error: &StoreError) -> bool {
        error.errno().is_no_room() || self.reserve.is_full()
    }

    /// Sets the index on disk aside and creates a new one, in memory if the disk has no space.
    fn fresh(&self) -> StoreResult<IndexParts> {
        let made = self
            .home
            .set_aside()
            .and_then(|()| begin(&self.home, self.id));
        match made {
            Err(error) if self.is_for_want_of_room(&error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "there is no room for an index: it is in memory"
                );
                self.home.discard();
                in_memory(self.id)
            }
            made => made,
        }
    }

    /// Sets the index aside and rebuilds it from the journal, up to `end` or completely. Readers
    /// wait. An index in memory, or one without space on disk, is rebuilt in memory.
    ///
    /// Errors: those of reading the journal (`JournalDamaged` ...); the index is then closed
    /// (`IndexClosed`) until a rebuild succeeds.
    pub fn rebuild(&self, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
        self.replace(|old| {
            let on_disk = old.as_ref().is_none_or(|parts| parts.db.disk().is_some());
            old.into_iter().for_each(|parts| close(parts.db));
            let parts = if on_disk {
                self.fresh()?
            } else {
                in_memory(self.id)?
            };
            self.filled(parts, journal, end)
        })
    }

    /// As [`Index::rebuild`], for an index just created by [`Index::open`]; sets nothing aside.
    ///
    /// Errors: those of [`Index::rebuild`].
    pub fn fill(&self, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
        self.replace(|made| self.filled(made.ok_or(StoreError::IndexClosed)?, journal, end))
    }

    /// As [`Index::rebuild`], but in memory. The index on disk stays unchanged.
    pub fn rebuild_in_memory(&self, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
        self.replace(|old| {
            old.into_iter().for_each(|parts| close(parts.db));
            filled_in_memory(self.id, journal, end)
        })
    }

    /// Replaces the open index. Readers wait; on failure the index is closed.
    fn replace(
        &self,
        make: impl FnOnce(Option<IndexParts>) -> StoreResult<IndexParts>,
    ) -> StoreResult<()> {
        let _applying = self.applying.lock();
        let mut slot = self.db.write();
        let old = slot.take();
        *slot = Some(make(old)?);
        Ok(())
    }

    /// Applies the journal to a new index, or to one in memory if the disk has no space.
    fn filled(
        &self,
        parts: IndexParts,
        journal: &Journal,
        end: Option<Address>,
    ) -> StoreResult<IndexParts> {
        match fill(&parts, journal, end) {
            Err(error) if parts.db.disk().is_some() && self.is_for_want_of_room(&error) => {
                close(parts.db);
                self.home.discard();
                filled_in_memory(self.id, journal, end)
            }
            filled => filled.map(|()| parts),
        }
    }
}

/// As [`Index::open`]; without an index on disk, it is in memory until [`onto_disk`].
///
/// Errors: as [`Index::open`].
pub fn open_waiting(layout: &Layout) -> StoreResult<(Index, IndexOpening)> {
    let index = Index::new(layout, IndexDir::of(layout)?);
    if index.home.exists()? {
        return Index::open(layout);
    }
    *index.db.write() = Some(in_memory(index.id)?);
    index.waits.store(true, Ordering::SeqCst);
    Ok((index, IndexOpening::Rebuild(RebuildReason::Missing)))
}

/// Rebuilds a small index that is in memory on disk, from the journal up to `end` or completely.
///
/// Errors: those of [`Index::rebuild`].
pub fn onto_disk(index: &Index, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
    index.replace(|old| {
        index.waits.store(false, Ordering::SeqCst);
        old.into_iter().for_each(|parts| close(parts.db));
        index.filled(index.fresh()?, journal, end)
    })
}

/// Returns the stored identity: version and store id.
pub(super) fn identity(id: StoreId) -> Vec<u8> {
    let mut value = keys::VERSION.to_le_bytes().to_vec();
    value.extend_from_slice(&id.0);
    value
}

fn is_older(identity: &[u8], id: StoreId) -> bool {
    identity
        .split_first_chunk()
        .is_some_and(|(version, of)| u32::from_le_bytes(*version) < keys::VERSION && of == id.0)
}

fn verify(db: &Db, id: StoreId) -> StoreResult<Option<RebuildReason>> {
    guarded("open", || match get(db, keys::META_STORE)? {
        Some(found) if found == identity(id) => applied_in(db).map(|_| None),
        Some(found) if is_older(&found, id) => Ok(Some(RebuildReason::Older)),
        _ => Ok(Some(RebuildReason::Foreign)),
    })
}

/// Closes the database. sled flushes on drop, and panics if that fails.
pub(super) fn close(db: Db) {
    let closed = guarded("close", || {
        drop(db);
        Ok(())
    });
    if let Err(error) = closed {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the index did not close well"
        );
    }
}
