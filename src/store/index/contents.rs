//! Hashes of live files: the inode, its attributes when it was hashed, and the hash of its content.
//!
//! They are hints. A file with unchanged attributes most probably has the same content; before data
//! is shared the kernel compares it. The journal has no record of them: a rebuilt index starts
//! without, and one in memory never has any.
//!
//! ```text
//! tree "seen" of index/; each value is followed by its checksum, as in the default tree
//! u64 slot (big-endian)      u64 size, mtime, ctime, 32 B hash      time: i64 seconds, u32 nanoseconds
//! ```

use super::{Index, keys};
use crate::error::StoreResult;
use crate::hash::Hash;
use crate::ids::Slot;
use ckptfs_sys::{Stat, Time};

const TREE: &[u8] = b"seen";

/// Attributes that change with a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSignature {
    /// Bytes.
    pub size: u64,
    /// Last modification of the content.
    pub mtime: Time,
    /// Last status change.
    pub ctime: Time,
}

impl FileSignature {
    /// Selects the attributes from a stat.
    pub fn of(stat: &Stat) -> FileSignature {
        FileSignature {
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
    /// Returns the recorded hash of a file if its attributes are unchanged.
    ///
    /// # Errors
    /// As every look-up; a damaged entry counts as missing.
    pub fn seen(&self, slot: Slot, look: &FileSignature) -> StoreResult<Option<Hash>> {
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

    /// Records the hashes of files with these attributes.
    ///
    /// # Errors
    /// As [`Index::apply`].
    pub fn note_seen(&self, seen: &[(Slot, FileSignature, Hash)]) -> StoreResult<()> {
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
