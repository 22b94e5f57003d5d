//! Making an index smaller after a deletion.

use std::time::Duration;

use super::parts::{Parts, put_merged};
use super::runs::needs::Needs;
use super::{Batch, Index, close, held, keys};
use crate::store::error::{StoreError, StoreResult};
use crate::store::forget::Forgotten;
use crate::sys;

/// sled's files take some three times what is in them; with more than so many times that, and so
/// many bytes, they are written anew.
const SHRINK_FACTOR: u64 = 4;
pub(super) const SHRINK_BYTES: u64 = 512 << 10;
/// How long is waited for the place of the database, and how long it is left to readers then.
const SWAP_WAIT: Duration = Duration::from_millis(1);
const SWAP_PAUSE: Duration = Duration::from_millis(20);
/// Keys that are. sled keeps everybody from its tree meanwhile, and this thread is the last to run.
const KEYS_AT_ONCE: usize = 64;

impl Index {
    /// Leaves out of the runs what `needs` says, if that is a twentieth of what they hold or more;
    /// whether it did. It takes its time: for a helper thread. It is durable on return.
    ///
    /// Errors: as [`Index::merge`].
    pub fn compact(&self, needs: &Needs<'_>, stop: &dyn Fn() -> bool) -> StoreResult<bool> {
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

    /// It has more checkpoints than are kept, by a twentieth of them or more.
    ///
    /// Errors: `Io`, `Index`.
    pub fn has_forgettable(&self, needs: &Needs<'_>) -> StoreResult<bool> {
        let known = self.with("count", |db| Ok(db.scan_prefix([keys::CHECKPOINT]).count()))?;
        Ok(known > needs.kept.len() + needs.kept.len() / 20 + 1)
    }

    /// Takes out what nobody can ask for any more. It is durable on return.
    ///
    /// Errors: as [`Index::apply`].
    pub fn forget(&self, forgotten: &Forgotten) -> StoreResult<()> {
        for some in keys::of_forgotten(forgotten).chunks(KEYS_AT_ONCE) {
            self.apply(&mut Batch::removing(some.iter().cloned()))?;
        }
        self.flush_durable()
    }

    /// Writes the database anew if its files are much larger than what it holds: sled gives nothing
    /// back. Readers go on in the old one until the new one is open. It takes its time: for a
    /// helper thread. It is durable on return.
    ///
    /// Errors: `Io`, `Index`, `IndexPanic`. If the place cannot be taken the index is closed
    /// (`IndexClosed`), and the next opening makes it anew.
    pub fn shrink(&self) -> StoreResult<()> {
        let _applying = self.applying.lock();
        let copied = self.with("copy", |db| {
            let Some(disk) = db.disk() else {
                return Ok(None);
            };
            let is_wasteful = disk.size_on_disk()?
                > SHRINK_BYTES.saturating_add(held(disk)?.saturating_mul(SHRINK_FACTOR));
            // sled has its file open, and looks for blobs by path: with some, what is renamed
            // cannot be read.
            if !is_wasteful || self.home.has_blobs()? {
                return Ok(None);
            }
            // It closes sooner then.
            disk.flush()?;
            self.home.copy(disk).map(Some)
        });
        if self.if_there_is_room(copied)?.is_none() {
            return Ok(());
        }
        let new = self.home.replace().and_then(|()| self.home.open());
        // Who waits to write keeps those away that come to read, and somebody may be reading for
        // long.
        let mut slot = loop {
            match sys::awake(|| self.db.try_write_for(SWAP_WAIT)) {
                Some(slot) => break slot,
                None => std::thread::sleep(SWAP_PAUSE),
            }
        };
        let Parts { db: old, runs } = slot.take().ok_or(StoreError::IndexClosed)?;
        let swapped = new.map(|db| *slot = Some(Parts { db, runs }));
        drop(slot);
        close(old);
        swapped?;
        self.home.sync()?;
        self.home.delete_asides()
    }
}
