//! A run: one immutable file with the undo records of some epochs, and the other entries of each
//! change, sorted by key and epoch.
//!
//! ```text
//! file     blocks, contents, tail
//! block    uint: bytes of the entries if they are compressed (Zstandard), or 0; the entries; the first 8 B of the BLAKE3 of the preceding
//! entry    uint: bytes that its key shares with that of the entry before (0 for the first of a block), uint: bytes of its key after those,
//!          uint epoch - first, uint: bytes of the value, these bytes of the key, the value
//! contents uint first epoch, uint last epoch, uint epochs with records, uint entries, list of blocks, list of bytes: the filter
//!          a block: uint length of its part of the file, uint length of its first key, uint epoch of that - first, the key
//! tail     "ckptrun2", u64 offset of the contents, 32 B BLAKE3 of everything from there to here
//! ```
//! A key is that of `keys` without the epoch. A value is encoded by `codec::encode_before`; that of
//! a place is the place, that of an object its size as uint.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use zstd::bulk::{Compressor, Decompressor};

use super::super::keys;
use super::filter::{Filter, Probe};
use crate::error::{StoreError, StoreResult};
use crate::journal::codec::{PAYLOAD_MAX, decode_uint, encode_uint};
use ckptfs_api::Epoch;
use ckptfs_sys::fault::{self, CallKind};
use ckptfs_sys::lock::Mutex;

/// A block ends with the entry that reaches this size before compression: it is read and decoded
/// for one entry.
const BLOCK_BYTES: usize = 1024;
/// The compression level of blocks.
const LEVEL: i32 = 3;
/// Bound on the entries of a block: the largest is one entry, of a record that fits into a frame.
const ENTRIES_MAX: usize = 2 * PAYLOAD_MAX;
const SUM: usize = 8;
const MAGIC: &[u8; 8] = b"ckptrun1";
const TAIL: usize = 48;
/// Bytes of one write to the file.
const WRITE_BYTES: usize = 1 << 18;

/// Location of a run's bytes.
pub enum RunSource {
    File(File),
    Memory(Arc<Vec<u8>>),
}

impl RunSource {
    fn len(&self) -> io::Result<u64> {
        match self {
            RunSource::File(file) => Ok(file.metadata()?.len()),
            RunSource::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    fn read(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        match self {
            RunSource::File(file) => {
                fault::check(CallKind::Read)?;
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, at)?;
                Ok(bytes)
            }
            RunSource::Memory(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX);
                let part = bytes
                    .get(from..from.saturating_add(length))
                    .ok_or(io::ErrorKind::UnexpectedEof)?;
                Ok(part.to_vec())
            }
        }
    }
}

struct Block {
    key: Vec<u8>,
    epoch: Epoch,
    at: u64,
    length: usize,
}

/// An open run.
pub struct Run {
    pub number: u64,
    pub first: Epoch,
    pub last: Epoch,
    /// Number of epochs with records, or a few more.
    pub epochs: u64,
    pub entries: u64,
    pub bytes: u64,
    source: RunSource,
    blocks: Vec<Block>,
    filter: Filter,
}

fn sum(bytes: &[u8]) -> [u8; SUM] {
    let mut sum = [0; SUM];
    blake3::Hasher::new()
        .update(bytes)
        .finalize_xof()
        .fill(&mut sum);
    sum
}

/// Destination of a run.
pub enum RunSink {
    File(File),
    Memory(Vec<u8>),
}

/// Writes a run.
pub struct RunBuilder {
    out: RunSink,
    buffer: Vec<u8>,
    first: Epoch,
    last: Epoch,
    epochs: u64,
    entries: u64,
    /// Probes of each key and each group of keys.
    keys: Vec<Probe>,
    blocks: Vec<Block>,
    block: Vec<u8>,
    compressor: Option<Compressor<'static>>,
    /// Key of the last entry.
    key: Vec<u8>,
    written: u64,
}

impl RunBuilder {
    /// Creates a builder for records between these epochs, `epochs` of which have records.
    pub fn new(out: RunSink, first: Epoch, last: Epoch, epochs: u64) -> RunBuilder {
        RunBuilder {
            out,
            buffer: Vec::new(),
            first,
            last,
            epochs,
            entries: 0,
            keys: Vec::new(),
            blocks: Vec::new(),
            block: Vec::new(),
            compressor: None,
            key: Vec::new(),
            written: 0,
        }
    }

    /// Appends an entry.
    pub fn add(&mut self, key: &[u8], epoch: Epoch, value: &[u8]) -> io::Result<()> {
        let same = self.entries > 0 && self.key == key;
        if !same {
            let group = keys::group(key);
            if group.is_some() && keys::group(&self.key) != group {
                self.keys.extend(group.map(Probe::of));
            }
            // Objects are looked up only by hash.
            if !keys::is_content(key) {
                self.keys.push(Probe::of(key));
            }
        }
        let shared = if self.block.is_empty() {
            self.blocks.push(Block {
                key: key.to_vec(),
                epoch,
                at: self.written + self.buffer.len() as u64,
                length: 0,
            });
            0
        } else {
            self.key.iter().zip(key).take_while(|(a, b)| a == b).count()
        };
        let rest = key.get(shared..).unwrap_or_default();
        for number in [
            shared as u64,
            rest.len() as u64,
            epoch.0 - self.first.0,
            value.len() as u64,
        ] {
            encode_uint(number, &mut self.block);
        }
        self.block.extend_from_slice(rest);
        self.block.extend_from_slice(value);
        self.key.truncate(shared);
        self.key.extend_from_slice(rest);
        self.entries += 1;
        if self.block.len() >= BLOCK_BYTES {
            self.end_block()
        } else {
            Ok(())
        }
    }

    fn end_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(LEVEL)?),
        };
        let compressed = compressor.compress(&self.block)?;
        let (length, bytes) = if compressed.len() < self.block.len() {
            (self.block.len(), &compressed)
        } else {
            (0, &self.block)
        };
        let at = self.buffer.len();
        encode_uint(length as u64, &mut self.buffer);
        self.buffer.extend_from_slice(bytes);
        let sum = sum(self.buffer.get(at..).unwrap_or_default());
        self.buffer.extend_from_slice(&sum);
        if let Some(block) = self.blocks.last_mut() {
            block.length = self.buffer.len() - at;
        }
        self.block.clear();
        if self.buffer.len() >= WRITE_BYTES {
            self.write()
        } else {
            Ok(())
        }
    }

    fn write(&mut self) -> io::Result<()> {
        match &mut self.out {
            RunSink::File(file) => {
                fault::check(CallKind::Write)?;
                file.write_all(&self.buffer)?;
            }
            RunSink::Memory(bytes) => bytes.extend_from_slice(&self.buffer),
        }
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the remaining data. Not durable on return.
    pub fn finish(mut self, number: u64) -> io::Result<Run> {
        self.end_block()?;
        let at = self.written + self.buffer.len() as u64;
        let mut contents = Vec::new();
        for number in [
            self.first.0,
            self.last.0,
            self.epochs,
            self.entries,
            self.blocks.len() as u64,
        ] {
            encode_uint(number, &mut contents);
        }
        for block in &self.blocks {
            for number in [
                block.length as u64,
                block.key.len() as u64,
                block.epoch.0 - self.first.0,
            ] {
                encode_uint(number, &mut contents);
            }
            contents.extend_from_slice(&block.key);
        }
        let filter = Filter::of(&self.keys);
        encode_uint(filter.bytes().len() as u64, &mut contents);
        contents.extend_from_slice(filter.bytes());
        contents.extend_from_slice(MAGIC);
        contents.extend_from_slice(&at.to_le_bytes());
        let hash = blake3::hash(&contents);
        self.buffer.extend_from_slice(&contents);
        self.buffer.extend_from_slice(hash.as_bytes());
        self.write()?;
        let source = match self.out {
            RunSink::File(file) => RunSource::File(file),
            RunSink::Memory(bytes) => RunSource::Memory(Arc::new(bytes)),
        };
        let RunBuilder {
            first,
            last,
            epochs,
            entries,
            blocks,
            written: bytes,
            ..
        } = self;
        Ok(Run {
            number,
            first,
            last,
            epochs,
            entries,
            bytes,
            source,
            blocks,
            filter,
        })
    }
}

/// Decodes the entries of a block without its checksum.
fn entries(mut bytes: &[u8]) -> Option<Vec<u8>> {
    match usize::try_from(uint(&mut bytes)?).ok()? {
        0 => Some(bytes.to_vec()),
        length if length > ENTRIES_MAX => None,
        length => decompress(bytes, length)
            .ok()
            .filter(|entries| entries.len() == length),
    }
}

/// Creating a decompressor takes longer than using it. One is shared, and a thread that finds it in
/// use creates another.
fn decompress(bytes: &[u8], length: usize) -> io::Result<Vec<u8>> {
    static KEPT: Mutex<Option<Decompressor<'static>>> = Mutex::new(None);
    let taken = KEPT.lock().take();
    let mut decompressor = taken.map_or_else(Decompressor::new, Ok)?;
    let entries = decompressor.decompress(bytes, length);
    *KEPT.lock() = Some(decompressor);
    entries
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(taken)
}

fn uint(bytes: &mut &[u8]) -> Option<u64> {
    decode_uint(bytes).ok()
}

impl Run {
    /// Opens a run written by [`RunBuilder::finish`].
    ///
    /// Errors: `Io`; `IndexDamaged`: not a run, or incomplete.
    pub fn open(number: u64, source: RunSource) -> StoreResult<Run> {
        let failed = |error| StoreError::io("read", "index/runs")(error);
        let bytes = source.len().map_err(failed)?;
        let tail_at = bytes
            .checked_sub(TAIL as u64)
            .ok_or(StoreError::IndexDamaged)?;
        let tail = source.read(tail_at, TAIL).map_err(failed)?;
        let at = tail
            .strip_prefix(MAGIC)
            .and_then(|rest| rest.first_chunk::<8>())
            .map(|at| u64::from_le_bytes(*at));
        let at = at
            .filter(|at| *at <= tail_at)
            .ok_or(StoreError::IndexDamaged)?;
        let length = usize::try_from(bytes - at).map_err(|_| StoreError::IndexDamaged)?;
        let contents = source.read(at, length).map_err(failed)?;
        let (contents, hash) = contents
            .split_last_chunk::<32>()
            .ok_or(StoreError::IndexDamaged)?;
        if blake3::hash(contents).as_bytes() != hash {
            return Err(StoreError::IndexDamaged);
        }
        Run::parse(number, contents, at, bytes)
            .map(|run| Run { source, ..run })
            .ok_or(StoreError::IndexDamaged)
    }

    fn parse(number: u64, mut rest: &[u8], end: u64, bytes: u64) -> Option<Run> {
        let rest = &mut rest;
        let (first, last, epochs, entries, count) = (
            uint(rest)?,
            uint(rest)?,
            uint(rest)?,
            uint(rest)?,
            uint(rest)?,
        );
        let (mut blocks, mut at) = (Vec::new(), 0u64);
        for _ in 0..count {
            let (length, key, epoch) = (uint(rest)?, uint(rest)?, uint(rest)?);
            let key = take(rest, key)?.to_vec();
            blocks.push(Block {
                key,
                epoch: Epoch(first.checked_add(epoch)?),
                at,
                length: usize::try_from(length).ok()?,
            });
            at = at.checked_add(length).filter(|at| *at <= end)?;
        }
        let length = uint(rest)?;
        let filter = Filter::from_bytes(take(rest, length)?);
        (first <= last && at == end).then_some(())?;
        let source = RunSource::Memory(Arc::default());
        Some(Run {
            number,
            first: Epoch(first),
            last: Epoch(last),
            epochs,
            entries,
            bytes,
            source,
            blocks,
            filter,
        })
    }

    /// Returns whether the run may have a record of this epoch.
    pub fn covers(&self, epoch: Epoch) -> bool {
        (self.first..=self.last).contains(&epoch)
    }

    /// Returns `false` only if no entry has this key, or this prefix if it is a group.
    pub fn may_have(&self, probe: Probe) -> bool {
        self.filter.may_have(probe)
    }

    /// Makes the file durable.
    pub fn sync(&self) -> io::Result<()> {
        match &self.source {
            RunSource::File(file) => Ok(ckptfs_sys::fdatasync(file)?),
            RunSource::Memory(_) => Ok(()),
        }
    }

    /// Reads the entries of a block.
    fn read(&self, number: usize) -> StoreResult<Vec<u8>> {
        let block = self.blocks.get(number).ok_or(StoreError::IndexDamaged)?;
        let mut bytes = self
            .source
            .read(block.at, block.length)
            .map_err(StoreError::io("read", "index/runs"))?;
        let length = bytes
            .len()
            .checked_sub(SUM)
            .ok_or(StoreError::IndexDamaged)?;
        let found = bytes.split_off(length);
        let read = || entries(&bytes);
        let entries = (sum(&bytes) == found.as_slice()).then(read).flatten();
        entries.ok_or(StoreError::IndexDamaged)
    }

    /// Reads all blocks and verifies their checksums.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn check(&self) -> StoreResult<()> {
        (0..self.blocks.len()).try_for_each(|number| self.read(number).map(drop))
    }
}

/// Recently read blocks, by run number and block number.
pub type BlockCache = quick_cache::sync::Cache<(u64, usize), Arc<Vec<u8>>, BlockWeighter>;

/// The weight of a block in the cache.
#[derive(Clone)]
pub struct BlockWeighter;

impl quick_cache::Weighter<(u64, usize), Arc<Vec<u8>>> for BlockWeighter {
    fn weight(&self, _: &(u64, usize), block: &Arc<Vec<u8>>) -> u64 {
        block.len() as u64 + 64
    }
}

/// Iterates over the entries of a run in order.
pub struct RunCursor<'a> {
    run: &'a Run,
    /// Cache for the blocks read; `None` for a single pass.
    cache: Option<&'a BlockCache>,
    block: Arc<Vec<u8>>,
    /// Offset of the next entry in the block.
    at: usize,
    next_block: usize,
    /// The key of the current entry.
    pub key: Vec<u8>,
    /// The epoch of the current entry.
    pub epoch: Epoch,
    /// The range of its value in the block.
    value: std::ops::Range<usize>,
}

impl<'a> RunCursor<'a> {
    /// Starts before the first entry.
    pub fn new(run: &'a Run, cache: Option<&'a BlockCache>) -> RunCursor<'a> {
        RunCursor {
            run,
            cache,
            block: Arc::default(),
            at: 0,
            next_block: 0,
            key: Vec::new(),
            epoch: run.first,
            value: 0..0,
        }
    }

    /// Returns the value of the current entry.
    pub fn value(&self) -> &[u8] {
        self.block.get(self.value.clone()).unwrap_or_default()
    }

    /// Moves to the first entry at or after this key and epoch; `false` at the end.
    pub fn seek(&mut self, key: &[u8], epoch: Epoch) -> StoreResult<bool> {
        let after = self
            .run
            .blocks
            .partition_point(|block| (block.key.as_slice(), block.epoch) <= (key, epoch));
        self.enter(after.saturating_sub(1))?;
        while self.next()? {
            if (self.key.as_slice(), self.epoch) >= (key, epoch) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns epoch and value of the last entry of this key.
    pub fn last_of(&mut self, key: &[u8]) -> StoreResult<Option<(Epoch, Vec<u8>)>> {
        let after = self
            .run
            .blocks
            .partition_point(|block| block.key.as_slice() <= key);
        self.enter(after.saturating_sub(1))?;
        let mut last = None;
        while self.next()? && self.key.as_slice() <= key {
            if self.key == key {
                last = Some((self.epoch, self.value().to_vec()));
            }
        }
        Ok(last)
    }

    fn enter(&mut self, number: usize) -> StoreResult<()> {
        let known = self
            .cache
            .and_then(|cache| cache.get(&(self.run.number, number)));
        self.block = match known {
            Some(block) => block,
            None if number >= self.run.blocks.len() => Arc::default(),
            None => {
                let block = Arc::new(self.run.read(number)?);
                if let Some(cache) = self.cache {
                    cache.insert((self.run.number, number), Arc::clone(&block));
                }
                block
            }
        };
        (self.at, self.next_block) = (0, number + 1);
        self.key.clear();
        Ok(())
    }

    /// Moves to the next entry; `false` at the end.
    pub fn next(&mut self) -> StoreResult<bool> {
        if self.at >= self.block.len() {
            if self.next_block >= self.run.blocks.len() {
                return Ok(false);
            }
            self.enter(self.next_block)?;
        }
        let block = std::mem::take(&mut self.block);
        let parsed = self.parse(&block);
        self.block = block;
        parsed.map(|()| true).ok_or(StoreError::IndexDamaged)
    }

    fn parse(&mut self, block: &[u8]) -> Option<()> {
        let mut rest = block.get(self.at..)?;
        let before = rest.len();
        let (shared, unshared, epoch, length) = (
            uint(&mut rest)?,
            uint(&mut rest)?,
            uint(&mut rest)?,
            uint(&mut rest)?,
        );
        let shared = usize::try_from(shared)
            .ok()
            .filter(|shared| *shared <= self.key.len())?;
        self.key.truncate(shared);
        self.key.extend_from_slice(take(&mut rest, unshared)?);
        self.epoch = Epoch(self.run.first.0.checked_add(epoch)?);
        let value_at = self.at + (before - rest.len());
        take(&mut rest, length)?;
        self.at += before - rest.len();
        self.value = value_at..self.at;
        Some(())
    }
}
