//! Incremental hashes of large files: only changed blocks are read.
//!
//! BLAKE3 is a tree: a file's hash follows from the chaining values of its blocks, if a block is a
//! power of two of its chunks. The values of the last hashed version of a file are cached. A block
//! of the next version that has the same physical extents ([`sys::same_ranges`]) has the same
//! content, and its value is reused. The hash equals that of a full read, bit for bit.
//!
//! Only clones are compared, because an object of that kind is never written once it is recorded. A
//! moved inode may still be open. The cache is in memory; after a restart, or when the older
//! version was removed, each file is read completely once.

use std::collections::HashMap;
use std::fs::File;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

use super::error::{StoreError, StoreResult};
use super::hash::{BLOCK_BYTES as READ_BYTES, Hash, HashPool, hash_file};
use super::ids::{ObjectId, ObjectOrigin, Slot};
use super::layers::{Layers, file_name};
use ckptfs_sys::{self as sys, Errno, Stat, SysResult};

/// Smaller files are read completely.
const LARGE_MIN_BYTES: u64 = 1 << 20;
/// Block size of all except very large files.
const BLOCK_BYTES_MIN: u64 = 64 << 10;
/// Maximum number of blocks of a file; very large files have larger blocks.
const BLOCKS_MAX: u64 = 1 << 16;
/// Memory for all cached values: 16 GiB of content in the smallest blocks.
const KNOWN_BYTES_MAX: usize = 8 << 20;
/// Approximate size of an entry without its blocks.
const ENTRY_BYTES: usize = 256;

/// The result for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashResult {
    /// Size of the object in bytes.
    pub size: u64,
    /// Hash of the object.
    pub hash: Hash,
    /// Bytes that were read to compute it.
    pub read: u64,
}

/// The last hashed version of a file.
struct HashedVersion {
    object: ObjectId,
    /// Attributes before the read.
    stat: Stat,
    blocks: Vec<ChainingValue>,
    /// Position in the order of use.
    turn: u64,
}

impl HashedVersion {
    fn bytes(&self) -> usize {
        self.blocks.len() * size_of::<ChainingValue>() + ENTRY_BYTES
    }
}

/// Cached chaining values of the last hashed versions, for as many files as fit into 8 MiB.
#[derive(Default)]
pub struct BlockHashCache {
    files: HashMap<Slot, HashedVersion>,
    bytes: usize,
    turn: u64,
}

impl BlockHashCache {
    /// Returns size and hash (BLAKE3) of an object of a closed epoch; `None` if the object was
    /// removed during the call or `go_on` returned `false`. `go_on` is called before each read with
    /// its size. The bytes do not stay in the page cache.
    ///
    /// Errors: as [`Layers::hash`].
    pub fn hash(
        &mut self,
        layers: &Layers,
        id: ObjectId,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> StoreResult<Option<HashResult>> {
        let file = layers.open(id)?;
        // A removed object takes up space until it is closed.
        let is_there = || sys::stat_fd(&file).is_ok_and(|stat| stat.nlink > 0);
        let go_on = |bytes| go_on(bytes) && is_there();
        self.hash_open(layers, id, &file, go_on).map_err(|errno| {
            StoreError::io("read the object", file_name(id))(std::io::Error::from_raw_os_error(
                errno.0,
            ))
        })
    }

    fn hash_open(
        &mut self,
        layers: &Layers,
        id: ObjectId,
        file: &File,
        go_on: impl FnMut(u64) -> bool,
    ) -> SysResult<Option<HashResult>> {
        let stat = sys::stat_fd(file)?;
        if stat.size < LARGE_MIN_BYTES || id.origin != ObjectOrigin::Cloned {
            let found = hash_file(file, &HashPool::default(), true, go_on)?;
            return Ok(found.map(|(size, hash)| HashResult {
                size,
                hash,
                read: size,
            }));
        }
        let taken_over = self.unchanged(layers, id.slot, file, &stat);
        let Some((blocks, read)) = read_blocks(file, stat.size, &taken_over, go_on)? else {
            return Ok(None);
        };
        let hash = root(&blocks).ok_or(Errno::EIO)?;
        self.keep(HashedVersion {
            object: id,
            stat,
            blocks,
            turn: 0,
        });
        Ok(Some(HashResult {
            size: stat.size,
            hash,
            read,
        }))
    }

    /// Returns the chaining value of each block that is unchanged since the previous version.
    fn unchanged(
        &self,
        layers: &Layers,
        slot: Slot,
        file: &File,
        stat: &Stat,
    ) -> Vec<Option<ChainingValue>> {
        let block = block_bytes(stat.size);
        let mut found = vec![None; count(stat.size.div_ceil(block))];
        let Some(known) = self
            .files
            .get(&slot)
            .filter(|known| block_bytes(known.stat.size) == block)
        else {
            return found;
        };
        let Ok(before) = layers.open(known.object) else {
            return found;
        };
        if !sys::stat_fd(&before).is_ok_and(|now| is_same(&now, &known.stat)) {
            return found;
        }
        let common = stat.size.min(known.stat.size);
        for range in sys::same_ranges(&before, file, common).unwrap_or_default() {
            // A short last block is common only if both files end there.
            let ends_both = range.end == common && stat.size == known.stat.size;
            let (first, end) = (
                range.start.div_ceil(block),
                if ends_both {
                    range.end.div_ceil(block)
                } else {
                    range.end / block
                },
            );
            for number in count(first)..count(end) {
                if let Some(value) = found.get_mut(number) {
                    *value = known.blocks.get(number).copied();
                }
            }
        }
        found
    }

    /// Caches a version in place of an older one, and evicts the least recently used.
    fn keep(&mut self, known: HashedVersion) {
        self.turn += 1;
        self.bytes += known.bytes();
        let slot = known.object.slot;
        if let Some(before) = self.files.insert(
            slot,
            HashedVersion {
                turn: self.turn,
                ..known
            },
        ) {
            self.bytes -= before.bytes();
        }
        while self.bytes > KNOWN_BYTES_MAX {
            let Some(oldest) = self
                .files
                .iter()
                .min_by_key(|(_, known)| known.turn)
                .map(|(slot, _)| *slot)
            else {
                break;
            };
            self.bytes -= self.files.remove(&oldest).map_or(0, |known| known.bytes());
        }
    }
}

/// Returns whether it is the same inode, unchanged.
fn is_same(now: &Stat, before: &Stat) -> bool {
    (now.dev, now.ino, now.size, now.mtime, now.ctime)
        == (
            before.dev,
            before.ino,
            before.size,
            before.mtime,
            before.ctime,
        )
}

/// Returns the block size for a file of this size, a power of two of chunks.
fn block_bytes(size: u64) -> u64 {
    size.div_ceil(BLOCKS_MAX)
        .next_power_of_two()
        .max(BLOCK_BYTES_MIN)
}

/// Converts a number of blocks, which is small.
fn count(blocks: u64) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX)
}

/// Reads the blocks without a known chaining value. Returns all values, and the number of bytes
/// read.
fn read_blocks(
    file: &File,
    size: u64,
    known: &[Option<ChainingValue>],
    mut go_on: impl FnMut(u64) -> bool,
) -> SysResult<Option<(Vec<ChainingValue>, u64)>> {
    let (block, wide) = (block_bytes(size), READ_BYTES as u64);
    let blocks_at_once = count((wide / block).max(1));
    let mut buffer = vec![0; READ_BYTES];
    let mut hasher = blake3::Hasher::new();
    let (mut values, mut at, mut read) = (Vec::with_capacity(known.len()), 0, 0);
    while at < size {
        // `at` may be inside a large block, which is not known then.
        let from = known.get(count(at / block)..).unwrap_or_default();
        if let Some(Some(value)) = from.first() {
            values.push(*value);
            at += block;
            continue;
        }
        let unknown = from
            .iter()
            .take(blocks_at_once)
            .take_while(|value| value.is_none())
            .count() as u64;
        let end = ((at / block + unknown) * block).min(at + wide).min(size);
        if !go_on(end - at) {
            return Ok(None);
        }
        let bytes = buffer.get_mut(..count(end - at)).ok_or(Errno::EIO)?;
        if sys::read_full_at(file, bytes, at)? != bytes.len() {
            // Objects are never truncated.
            return Err(Errno::EIO);
        }
        sys::drop_cached(file, at, end - at);
        read += end - at;
        for part in bytes.chunks(count(block)) {
            if at % block == 0 {
                hasher = blake3::Hasher::new();
                hasher.set_input_offset(at);
            }
            hasher.update(part);
            at += part.len() as u64;
            if at % block == 0 || at == size {
                values.push(hasher.finalize_non_root());
            }
        }
    }
    Ok(Some((values, read)))
}

/// Returns the hash of a file of several blocks.
fn root(blocks: &[ChainingValue]) -> Option<Hash> {
    let (left, right) = blocks.split_at_checked(left_blocks(blocks.len()))?;
    Some(*merge_subtrees_root(&subtree(left)?, &subtree(right)?, Mode::Hash).as_bytes())
}

fn subtree(blocks: &[ChainingValue]) -> Option<ChainingValue> {
    if let [only] = blocks {
        return Some(*only);
    }
    let (left, right) = blocks
        .split_at_checked(left_blocks(blocks.len()))
        .filter(|(left, right)| !left.is_empty() && !right.is_empty())?;
    Some(merge_subtrees_non_root(
        &subtree(left)?,
        &subtree(right)?,
        Mode::Hash,
    ))
}

/// The left subtree has the largest power of two of blocks that leaves some for the right one.
fn left_blocks(blocks: usize) -> usize {
    blocks.div_ceil(2).next_power_of_two()
}

impl std::fmt::Debug for BlockHashCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KnownBlocks")
            .field("files", &self.files.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
