//! What the index tells of checkpoints, operations and what belongs to them, in the order in which
//! it was made.

use super::{Index, KnownCheckpoint, keys, last_checkpoint, list};
use crate::store::error::StoreResult;
use crate::store::ids::{CheckpointId, Epoch};
use crate::store::journal::Address;
use crate::store::lineage::Lineage;
use crate::store::record::Kept;

/// A look at the catalogue of an index.
pub struct Catalogue<'a>(pub(super) &'a Index);

impl Catalogue<'_> {
    fn list<T>(
        &self,
        prefix: &[u8],
        parse: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> StoreResult<Vec<T>> {
        self.0.with("list", |db| list(db, prefix, parse))
    }

    /// All checkpoints that were not deleted for good, hidden ones too, with where their frames
    /// begin, in order of their numbers.
    pub fn checkpoints(&self) -> StoreResult<Vec<(Kept, Address)>> {
        let all = self.list(&[keys::CHECKPOINT], |_, value| {
            KnownCheckpoint::parse(value)
        })?;
        let there = all.into_iter().filter(|known| !known.deleted);
        Ok(there.map(|known| (known.kept, known.at)).collect())
    }

    /// Where checkpoints come from, if that is not the one before.
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

    /// Every operation, oldest first: its number, where its record is, and which other it undoes.
    pub fn operations(&self) -> StoreResult<Vec<(u64, Address, Option<u64>)>> {
        self.list(&[keys::OPERATION], keys::parse_operation)
    }

    /// The times in which nobody served the tree, oldest first: from and to, nanoseconds since
    /// 1970, and whether all that was changed is on record.
    pub fn absences(&self) -> StoreResult<Vec<(i64, i64, bool)>> {
        self.list(&[keys::ABSENCE], keys::parse_absence)
    }

    /// The records of hashes of an epoch's objects, and whether each says that the epoch is hashed
    /// whole.
    pub fn seals(&self, epoch: Epoch) -> StoreResult<Vec<(Address, bool)>> {
        self.list(&keys::key(keys::SEAL, [epoch.0]), |key, value| {
            Some((keys::parse_seal(key)?, *value.first()? != 0))
        })
    }

    /// The records of dropped versions: the layer, where it is, the first and the last checkpoint
    /// that show something of it.
    pub fn dropped(&self) -> StoreResult<Vec<(Epoch, Address, CheckpointId, CheckpointId)>> {
        self.list(&[keys::DROPPED], keys::parse_dropped)
    }

    /// The highest number that a checkpoint ever had, deleted ones included.
    pub fn last_checkpoint(&self) -> StoreResult<Option<CheckpointId>> {
        self.0.with("look up", last_checkpoint)
    }
}
