//! Making an index smaller after a deletion.

use super::parts::{Parts, put_merged};
use super::runs::needs::Needs;
use super::{Index, close, held, keys};
use crate::store::error::{StoreError, StoreResult};
use crate::store::ids::Slot;

/// sled's files take some three times what is in them; with more than so many times that, and so many bytes, they are written anew.
const SHRINK_FACTOR: u64 = 8;
pub(super) const SHRINK_BYTES: u64 = 4 << 20;

impl Index {
    /// Leaves out of the runs what `needs` says, if that is a twentieth of what they hold or more; whether it did. It takes its time: for a helper thread. It
    /// is durable on return.
    ///
    /// Errors: as [`Index::merge`].
    pub fn compact(&self, needs: &Needs<'_>, stop: &dyn Fn() -> bool) -> StoreResult<bool> {
        let end = self.applied()?;
        let made = self.with_parts("compact", |parts| {
            let owner = |entry: sled::Result<_>| -> sled::Result<Option<Slot>> {
                let (key, _): (sled::IVec, sled::IVec) = entry?;
                Ok(key.get(1..).and_then(keys::owner))
            };
            let ahead = parts.db.scan_prefix(keys::ahead_prefix()).filter_map(|entry| owner(entry).transpose());
            parts.runs.compact(needs, end, &ahead.collect::<Result<Vec<_>, _>>()?, stop)
        });
        let Some(merge) = self.if_there_is_room(made)? else { return Ok(false) };
        let applying = self.applying.lock();
        self.with_parts("list", |parts| put_merged(parts, merge))?;
        drop(applying);
        self.flush_durable()?;
        Ok(true)
    }

    /// Writes the database anew if its files are much larger than what it holds: sled gives nothing back. Readers wait while one takes the place of the
    /// other. It takes its time: for a helper thread. It is durable on return.
    ///
    /// Errors: `Io`, `Index`, `IndexPanic`. If the place cannot be taken the index is closed (`IndexClosed`), and the next opening makes it anew.
    pub fn shrink(&self) -> StoreResult<()> {
        let _applying = self.applying.lock();
        let copied = self.with("copy", |db| {
            let Some(disk) = db.disk() else { return Ok(None) };
            let is_wasteful = disk.size_on_disk()? > SHRINK_BYTES.saturating_add(held(disk)?.saturating_mul(SHRINK_FACTOR));
            if is_wasteful { self.home.copy(disk).map(Some) } else { Ok(None) }
        });
        if self.if_there_is_room(copied)?.is_none() {
            return Ok(());
        }
        let mut slot = self.db.write();
        let Parts { db, runs } = slot.take().ok_or(StoreError::IndexClosed)?;
        close(db);
        self.home.replace()?;
        *slot = Some(Parts { db: self.home.open()?, runs });
        drop(slot);
        self.home.sync()?;
        self.home.delete_asides()
    }
}
