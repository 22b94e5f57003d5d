//! Incompressible data, and free space.

use std::fs::File;
use std::path::Path;

/// Returns incompressible bytes, different for each seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Returns the free bytes of the filesystem after a sync.
pub fn free(dir: &Path) -> u64 {
    rustix::fs::syncfs(File::open(dir).unwrap()).unwrap();
    let stat = rustix::fs::statvfs(dir).unwrap();
    stat.f_bfree * stat.f_frsize
}
