//! Hashes of live files, as they were seen: which file, what it looked like then, and what it held.
//!
//! They are hints. A file that looks as it did then holds, most probably, what it held; who shares
//! what two files hold has the kernel compare them. The journal does not tell of them: a rebuild of
//! the index begins without, and one in memory has none.
//!
//! ```text
//! tree "seen" of index/; each value is followed by its checksum, as in the default tree
//! u64 slot (big-endian)      u64 size, mtime, ctime, 32 B hash      time: i64 seconds, u32 nanoseconds
//! ```

use super::{Index, keys};
use crate::store::error::StoreResult;
use crate::store::hash::Hash;
use crate::store::ids::Slot;
use crate::sys::{Stat, Time};

const TREE: &[u8] = b"seen";

/// How a file looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
}

impl Look {
    /// Of a file with these attributes.
    pub fn of(stat: &Stat) -> Look {
        Look {
            size: stat.size,
            mtime: stat.mtime,
            ctime: stat.ctime,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.size.to_le_bytes().to_vec();
        for time in [self.mtime, self.ctime] {
            bytes.extend_from_slice(&time.sec.to_le_bytes());
            bytes.extend_from_slice(&time.nsec.to_le_bytes());
        }
        bytes
    }
}

impl Index {
    /// The hash of a file that was seen, if it looks as it did then.
    ///
    /// # Errors
    /// As every look-up; one that is damaged is none.
    pub fn seen(&self, slot: Slot, look: &Look) -> StoreResult<Option<Hash>> {
        self.with("look up", |db| {
            let key = slot.0.to_be_bytes();
            let Some(disk) = db.disk() else {
                return Ok(None);
            };
            let Some(value) = disk.open_tree(TREE)?.get(key)? else {
                return Ok(None);
            };
            let known = keys::unseal(&key, &value).and_then(|value| value.split_last_chunk::<32>());
            Ok(known.and_then(|(was, hash)| (was == look.bytes()).then_some(*hash)))
        })
    }

    /// Notes what files held while they looked so.
    ///
    /// # Errors
    /// As [`Index::apply`].
    pub fn note_seen(&self, seen: &[(Slot, Look, Hash)]) -> StoreResult<()> {
        self.with("apply", |db| {
            let Some(disk) = db.disk() else { return Ok(()) };
            let mut batch = sled::Batch::default();
            for (slot, look, hash) in seen {
                let key = slot.0.to_be_bytes();
                let mut value = look.bytes();
                value.extend_from_slice(hash);
                batch.insert(&key, keys::seal(&key, value));
            }
            Ok(disk.open_tree(TREE)?.apply_batch(batch)?)
        })
    }
}
