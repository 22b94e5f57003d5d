//! The index: the undo records by key, and where in the journal everything else is.
//!
//! It is a cache and nothing more. All of it follows from the journal, and [`Index::rebuild`] makes
//! it so. It may be behind the journal ([`Index::applied`] says how far it is); it may never be
//! ahead of it, and what it says is never believed unchecked.
//!
//! Invariants:
//! - a batch goes in whole or not at all, and with it the place up to which the journal is applied;
//! - each value ends in a checksum over its key and itself: sled serves flipped bits as they are.
//!   One that does not match fails with `IndexDamaged`, and the caller rebuilds;
//! - sled is called under `catch_unwind` only, with `flush_every_ms(None)`; nothing is durable but
//!   by [`Index::flush_durable`], and nothing depends on it;
//! - a bad index is renamed, never repaired; what was set aside is deleted once an index was opened
//!   without doubt;
//! - where the filesystem has no room for it, it is in memory for as long as the store is open.
//!   What is on disk is no worse for that: it stays as it is.
//!
//! Locking: `db` is read-locked for each call and write-locked while the database is replaced.
//! Batches are applied by one thread at a time (`applying`, taken before `db`): two that both see a
//! key missing would both set it.
//!
//! ```text
//! index/           sled 0.34, default tree; numbers in keys are big-endian u64, in values little-endian
//! index/runs/N     undo records, sorted (module `runs`)
//! index.bad-N/     set aside
//!
//! key                                            value, each followed by 4 B: BLAKE3(u32 key length, key, value), cut
//! "ms"                                           u32 version = 9, 16 B store id
//! "ma"                                           address of the last record applied, address of its end
//! 'R' begin: u32 segment, u32 offset             u64 N, u8 level          a run: its file, how often it was merged
//! 'V' epoch, slot                                address                  a data record that was taken back, in runs that begin before
//! 'C' id                                         u8 deleted, address, checkpoint and what is known of it (`codec`)
//! 'L' id                                         u64 id                 the checkpoint that it comes from, if that is not the one before
//! 'O' number                                     address, u64            an operation: its record, and which other it undoes (0: none)
//! 'B' end                                        i64 begin, u8 told      when nobody served the tree, ns since 1970; all of it is on record
//! "mh"                                           u64 epoch               up to which what changed was looked at for that
//! 'S' epoch, u32 segment, u32 offset             u8 whole                a record of hashes of that epoch's objects, by where it is
//!
//! address   u32 segment, u32 offset
//! escaped   00 becomes 00 ff; ends with 00 00
//!
//! key of an undo record, in runs and behind 'F': 'E' dir, name escaped; 'A' 'X' 'D' 'H' slot: attributes, extended attributes, data, home
//! other keys in runs: 'P' slot: the place (`codec`) at which an inode with a past is since that epoch; 'K' 8 B of hash, uint slot, uint serial, uint origin (0
//! cloned, 1 moved): the size of an object of that epoch, by what it holds; it may be gone
//! ```
//! Another tree, "seen", holds hashes of live files (module `seen`): no record tells of them, and
//! nothing is lost with them.

mod batch;
mod catalogue;
mod compact;
mod compare;
pub mod contents;
mod db;
mod files;
mod keys;
mod opening;
mod parts;
mod runs;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use self::batch::Batch;
use self::batch::CheckpointChange;
pub use self::catalogue::CatalogueQueries;
pub use self::compare::IndexDifference;
use self::db::Db;
use self::files::{IndexDir, guarded};
use self::opening::close;
pub use self::opening::{IndexOpening, RebuildReason, onto_disk, open_waiting};
use self::parts::{IndexParts, apply, put_merged};
pub use self::runs::needs::RetentionNeeds;
pub(super) use self::runs::run::{Run, RunBuilder, RunCursor, RunSink, RunSource};
use super::error::{StoreError, StoreResult};
use super::hash::Hash;
use super::ids::{Name, ObjectId, Slot};
use super::journal::{Address, codec};
use super::layout::StoreId;
use super::record::{CheckpointState, Key, Place, Undo};
use super::reserve::Reserve;
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_sys::lock::{Mutex, RwLock};

/// Records, or keys of them, that a rebuild applies at once.
const REBUILD_BATCH: usize = 32_768;

/// The open index. Shared by reference between threads.
pub struct Index {
    home: IndexDir,
    id: StoreId,
    reserve: Arc<Reserve>,
    /// The index is in memory because it is small.
    waits: AtomicBool,
    applying: Mutex<()>,
    db: RwLock<Option<IndexParts>>,
}

impl Index {
    /// Returns the queries on checkpoints and operations.
    pub fn catalogue(&self) -> CatalogueQueries<'_> {
        CatalogueQueries(self)
    }

    /// Returns whether the index is in memory because it is too small to be worth its files; see
    /// [`onto_disk`].
    pub fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    /// Returns whether the index is in memory, because of its size or because the filesystem has no
    /// space.
    pub fn is_in_memory(&self) -> bool {
        self.db
            .read()
            .as_ref()
            .is_some_and(|parts| parts.db.disk().is_none())
    }

    /// Applies a batch completely or not at all, and empties it. On failure the batch is unchanged.
    /// Not durable on return.
    pub fn apply(&self, batch: &mut Batch) -> StoreResult<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let _applying = self.applying.lock();
        self.with_parts("apply", |parts| apply(parts, batch))?;
        drop(batch.take());
        Ok(())
    }

    /// Merges runs, so that a look-up reads few, until none is due or `stop` returns true. Slow:
    /// for a helper thread.
    ///
    /// Errors: `Io`, `Index`, `IndexDamaged`; the list of runs is then unchanged.
    pub fn merge(&self, stop: &dyn Fn() -> bool) -> StoreResult<()> {
        // `applying` is not held during a merge, which runs at idle priority.
        while let Some(merge) =
            self.if_there_is_room(self.with_parts("merge", |parts| parts.runs.merge(stop)))?
        {
            let _applying = self.applying.lock();
            if self.with_parts("list", |parts| put_merged(parts, merge))? {
                self.flush_durable()?;
            }
        }
        Ok(())
    }

    /// Ignores a lack of space for work that would only make the index smaller or faster.
    fn if_there_is_room<T>(&self, made: StoreResult<Option<T>>) -> StoreResult<Option<T>> {
        made.or_else(|error| {
            if !self.is_for_want_of_room(&error) {
                return Err(error);
            }
            self.home.discard_copy();
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "there is no room to make the index anew"
            );
            Ok(None)
        })
    }

    /// Calls `call` for every data record and every attribute record, each kind in order of inodes
    /// and epochs. Returns the applied address: a scan from there yields all other records.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn each_capture(&self, mut call: impl FnMut(Epoch, Undo)) -> StoreResult<Address> {
        let (applied, walked) = {
            // A batch is recorded as applied before its run is listed.
            let _applying = self.applying.lock();
            self.with_parts("look up", |parts| {
                Ok((applied_in(&parts.db)?, parts.runs.walked()))
            })?
        };
        guarded("list", || {
            keys::CAPTURES.iter().try_for_each(|tag| {
                walked.each_below(&[*tag], |key, epoch, value| {
                    let undo =
                        keys::capture(key).and_then(|key| codec::decode_before(key, value).ok());
                    call(epoch, undo.ok_or(StoreError::IndexDamaged)?);
                    Ok(())
                })
            })
        })?;
        Ok(applied.map_or(Address::START, |(_, end)| end))
    }

    /// Returns the first undo record of a key after a checkpoint, the one with the smallest epoch
    /// above it; `None` if nothing changed since.
    pub fn first_after(
        &self,
        key: &Key,
        checkpoint: CheckpointId,
    ) -> StoreResult<Option<(Epoch, Undo)>> {
        let Some(first) = checkpoint.0.checked_add(1) else {
            return Ok(None);
        };
        self.with_parts("look up", |parts| parts.runs.first_from(key, Epoch(first)))
    }

    /// Returns whether a key has an undo record of this epoch.
    pub fn has_record(&self, key: &Key, epoch: Epoch) -> StoreResult<bool> {
        Ok(self
            .with_parts("look up", |parts| parts.runs.first_from(key, epoch))?
            .is_some_and(|(found, _)| found == epoch))
    }

    /// Returns, for each name in a directory, its first undo record after a checkpoint, in name
    /// order.
    pub fn entries_after(
        &self,
        dir: Slot,
        checkpoint: CheckpointId,
    ) -> StoreResult<BTreeMap<Name, (Epoch, Undo)>> {
        let Some(first) = checkpoint.0.checked_add(1).map(Epoch) else {
            return Ok(BTreeMap::new());
        };
        self.with_parts("list", |parts| parts.runs.entries_from(dir, first))
    }

    /// Returns the last recorded place of an inode; `None` without a record: the inode has no
    /// history, or is the root.
    pub fn place(&self, slot: Slot) -> StoreResult<Option<Place>> {
        self.with_parts("look up", |parts| parts.runs.last_place(slot))
    }

    /// Returns whether the inode has a place of this epoch outside undo records.
    pub(super) fn has_place(&self, slot: Slot, epoch: Epoch) -> StoreResult<bool> {
        self.with_parts("look up", |parts| parts.runs.has_place(slot, epoch))
    }

    /// Calls `call` with objects that may have this hash, and their sizes, until it returns
    /// `false`. Only a prefix of the hash is compared, and the objects may have been removed.
    pub fn each_content(
        &self,
        hash: &Hash,
        call: impl FnMut(ObjectId, u64) -> bool,
    ) -> StoreResult<()> {
        self.with_parts("list", |parts| parts.runs.each_content(hash, call))
    }

    /// Returns the address up to which the journal is applied, the end of the last applied record.
    /// A scan from here yields the remaining records.
    pub fn applied(&self) -> StoreResult<Address> {
        Ok(self.last_applied()?.map_or(Address::START, |(_, end)| end))
    }

    /// Returns start and end of the last applied record.
    pub(super) fn last_applied(&self) -> StoreResult<Option<(Address, Address)>> {
        self.with("look up", applied_in)
    }

    /// Makes the index durable, so that the next opening need not read the journal again. Slow: for
    /// a helper thread.
    pub fn flush_durable(&self) -> StoreResult<()> {
        if self.is_in_memory() {
            return Ok(());
        }
        self.with("flush", |db| {
            Ok(db.disk().map_or(Ok(0), |disk| disk.flush()).map(drop)?)
        })?;
        self.home.sync()?;
        self.with_parts("tidy", |parts| parts.runs.remove_replaced())
    }

    /// Removes the index on disk if the index is in memory, to free the last space available.
    /// Returns whether one existed.
    pub fn give_up(&self) -> bool {
        self.is_in_memory()
            && self.home.exists().unwrap_or(false)
            && {
                tracing::warn!(
                    "the filesystem is full: the index on disk is given up; the next mount makes it anew"
                );
                self.home.discard();
                true
            }
    }

    /// Sets the index aside, so that the next opening rebuilds it. The open index stays usable.
    pub fn distrust(&self) {
        if self.is_in_memory() {
            return;
        }
        if let Err(error) = self.home.set_aside() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "an index that failed cannot be set aside"
            );
        }
    }

    /// Returns the whole contents in key order. Indexes with equal dumps are equal.
    pub fn dump(&self) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        self.with_parts("list", |parts| {
            let pairs = parts
                .db
                .range(..)
                .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())));
            let mut all: Vec<_> = pairs.collect::<Result<_, _>>()?;
            all.retain(|(key, _)| !keys::is_list(key));
            parts.runs.walked().each_below(&[], |key, epoch, value| {
                all.push((keys::with_epoch(key.to_vec(), epoch), value.to_vec()));
                Ok(())
            })?;
            all.sort_unstable();
            Ok(all)
        })
    }

    fn with<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(&Db) -> StoreResult<T>,
    ) -> StoreResult<T> {
        self.with_parts(what, |parts| call(&parts.db))
    }

    fn with_parts<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(&IndexParts) -> StoreResult<T>,
    ) -> StoreResult<T> {
        let parts = self.db.read();
        let parts = parts.as_ref().ok_or(StoreError::IndexClosed)?;
        guarded(what, || call(parts))
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        if let Some(parts) = self.db.get_mut().take() {
            close(parts.db);
        }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The entry of a checkpoint.
struct CheckpointEntry {
    deleted: bool,
    at: Address,
    kept: CheckpointState,
}

impl CheckpointEntry {
    fn parse(value: &[u8]) -> Option<CheckpointEntry> {
        let (deleted, rest) = value.split_first()?;
        let ([at], rest) = keys::parse(rest)?;
        Some(CheckpointEntry {
            deleted: *deleted != 0,
            at: keys::from_value(at),
            kept: codec::decode_kept(rest).ok()?,
        })
    }

    fn bytes(&self) -> StoreResult<Vec<u8>> {
        let mut value = keys::value(&[keys::in_value(self.at)]);
        value.insert(0, u8::from(self.deleted));
        codec::encode_kept(&self.kept, &mut value)?;
        Ok(value)
    }
}

/// Returns a verified value without its checksum.
fn get(db: &Db, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
    let Some(value) = db.get(key)? else {
        return Ok(None);
    };
    let value = keys::unseal(key, &value).ok_or(StoreError::IndexDamaged)?;
    Ok(Some(value.to_vec()))
}

/// Parses all entries with a prefix, after verifying and removing the checksums.
fn list<T>(
    db: &Db,
    prefix: &[u8],
    parse: impl Fn(&[u8], &[u8]) -> Option<T>,
) -> StoreResult<Vec<T>> {
    db.scan_prefix(prefix)
        .map(|entry| parsed(entry?, &parse))
        .collect()
}

fn parsed<T>(
    (key, value): (sled::IVec, sled::IVec),
    parse: impl Fn(&[u8], &[u8]) -> Option<T>,
) -> StoreResult<T> {
    keys::unseal(&key, &value)
        .and_then(|value| parse(&key, value))
        .ok_or(StoreError::IndexDamaged)
}

fn applied_in(db: &Db) -> StoreResult<Option<(Address, Address)>> {
    let Some(value) = get(db, keys::META_APPLIED)? else {
        return Ok(None);
    };
    let [last, end] = keys::parse_all(&value).ok_or(StoreError::IndexDamaged)?;
    Ok(Some((keys::from_value(last), keys::from_value(end))))
}

/// See [`CatalogueQueries::last_checkpoint`].
fn last_checkpoint(db: &Db) -> StoreResult<Option<CheckpointId>> {
    let last = db.scan_prefix([keys::CHECKPOINT]).next_back().transpose()?;
    last.map(|entry| parsed(entry, |key, _| keys::parse_checkpoint(key)))
        .transpose()
}

/// Returns the total length of all keys and values.
fn held(disk: &sled::Db) -> StoreResult<u64> {
    let mut bytes = 0;
    for name in disk.tree_names() {
        for entry in &disk.open_tree(name)? {
            let (key, value) = entry?;
            bytes += (key.len() + value.len()) as u64;
        }
    }
    Ok(bytes)
}

/// Returns the value of a checkpoint after a change; `stored` is the value before. Both are without
/// checksum.
fn checkpoint_after(
    stored: Option<Vec<u8>>,
    change: &CheckpointChange,
) -> StoreResult<Option<Vec<u8>>> {
    let base = match (&change.made, stored) {
        (Some((kept, at)), _) => CheckpointEntry {
            deleted: false,
            at: *at,
            kept: kept.clone(),
        },
        (None, Some(stored)) => CheckpointEntry::parse(&stored).ok_or(StoreError::IndexDamaged)?,
        (None, None) => {
            // The checkpoint's record has been dropped from the journal, and this one will be.
            tracing::debug!("the journal speaks of a checkpoint that it has not got");
            return Ok(None);
        }
    };
    let mut known = base;
    change.change(&mut known.kept);
    known.deleted |= change.deleted;
    known.bytes().map(Some)
}

#[cfg(test)]
mod catalogue_tests;
#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
