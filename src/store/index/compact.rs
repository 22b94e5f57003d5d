//! Making an index smaller after a deletion.

use std::collections::{HashMap, HashSet};

use super::parts::{Parts, put_merged};
use super::runs::needs::Needs;
use super::{Batch, Index, close, held, keys};
use crate::store::error::{StoreError, StoreResult};
use crate::store::ids::Slot;
use crate::store::journal::codec;

/// sled's files take some three times what is in them; with more than so many times that, and so many bytes, they are written anew.
const SHRINK_FACTOR: u64 = 8;
pub(super) const SHRINK_BYTES: u64 = 4 << 20;
/// Places that are forgotten in one batch: others wait for it.
const FORGOTTEN_AT_ONCE: usize = 1024;

impl Index {
    /// Leaves out of the runs what `needs` says, if that is a twentieth of what they hold or more, and forgets where inodes are of which nothing is left;
    /// whether it did. It takes its time: for a helper thread. It is durable on return.
    ///
    /// Errors: as [`Index::merge`].
    pub fn compact(&self, needs: &Needs<'_>, stop: &dyn Fn() -> bool) -> StoreResult<bool> {
        let end = self.applied()?;
        let made = self.with_parts("compact", |parts| parts.runs.compact(needs, end, stop));
        let Some(merge) = self.if_there_is_room(made)? else { return Ok(false) };
        let applying = self.applying.lock();
        self.with_parts("list", |parts| put_merged(parts, merge))?;
        drop(applying);
        self.forget_places(stop)?;
        self.flush_durable()?;
        Ok(true)
    }

    /// Forgets where inodes are without a record, and that no other's place leads to. Whoever records something of one again says where it is.
    fn forget_places(&self, stop: &dyn Fn() -> bool) -> StoreResult<()> {
        let mut needed = HashSet::new();
        let mut places: HashMap<Slot, Slot> = HashMap::new();
        self.with_parts("list", |parts| {
            parts.runs.each_below(&[], |key, _, value| {
                needed.extend(keys::owner(key));
                needed.extend(keys::entry_child(key, value).map_err(|_| StoreError::IndexDamaged)?);
                Ok(())
            })?;
            for entry in parts.db.scan_prefix(keys::ahead_prefix()) {
                needed.extend(keys::owner(entry?.0.get(1..).unwrap_or_default()));
            }
            for entry in parts.db.scan_prefix(keys::places_prefix()) {
                let (key, value) = entry?;
                let place = keys::unseal(&key, &value).and_then(|value| codec::decode_place(value).ok()).ok_or(StoreError::IndexDamaged)?;
                places.insert(keys::place_slot(&key).ok_or(StoreError::IndexDamaged)?, place.parent);
            }
            Ok(())
        })?;
        let mut open: Vec<Slot> = needed.iter().copied().collect();
        while let Some(slot) = open.pop() {
            open.extend(places.get(&slot).filter(|up| needed.insert(**up)));
        }
        let gone: Vec<Slot> = places.into_keys().filter(|slot| !needed.contains(slot)).collect();
        for some in gone.chunks(FORGOTTEN_AT_ONCE) {
            if stop() {
                break;
            }
            self.apply(&mut Batch::forget_places(some))?;
        }
        Ok(())
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
