//! Hashes of whole files: BLAKE3, front to back, in blocks.
//!
//! One thread hashes unless more are asked for; then a block is large enough for all of them
//! (BLAKE3 is a tree, so its parts can be hashed at once). Files are read and not mapped: of a
//! mapping, a page that the disk cannot give back, or that a truncation takes away, ends the
//! process (SIGBUS); reading it is an error like others.

use std::fmt;
use std::fs::File;

use crate::sys::{self, SysResult};

/// A hash: 32 bytes of unkeyed BLAKE3.
pub type Hash = [u8; 32];

/// Bytes that one thread reads at once.
pub const BLOCK_BYTES: usize = 256 << 10;
/// Bytes that are read at once for several.
const WIDE_BLOCK_BYTES: usize = 8 << 20;
/// Threads at most.
pub const THREADS_MAX: usize = 64;

/// Who hashes.
#[derive(Default)]
pub struct Hashers(Option<rayon_core::ThreadPool>);

impl Hashers {
    /// So many threads; 0 and 1: the one that calls. Should they not start, it is that one too.
    pub fn new(threads: usize) -> Hashers {
        if threads <= 1 {
            return Hashers(None);
        }
        let started = |_| {
            // Best effort: where the class cannot be set it is merely less polite.
            let _ = sys::set_thread_io_idle();
        };
        let pool = rayon_core::ThreadPoolBuilder::new()
            .num_threads(threads.min(THREADS_MAX))
            .start_handler(started)
            .build();
        Hashers(
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

impl fmt::Debug for Hashers {
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

/// A file that is being hashed.
#[derive(Default)]
pub struct Hashing {
    hasher: blake3::Hasher,
    block: Vec<u8>,
    offset: u64,
}

impl Hashing {
    /// Nothing is read yet.
    pub fn new() -> Hashing {
        Hashing::default()
    }

    /// Reads the next block; the size and the hash of the file when it has ended. `forget`: what
    /// was read for it leaves the page cache.
    ///
    /// # Errors
    /// Those of pread(2): EIO if the disk cannot give the bytes back.
    pub fn step(
        &mut self,
        file: &File,
        hashers: &Hashers,
        forget: bool,
    ) -> SysResult<Option<(u64, Hash)>> {
        let wanted = hashers.block_bytes();
        if self.block.len() != wanted {
            // calloc(3) maps pages on first use: those beyond the end of a small file are not zeroed.
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

    /// Bytes that were read.
    pub fn done(&self) -> u64 {
        self.offset
    }
}

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashing")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// Size and hash of a file; `go_on` is asked before each block, with its size, and ends it with
/// `None`.
///
/// # Errors
/// As [`Hashing::step`].
pub fn hash_file(
    file: &File,
    hashers: &Hashers,
    forget: bool,
    mut go_on: impl FnMut(u64) -> bool,
) -> SysResult<Option<(u64, Hash)>> {
    let mut hashing = Hashing::new();
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
                    hash_file(&file, &Hashers::new(threads), false, |_| true),
                    Ok(expected),
                    "{threads} threads, {size} bytes"
                );
            }
        }
        assert_eq!(
            hash_file(&file, &Hashers::default(), true, |_| false),
            Ok(None)
        );
    }
}
