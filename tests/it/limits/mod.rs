//! Limits on counts and sizes: each operation succeeds, or fails with the errno in
//! docs/semantics.md, in bounded memory. `CKPTFS_LONG=1` selects the full sizes.

mod descriptors;
mod files;
mod many;
mod paths;

use crate::common::random::is_long;
use crate::mounted::support;

/// Returns the size for the short or the long run.
fn size(short: usize, long: usize) -> usize {
    if is_long() { long } else { short }
}

/// Returns the resident memory of the daemon in bytes, and prints it.
fn rss(mount: &crate::common::Mount, when: &str) -> u64 {
    let rss = mount.stats()["rss_bytes"].as_u64().expect("rss_bytes");
    eprintln!("{when}: the daemon has {} MiB", rss >> 20);
    rss
}
