//! Hashes of large files, of which only what has changed is read.
//!
//! BLAKE3 is a tree: a file's hash follows from the chaining values of its blocks, if a block is a
//! power of two of its chunks. They are kept of the version of a file that was hashed last. A block
//! of the next version that is at the same place of the device in both holds the same
//! ([`sys::same_ranges`]), and its value is taken over. The hash is the one that reading all of it
//! gives, bit for bit.
//!
//! Only clones are compared: nobody writes an object of that kind once it is on record. A moved
//! inode may be open still. What is known is in memory; after a restart each file is read whole
//! once, as it is when the older version has gone.

use std::collections::HashMap;
use std::fs::File;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

use super::error::{StoreError, StoreResult};
use super::hash::{BLOCK_BYTES as READ_BYTES, Hash, Hashers, hash_file};
use super::ids::{ObjectId, ObjectOrigin, Slot};
use super::layers::{Layers, file_name};
use crate::sys::{self, Errno, Stat, SysResult};

/// A smaller file is read whole.
const LARGE_MIN_BYTES: u64 = 1 << 20;
/// A block of a file that is not very large.
const BLOCK_BYTES_MIN: u64 = 64 << 10;
/// Blocks of a file at most: a very large one has larger blocks.
const BLOCKS_MAX: u64 = 1 << 16;
/// Memory for what is known of all files: 16 GiB of content in the smallest blocks.
const KNOWN_BYTES_MAX: usize = 8 << 20;
/// What an entry takes beside its blocks, about.
const ENTRY_BYTES: usize = 256;

/// What was found of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Its bytes.
    pub size: u64,
    /// Its hash.
    pub hash: Hash,
    /// Bytes that were read for it.
    pub read: u64,
}

/// The version of a file that was hashed last.
struct Known {
    object: ObjectId,
    /// As it was before it was read.
    stat: Stat,
    blocks: Vec<ChainingValue>,
    /// When it was put here.
    turn: u64,
}

impl Known {
    fn bytes(&self) -> usize {
        self.blocks.len() * size_of::<ChainingValue>() + ENTRY_BYTES
    }
}

/// What is known of the versions that were hashed last: of as many files as 8 MiB have room for.
#[derive(Default)]
pub struct KnownBlocks {
    files: HashMap<Slot, Known>,
    bytes: usize,
    turn: u64,
}

impl KnownBlocks {
    /// Returns size and hash (BLAKE3) of an object's bytes, of a closed epoch; `None`: the object was
    /// removed meanwhile, or `go_on`, which is called before each read with its size, returned
    /// `false`. The bytes do not stay in the page cache.
    ///
    /// Errors: as [`Layers::hash`].
    pub fn hash(
        &mut self,
        layers: &Layers,
        id: ObjectId,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> StoreResult<Option<Hashed>> {
        let file = layers.open(id)?;
        // A removed object takes space until it is closed.
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
    ) -> SysResult<Option<Hashed>> {
        let stat = sys::stat_fd(file)?;
        if stat.size < LARGE_MIN_BYTES || id.origin != ObjectOrigin::Cloned {
            let found = hash_file(file, &Hashers::default(), true, go_on)?;
            return Ok(found.map(|(size, hash)| Hashed {
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
        self.keep(Known {
            object: id,
            stat,
            blocks,
            turn: 0,
        });
        Ok(Some(Hashed {
            size: stat.size,
            hash,
            read,
        }))
    }

    /// For each block of a file the chaining value, if it is a block of the version before too.
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
            // The last block, if it is short, is one of both only where both end.
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

    /// Keeps what is known, in place of that of an older version, and forgets what was not used for
    /// longest.
    fn keep(&mut self, known: Known) {
        self.turn += 1;
        self.bytes += known.bytes();
        let slot = known.object.slot;
        if let Some(before) = self.files.insert(
            slot,
            Known {
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

/// It was not written since, and is the same inode.
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

/// What a block of a file of this size is: a power of two of chunks.
fn block_bytes(size: u64) -> u64 {
    size.div_ceil(BLOCKS_MAX)
        .next_power_of_two()
        .max(BLOCK_BYTES_MIN)
}

/// A number of blocks, of which there are not many.
fn count(blocks: u64) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX)
}

/// Reads those blocks of a file whose chaining value is not known; gives all values, and how many
/// bytes were read.
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
        // It may be within a large block, which is not known then.
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
            // Nobody makes an object shorter.
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

/// The hash of a file of more than one block.
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

/// The left half of a tree is as large a power of two as leaves something to the right one.
fn left_blocks(blocks: usize) -> usize {
    blocks.div_ceil(2).next_power_of_two()
}

impl std::fmt::Debug for KnownBlocks {
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
