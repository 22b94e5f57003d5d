//! Queries on checkpoints, operations and related records, in order of their creation.

use super::{CheckpointEntry, Index, keys, last_checkpoint, list};
use crate::error::StoreResult;
use crate::journal::Address;
use crate::lineage::Lineage;
use crate::record::CheckpointState;
use ckptfs_api::{CheckpointId, Epoch};

/// Read access to the catalogue of an index.
pub struct CatalogueQueries<'a>(pub(super) &'a Index);

impl CatalogueQueries<'_> {
    fn list<T>(
        &self,
        prefix: &[u8],
        parse: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> StoreResult<Vec<T>> {
        self.0.with("list", |db| list(db, prefix, parse))
    }

    /// Returns all checkpoints that are not freed, including hidden ones, with the addresses of
    /// their frames, in order of their ids.
    pub fn checkpoints(&self) -> StoreResult<Vec<(CheckpointState, Address)>> {
        let all = self.list(&[keys::CHECKPOINT], |_, value| {
            CheckpointEntry::parse(value)
        })?;
        let there = all.into_iter().filter(|known| !known.deleted);
        Ok(there.map(|known| (known.kept, known.at)).collect())
    }

    /// Returns the parents of checkpoints, where they differ from the preceding checkpoint.
    pub fn lineage(&self) -> StoreResult<Lineage> {
        let parents = self.list(&[keys::LINEAGE], |key, value| {
            let [parent] = keys::parse_all(value)?;
            Some((keys::parse_checkpoint(key)?, CheckpointId(parent)))
        })?;
        let mut lineage = Lineage::default();
        parents
            .into_iter()
            .for_each(|(child, parent)| lineage.put(child, parent));
        Ok(lineage)
    }

    /// Returns all operations, oldest first: number, address of the record, and the operation it
    /// undoes.
    pub fn operations(&self) -> StoreResult<Vec<(u64, Address, Option<u64>)>> {
        self.list(&[keys::OPERATION], keys::parse_operation)
    }

    /// Returns the periods in which no daemon served the tree, oldest first: start and end in
    /// nanoseconds since 1970, and whether all changes are recorded.
    pub fn absences(&self) -> StoreResult<Vec<(i64, i64, bool)>> {
        self.list(&[keys::ABSENCE], keys::parse_absence)
    }

    /// Returns the addresses of an epoch's hash records, and whether each marks the epoch as
    /// completely hashed.
    pub fn seals(&self, epoch: Epoch) -> StoreResult<Vec<(Address, bool)>> {
        self.list(&keys::key(keys::SEAL, [epoch.0]), |key, value| {
            Some((keys::parse_seal(key)?, *value.first()? != 0))
        })
    }

    /// Returns the records of dropped versions: layer, address, and the first and last checkpoint
    /// that show any of them.
    pub fn dropped(&self) -> StoreResult<Vec<(Epoch, Address, CheckpointId, CheckpointId)>> {
        self.list(&[keys::DROPPED], keys::parse_dropped)
    }

    /// Returns the highest id that a checkpoint ever had, including deleted ones.
    pub fn last_checkpoint(&self) -> StoreResult<Option<CheckpointId>> {
        self.0.with("look up", last_checkpoint)
    }
}
