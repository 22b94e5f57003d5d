//! What the index tells of checkpoints, operations and what belongs to them, in the order in which
//! it was made.

use super::keys;
use super::{Index, KnownCheckpoint, get, last_checkpoint};
use crate::store::error::{StoreError, StoreResult};
use crate::store::ids::{CheckpointId, Epoch};
use crate::store::journal::Address;
use crate::store::lineage::Lineage;
use crate::store::record::Kept;

/// A look at the catalogue of an index.
pub struct Catalogue<'a>(pub(super) &'a Index);

impl Catalogue<'_> {
    /// All checkpoints that were not deleted for good, hidden ones too, with where their frames
    /// begin, in order of their numbers.
    pub fn checkpoints(&self) -> StoreResult<Vec<(Kept, Address)>> {
        self.0.with("list", |db| {
            let mut checkpoints = Vec::new();
            for entry in db.scan_prefix(keys::checkpoints_prefix()) {
                let (key, value) = entry?;
                let known = keys::unseal(&key, &value)
                    .and_then(KnownCheckpoint::parse)
                    .ok_or(StoreError::IndexDamaged)?;
                if !known.deleted {
                    checkpoints.push((known.kept, known.at));
                }
            }
            Ok(checkpoints)
        })
    }

    /// Where checkpoints come from, if that is not the one before.
    pub fn lineage(&self) -> StoreResult<Lineage> {
        self.0.with("list", |db| {
            let mut lineage = Lineage::default();
            for entry in db.scan_prefix(keys::lineage_prefix()) {
                let (key, value) = entry?;
                let parent = keys::unseal(&key, &value)
                    .and_then(|value| value.try_into().ok())
                    .map(u64::from_le_bytes);
                let child = keys::parse_checkpoint(&key).ok_or(StoreError::IndexDamaged)?;
                lineage.put(child, CheckpointId(parent.ok_or(StoreError::IndexDamaged)?));
            }
            Ok(lineage)
        })
    }

    /// Every operation, oldest first: its number, where its record is, and which other it undoes.
    pub fn operations(&self) -> StoreResult<Vec<(u64, Address, Option<u64>)>> {
        self.0.with("list", |db| {
            let mut operations = Vec::new();
            for entry in db.scan_prefix(keys::operations_prefix()) {
                let (key, value) = entry?;
                let parsed =
                    keys::unseal(&key, &value).and_then(|value| keys::parse_operation(&key, value));
                operations.push(parsed.ok_or(StoreError::IndexDamaged)?);
            }
            Ok(operations)
        })
    }

    /// The times in which nobody served the tree, oldest first: from and to, nanoseconds since
    /// 1970, and whether all that was changed is on record.
    pub fn absences(&self) -> StoreResult<Vec<(i64, i64, bool)>> {
        self.0.with("list", |db| {
            let mut absences = Vec::new();
            for entry in db.scan_prefix(keys::absences_prefix()) {
                let (key, value) = entry?;
                let (from, told) = keys::unseal(&key, &value)
                    .and_then(keys::parse_absence_value)
                    .ok_or(StoreError::IndexDamaged)?;
                absences.push((
                    from,
                    keys::parse_absence(&key).ok_or(StoreError::IndexDamaged)?,
                    told,
                ));
            }
            Ok(absences)
        })
    }

    /// The records of hashes of an epoch's objects, and whether each says that the epoch is hashed
    /// whole.
    pub fn seals(&self, epoch: Epoch) -> StoreResult<Vec<(Address, bool)>> {
        self.0.with("list", |db| {
            let mut seals = Vec::new();
            for entry in db.scan_prefix(keys::hashes_prefix(epoch)) {
                let (key, value) = entry?;
                let whole = keys::unseal(&key, &value).and_then(|value| value.first().copied());
                seals.push((
                    keys::parse_seal(&key).ok_or(StoreError::IndexDamaged)?,
                    whole.ok_or(StoreError::IndexDamaged)? != 0,
                ));
            }
            Ok(seals)
        })
    }

    /// The records of dropped versions: the layer, where it is, the first and the last checkpoint
    /// that show something of it.
    pub fn dropped(&self) -> StoreResult<Vec<(Epoch, Address, CheckpointId, CheckpointId)>> {
        self.0.with("list", |db| {
            let mut found = Vec::new();
            for entry in db.scan_prefix(keys::dropped_prefix()) {
                let (key, value) = entry?;
                let parsed =
                    keys::unseal(&key, &value).and_then(|value| keys::parse_dropped(&key, value));
                found.push(parsed.ok_or(StoreError::IndexDamaged)?);
            }
            Ok(found)
        })
    }

    /// Where everything is that was captured ahead: frame, and number in its list. It may be
    /// superseded.
    pub fn ahead(&self) -> StoreResult<Vec<(Address, u16)>> {
        self.0.with("list", |db| {
            let mut found = Vec::new();
            for entry in db.scan_prefix(keys::ahead_prefix()) {
                let (key, value) = entry?;
                found.push(
                    keys::unseal(&key, &value)
                        .and_then(keys::parse_item)
                        .ok_or(StoreError::IndexDamaged)?,
                );
            }
            Ok(found)
        })
    }

    /// Up to which epoch what changed was looked at to be captured ahead.
    pub fn ahead_upto(&self) -> StoreResult<Epoch> {
        self.0
            .with("look up", |db| match get(db, keys::META_AHEAD)? {
                Some(value) => value
                    .try_into()
                    .map(|bytes| Epoch(u64::from_le_bytes(bytes)))
                    .map_err(|_| StoreError::IndexDamaged),
                None => Ok(Epoch(0)),
            })
    }

    /// The highest number that a checkpoint ever had, deleted ones included.
    pub fn last_checkpoint(&self) -> StoreResult<Option<CheckpointId>> {
        self.0.with("look up", last_checkpoint)
    }
}
