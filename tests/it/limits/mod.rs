//! Much of everything: each limit works, or fails with the errno that docs/semantics.md names, in
//! bounded memory. `CKPTFS_LONG=1` takes the full sizes.

mod descriptors;
mod files;
mod many;
mod paths;

use crate::common::random::is_long;
use crate::mounted::support;

/// A size in the short form, and in the long one.
fn size(short: usize, long: usize) -> usize {
    if is_long() { long } else { short }
}

/// Resident memory of the daemon in bytes; printed.
fn rss(mount: &crate::common::Mount, when: &str) -> u64 {
    let rss = mount.stats()["rss_bytes"].as_u64().expect("rss_bytes");
    eprintln!("{when}: the daemon has {} MiB", rss >> 20);
    rss
}
