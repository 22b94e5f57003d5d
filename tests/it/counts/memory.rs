//! Memory of the daemon for each inode that the kernel knows.

use std::fs;

use crate::common::{Fs, Io, Variant, skip};
use crate::counts::rig::Counted;
use crate::counts::tree;

/// Files of the tree; `benches` measures with 250,000.
const FILES: usize = 20_000;
/// Files in one directory.
const PER_DIR: usize = 500;
/// What the bound of the project is at 250,000 files; here it has a margin for a table that has just grown, and for a debug build.
const BYTES_PER_INODE_MAX: u64 = 200 * 2;

#[test]
fn an_inode_that_the_kernel_knows_costs_little_and_nothing_once_it_is_gone() {
    let variant = Variant { fs: Fs::Xfs, io: Io::Passthrough };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let mut rig = Counted::start(variant, |root| {
        for dir in 0..FILES / PER_DIR {
            let dir = root.join(format!("a-directory-{dir:03}"));
            fs::create_dir(&dir).expect("a directory");
            (0..PER_DIR).for_each(|file| fs::write(dir.join(format!("a-file-{file:05}")), "").expect("a file"));
        }
    });
    let before = rig.stats();
    assert_eq!(tree::stat_walk(rig.path()), FILES);
    let known = rig.stats();
    let inodes = known.inodes - before.inodes;
    assert!(inodes >= FILES as u64, "{inodes} inodes are known");
    let each = known.rss_bytes.saturating_sub(before.rss_bytes) / inodes;
    assert!(
        each <= BYTES_PER_INODE_MAX,
        "{each} bytes per inode: {} bytes with {}, {} with {}",
        before.rss_bytes,
        before.inodes,
        known.rss_bytes,
        known.inodes
    );
    for entry in fs::read_dir(rig.path()).expect("a listing") {
        fs::remove_dir_all(entry.expect("an entry").path()).expect("rm -rf");
    }
    // What is unlinked the kernel forgets at once, but FORGET is no request that can be waited for.
    crate::common::mount::wait_until("the inodes that are gone are forgotten", 60, || rig.stats().inodes <= before.inodes + 2);
    println!("{each} bytes per inode");
}
