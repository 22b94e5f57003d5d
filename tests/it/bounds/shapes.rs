//! The trees of sy's benchmarks, as described in its tables. Shared with `benches/seeds`.
#![allow(dead_code)]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// A tree of a certain shape.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The name in sy's tables.
    pub name: &'static str,
    /// Fills an empty directory.
    pub make: fn(&Path),
}

/// 100 files of about ten bytes.
pub const SMALL_100: Shape = Shape {
    name: "100 Small Files (each ~10 bytes)",
    make: |dir| small(dir, 100),
};
/// 1,000 files of about ten bytes.
pub const SMALL_1000: Shape = Shape {
    name: "1000 Small Files",
    make: |dir| small(dir, 1000),
};
/// 1,000 files of 1 to 10 KB.
pub const SMALL_1000_KB: Shape = Shape {
    name: "1000 small files (1-10KB)",
    make: |dir| {
        (0..1000).for_each(|number| {
            write(
                &dir.join(format!("file_{number}")),
                1000 + number * 9,
                number,
            )
        })
    },
};
/// 100 files of 100 KB.
pub const MEDIUM_100: Shape = Shape {
    name: "100 medium files (100KB)",
    make: |dir| {
        (0..100).for_each(|number| write(&dir.join(format!("file_{number}")), 100_000, number))
    },
};
/// One file of 50 MB.
pub const LARGE_50: Shape = Shape {
    name: "50MB Large File",
    make: |dir| write(&dir.join("large"), 50 << 20, 1),
};
/// One file of 100 MB.
pub const LARGE_100: Shape = Shape {
    name: "1 large file (100MB)",
    make: |dir| write(&dir.join("large"), 100 << 20, 1),
};
/// Five levels of directories with 200 files in total.
pub const DEEP_5: Shape = Shape {
    name: "Deep tree (5 levels, 200 files)",
    make: |dir| deep(dir, 5, 40),
};
/// Fifty levels with one file in each.
pub const DEEP_50: Shape = Shape {
    name: "50-level deep path",
    make: |dir| deep(dir, 50, 1),
};

/// Bytes of a change in a large file.
pub const DELTA_BYTES: usize = 1 << 20;

fn small(dir: &Path, files: usize) {
    (0..files).for_each(|number| {
        fs::write(
            dir.join(format!("file_{number}.txt")),
            format!("content {number}"),
        )
        .expect("a file can be written")
    });
}

fn deep(dir: &Path, levels: usize, files: usize) {
    let mut at = dir.to_owned();
    for level in 0..levels {
        at.push(format!("level_{level}"));
        fs::create_dir(&at).expect("a directory can be created");
        (0..files)
            .for_each(|number| write(&at.join(format!("file_{number}")), 100 + number, number));
    }
}

/// Writes a file of `bytes` pseudorandom bytes.
pub fn write(path: &Path, bytes: usize, seed: usize) {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut block = vec![0; bytes.clamp(1, 1 << 20)];
    for chunk in block.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    let mut file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut left = bytes;
    while left > 0 {
        let now = left.min(block.len());
        file.write_all(&block[..now])
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        left -= now;
    }
}

/// Writes [`DELTA_BYTES`] in the middle of the large file, different in each round.
pub fn change(dir: &Path, round: usize) {
    use std::os::unix::fs::FileExt;
    let path = dir.join("large");
    let file = File::options()
        .write(true)
        .open(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let block: Vec<u8> = (0..DELTA_BYTES)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ round.wrapping_mul(97)) as u8)
        .collect();
    file.write_all_at(&block, ((round % 40) as u64 + 5) << 20)
        .expect("a file can be written");
}

/// Overwrites the beginning of every file below a directory; returns the number of files.
pub fn touch_all(dir: &Path, round: usize) -> usize {
    use std::os::unix::fs::FileExt;
    let mut touched = 0;
    for entry in fs::read_dir(dir).expect("it can be listed") {
        let entry = entry.expect("it can be listed");
        let kind = entry.file_type().expect("its metadata can be read");
        if kind.is_dir() && entry.file_name() != ".ckptfs" {
            touched += touch_all(&entry.path(), round);
        } else if kind.is_file() {
            let file = File::options()
                .write(true)
                .open(entry.path())
                .expect("a file can be opened");
            file.write_all_at(format!("{:08}", round % 100_000_000).as_bytes(), 0)
                .expect("a file can be written");
            touched += 1;
        }
    }
    touched
}
