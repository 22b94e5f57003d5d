//! Compaction of the index after a deletion.

use std::time::Duration;

use super::parts::{IndexParts, put_merged};
use super::runs::needs::RetentionNeeds;
use super::{Batch, Index, close, held, keys};
use crate::error::{StoreError, StoreResult};
use crate::expiry::ExpiredItems;
use ckptfs_sys as sys;

/// The database is rewritten when its files exceed this multiple of its contents by
/// [`SHRINK_BYTES`]. sled's files usually take three times the contents.
const SHRINK_FACTOR: u64 = 4;
pub(super) const SHRINK_BYTES: u64 = 512 << 10;
/// Time to wait for the write lock on the database, and the pause for readers after a failed
/// attempt.
const SWAP_WAIT: Duration = Duration::from_millis(1);
const SWAP_PAUSE: Duration = Duration::from_millis(20);
/// Keys removed in one batch. sled blocks access to its tree during a batch, and this thread runs
/// at idle priority.
const KEYS_AT_ONCE: usize = 64;

impl Index {
    /// Rewrites the runs without the records that `needs` excludes, if that frees over a twentieth
    /// of their epochs. Returns whether it did. Slow: for a helper thread. Durable on return.
    ///
    /// Errors: as [`Index::merge`].
    pub fn compact(
        &self,
        needs: &RetentionNeeds<'_>,
        stop: &dyn Fn() -> bool,
    ) -> StoreResult<bool> {
        let end = self.applied()?;
        let made = self.with_parts("compact", |parts| parts.runs.compact(needs, end, stop));
        let Some(merge) = self.if_there_is_room(made)? else {
            return Ok(false);
        };
        let applying = self.applying.lock();
        self.with_parts("list", |parts| put_merged(parts, merge))?;
        drop(applying);
        self.flush_durable()?;
        Ok(true)
    }

    /// Returns whether the index lists over a twentieth more checkpoints than are kept.
    ///
    /// Errors: `Io`, `Index`.
    pub fn has_forgettable(&self, needs: &RetentionNeeds<'_>) -> StoreResult<bool> {
        let known = self.with("count", |db| Ok(db.scan_prefix([keys::CHECKPOINT]).count()))?;
        Ok(known > needs.kept.len() + needs.kept.len() / 20 + 1)
    }

    /// Removes entries that no request can reach any more. Durable on return.
    ///
    /// Errors: as [`Index::apply`].
    pub fn forget(&self, forgotten: &ExpiredItems) -> StoreResult<()> {
        for some in keys::of_forgotten(forgotten).chunks(KEYS_AT_ONCE) {
            self.apply(&mut Batch::removing(some.iter().cloned()))?;
        }
        self.flush_durable()
    }

    /// Rewrites the database if its files are much larger than its contents, because sled never
    /// returns space. Readers use the old database until the new one is open. Slow: for a helper
    /// thread. Durable on return.
    ///
    /// Errors: `Io`, `Index`, `IndexPanic`. If the new database cannot be renamed or opened, the
    /// index is closed (`IndexClosed`), and the next opening rebuilds it.
    pub fn shrink(&self) -> StoreResult<()> {
        let _applying = self.applying.lock();
        let copied = self.with("copy", |db| {
            let Some(disk) = db.disk() else {
                return Ok(None);
            };
            let is_wasteful = disk.size_on_disk()?
                > SHRINK_BYTES.saturating_add(held(disk)?.saturating_mul(SHRINK_FACTOR));
            // sled opens blobs by path, so existing ones would be unreadable after the rename.
            if !is_wasteful || self.home.has_blobs()? {
                return Ok(None);
            }
            // Makes closing faster.
            disk.flush()?;
            self.home.copy(disk).map(Some)
        });
        if self.if_there_is_room(copied)?.is_none() {
            return Ok(());
        }
        let new = self.home.replace().and_then(|()| self.home.open());
        // A waiting writer blocks new readers, and a current reader may take long.
        let mut slot = loop {
            match sys::awake(|| self.db.try_write_for(SWAP_WAIT)) {
                Some(slot) => break slot,
                None => std::thread::sleep(SWAP_PAUSE),
            }
        };
        let IndexParts { db: old, runs } = slot.take().ok_or(StoreError::IndexClosed)?;
        let swapped = new.map(|db| *slot = Some(IndexParts { db, runs }));
        drop(slot);
        close(old);
        swapped?;
        self.home.sync()?;
        self.home.delete_asides()
    }
}
