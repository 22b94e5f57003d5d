//! Opening an index, and making it anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::db::Db;
use super::files::{Home, guarded};
use super::parts::{Parts, begin, fill, filled_in_memory, in_memory, listed};
use super::runs::Runs;
use super::{Index, applied_in, get, keys};
use crate::store::error::{StoreError, StoreResult};
use crate::store::journal::{Address, Journal};
use crate::store::layout::{Layout, StoreId};
use crate::sys::lock::{Mutex, Rank, RwLock};

/// What opening the index found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It is there, and it is of this store.
    Ready,
    /// It is new and empty, for this reason: it is to be rebuilt.
    Rebuild(Doubt),
}

/// Why an index is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// There was none.
    #[error("there was none")]
    Missing,
    /// sled cannot open it.
    #[error("it could not be opened")]
    Unreadable,
    /// An older program made it. It is as good as none, and no damage.
    #[error("it is of an older version")]
    Older,
    /// It is of another store or another version, or does not say.
    #[error("it is not this store's, or of another version")]
    Foreign,
    /// A checksum does not match.
    #[error("it is damaged")]
    Damaged,
    /// It knows records that the journal does not have.
    #[error("it is ahead of the journal")]
    Ahead,
    /// The journal has something else where it says its last record is.
    #[error("it does not fit the journal")]
    Unfit,
    /// The filesystem has no room for it: it is in memory, and that on disk stays as it is.
    #[error("the filesystem has no room for it")]
    NoRoom,
}

impl Index {
    fn new(layout: &Layout, home: Home) -> Index {
        Index {
            home,
            id: layout.id(),
            reserve: Arc::clone(layout.reserve()),
            waits: AtomicBool::new(false),
            applying: Mutex::ranked(Rank::Applying, ()),
            db: RwLock::ranked(Rank::Database, None),
        }
    }

    /// Opens the index of a store. One that cannot be trusted is set aside, and a new one is
    /// opened: in memory, if there is no room for it on disk.
    ///
    /// Errors: `Io`, `Index`, `IndexPanic` if a new one cannot be made either; `ReadOnly`;
    /// `NoIndexPath`.
    pub fn open(layout: &Layout) -> StoreResult<(Index, Opening)> {
        let index = Index::new(layout, Home::of(layout)?);
        let (parts, opening) = match index.open_parts(false)? {
            Ok(parts) => {
                if let Err(error) = index.home.delete_asides() {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "an old index cannot be deleted"
                    );
                }
                (parts, Opening::Ready)
            }
            Err(Doubt::NoRoom) => (in_memory(index.id)?, Opening::Rebuild(Doubt::NoRoom)),
            Err(doubt) => (index.fresh()?, Opening::Rebuild(doubt)),
        };
        *index.db.write() = Some(parts);
        Ok((index, opening))
    }

    /// Opens the index of a store that nobody serves, to check it; why it cannot be used, if so.
    /// Nothing is set aside. (sled itself may mend its files.)
    ///
    /// Errors: `Io`, `NoIndexPath`.
    pub fn open_to_check(layout: &Layout) -> StoreResult<Result<Index, Doubt>> {
        let index = Index::new(layout, Home::to_check(layout)?);
        Ok(index.open_parts(true)?.map(|parts| {
            *index.db.write() = Some(parts);
            index
        }))
    }

    /// Opens what is on disk; `looked`: only to be looked at.
    fn open_parts(&self, looked: bool) -> StoreResult<Result<Parts, Doubt>> {
        if !self.home.exists()? {
            return Ok(Err(Doubt::Missing));
        }
        let (doubt, error) = match self.open_trusted(looked) {
            Ok(opened) => return Ok(opened),
            Err(StoreError::IndexDamaged) => return Ok(Err(Doubt::Damaged)),
            Err(error) if self.is_for_want_of_room(&error) => (Doubt::NoRoom, error),
            Err(error) => (Doubt::Unreadable, error),
        };
        if !looked {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the index cannot be opened: {doubt}"
            );
        }
        Ok(Err(doubt))
    }

    fn open_trusted(&self, looked: bool) -> StoreResult<Result<Parts, Doubt>> {
        let db = self.home.open()?;
        let opened = verify(&db, self.id).and_then(|doubt| match doubt {
            Some(doubt) => Ok(Err(doubt)),
            None => {
                let (lines, struck) = guarded("list", || listed(&db))?;
                Ok(Ok(Runs::open(self.home.runs()?, &lines, struck, looked)?))
            }
        });
        match opened {
            Ok(Ok(runs)) => Ok(Ok(Parts { db, runs })),
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

    /// It failed because the filesystem is full; sled does not always tell why.
    pub(in crate::store) fn is_for_want_of_room(&self, error: &StoreError) -> bool {
        error.errno().is_no_room() || self.reserve.is_full()
    }

    /// Sets aside what is on disk, and makes a new one; in memory, if there is no room.
    fn fresh(&self) -> StoreResult<Parts> {
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

    /// Sets the index aside and makes it anew from the journal, up to `end` or all of it. Readers
    /// wait meanwhile. One in memory, and one for which there is no room on disk, is made in
    /// memory.
    ///
    /// Errors: what reading the journal gives (`JournalDamaged` ...), after which the index is
    /// closed (`IndexClosed`) until a rebuild succeeds.
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

    /// As [`Index::rebuild`], of an index that [`Index::open`] has just made: nothing is set aside.
    ///
    /// Errors: those of [`Index::rebuild`].
    pub fn fill(&self, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
        self.replace(|made| self.filled(made.ok_or(StoreError::IndexClosed)?, journal, end))
    }

    /// Makes the index anew in memory, as [`Index::rebuild`] does, and leaves what is on disk as it
    /// is.
    pub fn rebuild_in_memory(&self, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
        self.replace(|old| {
            old.into_iter().for_each(|parts| close(parts.db));
            filled_in_memory(self.id, journal, end)
        })
    }

    /// Makes another of what is open. Readers wait meanwhile; if it fails the index is closed.
    fn replace(&self, make: impl FnOnce(Option<Parts>) -> StoreResult<Parts>) -> StoreResult<()> {
        let _applying = self.applying.lock();
        let mut slot = self.db.write();
        let old = slot.take();
        *slot = Some(make(old)?);
        Ok(())
    }

    /// Applies the journal to a new index; to one in memory, if there is no room for it on disk.
    fn filled(&self, parts: Parts, journal: &Journal, end: Option<Address>) -> StoreResult<Parts> {
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

/// As [`Index::open`]; where there is none on disk, it is in memory until [`onto_disk`].
///
/// Errors: as [`Index::open`].
pub fn open_waiting(layout: &Layout) -> StoreResult<(Index, Opening)> {
    let index = Index::new(layout, Home::of(layout)?);
    if index.home.exists()? {
        return Index::open(layout);
    }
    *index.db.write() = Some(in_memory(index.id)?);
    index.waits.store(true, Ordering::SeqCst);
    Ok((index, Opening::Rebuild(Doubt::Missing)))
}

/// Makes one that waits in memory anew on disk, from the journal up to `end` or all of it.
///
/// Errors: those of [`Index::rebuild`].
pub fn onto_disk(index: &Index, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
    index.replace(|old| {
        index.waits.store(false, Ordering::SeqCst);
        old.into_iter().for_each(|parts| close(parts.db));
        index.filled(index.fresh()?, journal, end)
    })
}

/// Whose index it is, as it stands in it.
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

fn verify(db: &Db, id: StoreId) -> StoreResult<Option<Doubt>> {
    guarded("open", || match get(db, keys::META_STORE)? {
        Some(found) if found == identity(id) => applied_in(db).map(|_| None),
        Some(found) if is_older(&found, id) => Ok(Some(Doubt::Older)),
        _ => Ok(Some(Doubt::Foreign)),
    })
}

/// sled flushes when it is dropped, and panics if that fails.
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
