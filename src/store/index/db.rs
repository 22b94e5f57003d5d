//! The database of the index: sled's, or in memory where the filesystem has no room for one.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use sled::IVec;

use super::keys;
use crate::store::error::StoreResult;
use crate::sys;
use crate::sys::lock::RwLock;

/// Entries in order of their keys.
pub(super) type Entries<'a> = Box<dyn DoubleEndedIterator<Item = sled::Result<(IVec, IVec)>> + 'a>;

/// What becomes of keys: they get a value, which is sealed, or go.
#[derive(Debug, Default)]
pub(super) struct Edits(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Edits {
    /// Seals the value.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let value = keys::seal(&key, value);
        self.0.push((key, Some(value)));
    }

    pub fn remove(&mut self, key: Vec<u8>) {
        self.0.push((key, None));
    }
}

/// See the module. One in memory lasts as long as the mount; the one on disk stays as it is
/// meanwhile, and is behind.
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

    /// Makes all edits, or none of them. Not durable on return.
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
                // sled keeps everybody from its trees meanwhile.
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
