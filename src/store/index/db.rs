//! The database of the index: sled, or a map in memory where the filesystem has no space.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use sled::IVec;

use super::keys;
use crate::error::StoreResult;
use ckptfs_sys as sys;
use ckptfs_sys::lock::RwLock;

/// Entries in key order.
pub(super) type Entries<'a> = Box<dyn DoubleEndedIterator<Item = sled::Result<(IVec, IVec)>> + 'a>;

/// Edits of keys: a new value with checksum, or removal.
#[derive(Debug, Default)]
pub(super) struct Edits(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Edits {
    /// Sets the value, with a checksum appended.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let value = keys::seal(&key, value);
        self.0.push((key, Some(value)));
    }

    pub fn remove(&mut self, key: Vec<u8>) {
        self.0.push((key, None));
    }
}

/// See the module. The map in memory lasts as long as the mount; the database on disk stays
/// unchanged and falls behind.
pub(super) enum Db {
    Disk(sled::Db),
    Memory(RwLock<BTreeMap<Vec<u8>, Vec<u8>>>),
}

impl Db {
    pub fn in_memory() -> Db {
        Db::Memory(RwLock::default())
    }

    pub fn get(&self, key: &[u8]) -> sled::Result<Option<IVec>> {
        match self {
            Db::Disk(db) => db.get(key),
            Db::Memory(map) => Ok(map.read().get(key).map(|value| value.as_slice().into())),
        }
    }

    pub fn range<'a>(&'a self, range: impl RangeBounds<Vec<u8>> + 'a) -> Entries<'a> {
        match self {
            Db::Disk(db) => Box::new(db.range(range)),
            Db::Memory(map) => {
                let pair = |(key, value): (&Vec<u8>, &Vec<u8>)| {
                    Ok((key.as_slice().into(), value.as_slice().into()))
                };
                let found: Vec<_> = map.read().range(range).map(pair).collect();
                Box::new(found.into_iter())
            }
        }
    }

    pub fn scan_prefix(&self, prefix: impl AsRef<[u8]>) -> Entries<'_> {
        let prefix = prefix.as_ref();
        self.range((Bound::Included(prefix.to_vec()), end_of_prefix(prefix)))
    }

    /// Applies all edits or none. Not durable on return.
    pub fn apply(&self, Edits(edits): Edits) -> StoreResult<()> {
        match self {
            Db::Disk(db) => {
                let mut batch = sled::Batch::default();
                for (key, value) in edits {
                    match value {
                        Some(value) => batch.insert(key, value),
                        None => batch.remove(key),
                    }
                }
                // sled blocks access to its trees during a batch.
                sys::awake(|| db.apply_batch(batch))?;
            }
            Db::Memory(map) => {
                let mut map = map.write();
                for (key, value) in edits {
                    match value {
                        Some(value) => map.insert(key, value),
                        None => map.remove(&key),
                    };
                }
            }
        }
        Ok(())
    }

    /// Returns the database if it is on disk.
    pub fn disk(&self) -> Option<&sled::Db> {
        match self {
            Db::Disk(db) => Some(db),
            Db::Memory(_) => None,
        }
    }
}

/// Returns the first key above all keys with this prefix. One exists, because tags are letters.
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
