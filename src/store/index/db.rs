//! The database of the index: sled's, or in memory where the filesystem has no room for one.

use std::ops::{Bound, RangeBounds};

use sled::IVec;

use super::batch::{Batch, Image};
use super::keys;
use crate::store::error::StoreResult;

/// Entries in order of their keys.
pub(super) type Entries<'a> = Box<dyn DoubleEndedIterator<Item = sled::Result<(IVec, IVec)>> + 'a>;

/// See the module. One in memory lasts as long as the mount; the one on disk stays as it is meanwhile, and is behind.
pub(super) enum Db {
    Disk(sled::Db),
    Memory(Image),
}

impl Db {
    pub fn get(&self, key: &[u8]) -> sled::Result<Option<IVec>> {
        match self {
            Db::Disk(db) => db.get(key),
            Db::Memory(image) => Ok(image.get(key).map(|value| value.as_slice().into())),
        }
    }

    pub fn range<'a>(&'a self, range: impl RangeBounds<Vec<u8>> + 'a) -> Entries<'a> {
        match self {
            Db::Disk(db) => Box::new(db.range(range)),
            Db::Memory(image) => Box::new(image.range(range).map(|(key, value)| Ok((key.as_slice().into(), value.as_slice().into())))),
        }
    }

    pub fn scan_prefix(&self, prefix: impl AsRef<[u8]>) -> Entries<'_> {
        let prefix = prefix.as_ref();
        self.range((Bound::Included(prefix.to_vec()), end_of_prefix(prefix)))
    }

    pub fn iter(&self) -> Entries<'_> {
        self.range(..)
    }

    /// As `apply` of the disk's, in memory; whether it is there.
    pub fn apply_in_memory(&mut self, batch: &Batch) -> StoreResult<bool> {
        match self {
            Db::Disk(_) => Ok(false),
            Db::Memory(image) => {
                image.apply(batch)?;
                if let Some(applied) = batch.applied {
                    image.put(keys::META_APPLIED, keys::applied_value(applied));
                }
                Ok(true)
            }
        }
    }

    /// The database on disk, if that is where it is.
    pub fn disk(&self) -> Option<&sled::Db> {
        match self {
            Db::Disk(db) => Some(db),
            Db::Memory(_) => None,
        }
    }
}

/// The first key that is above all with this prefix; the tags are letters, so there always is one.
fn end_of_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}
