//! BLAKE3 hashes of whole files, read sequentially in blocks.
//!
//! One thread hashes unless more are requested; a block is then large enough for all of them
//! (BLAKE3 is a tree, so its parts can be hashed in parallel). Files are read, not mapped: an
//! unreadable or truncated page of a mapping kills the process (SIGBUS), while read(2) returns an
//! error.

use std::fmt;
use std::fs::File;

use ckptfs_sys::{self as sys, SysResult};

/// A hash: 32 bytes of unkeyed BLAKE3.
pub type Hash = [u8; 32];

/// Bytes per read with one thread.
pub const BLOCK_BYTES: usize = 256 << 10;
/// Bytes per read with several threads.
const WIDE_BLOCK_BYTES: usize = 8 << 20;
/// Maximum number of threads.
pub const THREADS_MAX: usize = 64;

/// The threads that hash.
#[derive(Default)]
pub struct HashPool(Option<rayon_core::ThreadPool>);

impl HashPool {
    /// Starts this many threads. With 0 or 1, or if they cannot start, the calling thread hashes.
    pub fn new(threads: usize) -> HashPool {
        if threads <= 1 {
            return HashPool(None);
        }
        let started = |_| {
            // Best effort: without the I/O class the threads only have a higher priority.
            let _ = sys::set_thread_io_idle();
        };
        let pool = rayon_core::ThreadPoolBuilder::new()
            .num_threads(threads.min(THREADS_MAX))
            .start_handler(started)
            .build();
        HashPool(
            pool.inspect_err(|error| tracing::warn!(%error, "files are hashed by one thread"))
                .ok(),
        )
    }

    fn block_bytes(&self) -> usize {
        if self.0.is_some() {
            WIDE_BLOCK_BYTES
        } else {
            BLOCK_BYTES
        }
    }
}

impl fmt::Debug for HashPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hashers")
            .field(
                &self
                    .0
                    .as_ref()
                    .map(rayon_core::ThreadPool::current_num_threads),
            )
            .finish()
    }
}

/// A file being hashed.
#[derive(Default)]
pub struct FileHasher {
    hasher: blake3::Hasher,
    block: Vec<u8>,
    offset: u64,
}

impl FileHasher {
    /// Creates the state before the first read.
    pub fn new() -> FileHasher {
        FileHasher::default()
    }

    /// Reads the next block, and returns size and hash at the end of the file. With `forget` the
    /// pages read for it are dropped from the page cache.
    ///
    /// # Errors
    /// Those of pread(2): EIO if the disk cannot read the data.
    pub fn step(
        &mut self,
        file: &File,
        hashers: &HashPool,
        forget: bool,
    ) -> SysResult<Option<(u64, Hash)>> {
        let wanted = hashers.block_bytes();
        if self.block.len() != wanted {
            // calloc(3) maps pages on first use: those beyond the end of a small file are not
            // zeroed.
            self.block = vec![0; wanted];
        }
        let read = sys::read_full_at(file, &mut self.block, self.offset)?;
        let bytes = self.block.get(..read).unwrap_or_default();
        match &hashers.0 {
            Some(pool) => pool.install(|| self.hasher.update_rayon(bytes)),
            None => self.hasher.update(bytes),
        };
        if forget {
            sys::drop_cached(file, self.offset, read as u64);
        }
        self.offset = self.offset.saturating_add(read as u64);
        Ok((read < wanted).then(|| (self.offset, *self.hasher.finalize().as_bytes())))
    }

    /// Returns the number of bytes read.
    pub fn done(&self) -> u64 {
        self.offset
    }
}

impl fmt::Debug for FileHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashing")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// Returns size and hash of a file. `go_on` is called before each block with its size; `false` ends
/// the call with `None`.
///
/// # Errors
/// As [`FileHasher::step`].
pub fn hash_file(
    file: &File,
    hashers: &HashPool,
    forget: bool,
    mut go_on: impl FnMut(u64) -> bool,
) -> SysResult<Option<(u64, Hash)>> {
    let mut hashing = FileHasher::new();
    while go_on(hashers.block_bytes() as u64) {
        if let Some(found) = hashing.step(file, hashers, forget)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_threads_as_one_find_the_same_hash() {
        let mut file = tempfile::tempfile().expect("file");
        for size in [
            0,
            1,
            BLOCK_BYTES,
            BLOCK_BYTES + 1,
            WIDE_BLOCK_BYTES,
            WIDE_BLOCK_BYTES + 4097,
        ] {
            let bytes: Vec<u8> = (0..size).map(|index| (index % 253) as u8).collect();
            file.set_len(0).expect("truncate");
            std::io::Seek::rewind(&mut file).expect("seek");
            std::io::Write::write_all(&mut file, &bytes).expect("write");
            let expected = Some((size as u64, *blake3::hash(&bytes).as_bytes()));
            for threads in [0, 1, 2, 3] {
                assert_eq!(
                    hash_file(&file, &HashPool::new(threads), false, |_| true),
                    Ok(expected),
                    "{threads} threads, {size} bytes"
                );
            }
        }
        assert_eq!(
            hash_file(&file, &HashPool::default(), true, |_| false),
            Ok(None)
        );
    }
}
