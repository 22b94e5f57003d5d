//! The hash from blocks equals the hash of the file, for any reused blocks.

use std::os::unix::fs::FileExt;

use super::*;
use crate::layout::Layout;
use ckptfs_api::Epoch;

const BLOCK: usize = BLOCK_BYTES_MIN as usize;

fn noise(size: usize) -> Vec<u8> {
    (0..size as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

fn file_with(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// A store of which only the layers are used.
struct Bench {
    _dir: tempfile::TempDir,
    layers: Layers,
    known: BlockHashCache,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(File::open(dir.path()).unwrap(), true).unwrap();
        Bench {
            layers: Layers::new(&layout).unwrap(),
            _dir: dir,
            known: BlockHashCache::default(),
        }
    }

    /// Returns the result for a new object of this slot with this content.
    fn hashed(&mut self, slot: u64, origin: ObjectOrigin, bytes: &[u8]) -> HashResult {
        let id = self
            .layers
            .next_object(Epoch(1), Slot(slot), origin)
            .unwrap();
        self.layers
            .create(id)
            .unwrap()
            .write_all_at(bytes, 0)
            .unwrap();
        self.known
            .hash(&self.layers, id, |_| true)
            .unwrap()
            .unwrap()
    }
}

#[test]
fn the_hash_of_the_blocks_is_that_of_the_file() {
    let mut sizes = vec![BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1];
    sizes.extend((3..=9).flat_map(|blocks| {
        [
            blocks * BLOCK,
            blocks * BLOCK + 1,
            blocks * BLOCK + 1023,
            blocks * BLOCK - 1,
        ]
    }));
    let all = noise(10 * BLOCK);
    for size in sizes {
        let (bytes, file) = (&all[..size], file_with(&all[..size]));
        let nothing = vec![None; size.div_ceil(BLOCK)];
        let (values, read) = read_blocks(&file, size as u64, &nothing, |_| true)
            .unwrap()
            .unwrap();
        assert_eq!(
            (root(&values), read),
            (Some(*blake3::hash(bytes).as_bytes()), size as u64),
            "{size} bytes"
        );
        // Every pattern of known blocks leads to the same result, and only the others are read.
        for pattern in [0b1_u32, 0b10, 0b101, 0b110_1101, 0b1_0000_0000, u32::MAX] {
            let is_known = |number: usize| pattern & (1 << number) != 0;
            let known: Vec<_> = values
                .iter()
                .enumerate()
                .map(|(number, value)| is_known(number).then_some(*value))
                .collect();
            let unknown: usize = bytes
                .chunks(BLOCK)
                .enumerate()
                .filter(|(number, _)| !is_known(*number))
                .map(|(_, block)| block.len())
                .sum();
            let mut asked = 0;
            let again = read_blocks(&file, size as u64, &known, |bytes| {
                asked += bytes;
                bytes <= READ_BYTES as u64
            });
            assert_eq!(
                again,
                Ok(Some((values.clone(), unknown as u64))),
                "{size} bytes, {pattern:b}"
            );
            assert_eq!(asked, unknown as u64);
        }
    }
}

#[test]
fn an_object_of_any_size_has_the_hash_of_its_bytes() {
    let mut bench = Bench::new();
    let large = LARGE_MIN_BYTES as usize;
    let all = noise(2 * large);
    for size in [
        0,
        1,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        large - 1,
        large,
        large + 1,
        large + BLOCK - 1,
        large + BLOCK,
        large + BLOCK + 1,
        2 * large,
    ] {
        for origin in [ObjectOrigin::Cloned, ObjectOrigin::Moved] {
            let found = bench.hashed(7, origin, &all[..size]);
            let size = size as u64;
            assert_eq!(
                found,
                HashResult {
                    size,
                    hash: *blake3::hash(&all[..size as usize]).as_bytes(),
                    read: size
                },
                "{size} bytes"
            );
        }
    }
    let id = bench
        .layers
        .next_object(Epoch(1), Slot(7), ObjectOrigin::Cloned)
        .unwrap();
    bench
        .layers
        .create(id)
        .unwrap()
        .write_all_at(&all, 0)
        .unwrap();
    assert_eq!(
        bench.known.hash(&bench.layers, id, |_| false).unwrap(),
        None,
        "it shall end"
    );
}

/// A very large file has larger blocks, which are read in parts.
#[test]
fn blocks_grow_with_the_file() {
    for (size, block) in [
        (0, BLOCK_BYTES_MIN),
        (4 << 30, BLOCK_BYTES_MIN),
        ((4 << 30) + 1, 2 * BLOCK_BYTES_MIN),
        (1 << 40, 16 << 20),
        (1 << 62, 1 << 46),
    ] {
        assert_eq!(block_bytes(size), block, "{size}");
        assert!(size.div_ceil(block) <= BLOCKS_MAX);
    }
    // 64 GiB in blocks of 1 MiB, two of which are read.
    let (size, block) = (64 << 30, 1 << 20);
    let file = file_with(&noise(block));
    file.set_len(size).unwrap();
    let mut known = vec![Some([7; 32]); 1 << 16];
    (known[0], known[1]) = (None, None);
    let (values, read) = read_blocks(&file, size, &known, |bytes| bytes <= READ_BYTES as u64)
        .unwrap()
        .unwrap();
    let bytes = [noise(block), vec![0; block]].concat();
    assert_eq!((read, values.len(), values[2]), (2 << 20, 1 << 16, [7; 32]));
    assert_eq!(root(&values[..2]), Some(*blake3::hash(&bytes).as_bytes()));
}

#[test]
fn what_is_known_has_its_bound() {
    let mut known = BlockHashCache::default();
    let object = |slot| ObjectId {
        epoch: Epoch(1),
        slot: Slot(slot),
        serial: 0,
        origin: ObjectOrigin::Cloned,
    };
    let stat = sys::stat_fd(tempfile::tempfile().unwrap()).unwrap();
    let blocks = BLOCKS_MAX as usize;
    for slot in 0..6 {
        // One version after the other, and one that is used repeatedly.
        for slot in [slot, 0, slot] {
            known.keep(HashedVersion {
                object: object(slot),
                stat,
                blocks: vec![[0; 32]; blocks],
                turn: 0,
            });
        }
        assert_eq!(
            known.bytes,
            known
                .files
                .values()
                .map(HashedVersion::bytes)
                .sum::<usize>()
        );
        assert!(known.bytes <= KNOWN_BYTES_MAX);
    }
    let mut slots: Vec<u64> = known.files.keys().map(|slot| slot.0).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 4, 5]);
}
