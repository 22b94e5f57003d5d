//! Resources of the daemon: descriptors, memory, inodes cached by the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::Rig;
use crate::common::wait::{seen, wait_until};

/// Inodes that the kernel may cache after dropping its caches: the root and one in use.
const INODES_MAX: u64 = 2;
/// Sockets of an idle daemon: the listening one and the one to the holder.
const SOCKETS: usize = 2;

/// Resources of the daemon while the mount is idle and the kernel's caches are empty.
pub struct DaemonUsage {
    /// Resident set size.
    pub rss_kb: u64,
    /// Descriptors by target.
    open: BTreeMap<String, usize>,
}

impl DaemonUsage {
    /// Measures the current level.
    pub fn of(rig: &Rig) -> DaemonUsage {
        wait_until("no file is open, and the kernel knows no inode", || {
            // Unused inodes and dentries: the daemon gets a FORGET for each.
            fs::write("/proc/sys/vm/drop_caches", "2").expect("root may drop caches");
            let stats = rig.mount.stats();
            let number = |key: &str| {
                stats[key]
                    .as_u64()
                    .unwrap_or_else(|| panic!("stats --json has {key}"))
            };
            // The daemon may be writing the baseline, as it does once in idle time.
            let walks = open_of(rig.mount.pid())
                .keys()
                .any(|target| target.ends_with("/baseline.new"));
            let rests = number("open_files") == 0
                && number("inodes") <= INODES_MAX
                && number("past_inodes") == 0
                && !walks;
            seen(rests, (walks, stats))
        });
        let sockets = || {
            open_of(rig.mount.pid())
                .keys()
                .filter(|target| target.starts_with("socket:"))
                .count()
        };
        wait_until("the connections of idle clients are closed", || {
            seen(sockets() <= SOCKETS, sockets())
        });
        let status = fs::read_to_string(format!("/proc/{}/status", rig.mount.pid()))
            .expect("the daemon is alive");
        let rss = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        });
        DaemonUsage {
            rss_kb: rss.expect("the status of a process has VmRSS"),
            open: open_of(rig.mount.pid()),
        }
    }

    /// Returns the number of descriptors.
    pub fn descriptors(&self) -> usize {
        self.open.values().sum()
    }

    fn below_store(&self) -> usize {
        self.open
            .iter()
            .filter(|(target, _)| target.contains("/.ckptfs/"))
            .map(|(_, count)| count)
            .sum()
    }

    /// Asserts that descriptors outside the store have not increased, and those of the store by at
    /// most `more`.
    #[track_caller]
    pub fn has_no_more_descriptors_than(&self, before: &DaemonUsage, more: usize) {
        let others = |level: &DaemonUsage| level.descriptors() - level.below_store();
        assert!(
            others(self) <= others(before),
            "descriptors were left open: {:#?}\nand before: {:#?}",
            self.open,
            before.open
        );
        assert!(
            self.below_store() <= before.below_store() + more,
            "the store's descriptors: {:#?}\nand before: {:#?}",
            self.open,
            before.open
        );
    }
}

fn open_of(pid: u32) -> BTreeMap<String, usize> {
    let mut open = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the daemon is alive")
        .flatten()
    {
        // It may have been closed since the listing.
        if let Ok(target) = fs::read_link(entry.path()) {
            *open.entry(target.display().to_string()).or_insert(0) += 1;
        }
    }
    open
}

/// Returns the number of captured versions in the store.
pub fn kept(rig: &Rig) -> u64 {
    let count = |dir: &Path| fs::read_dir(dir).map_or(0, |entries| entries.count() as u64);
    let layers = fs::read_dir(rig.path().join(".ckptfs/layers")).expect("the store has layers");
    layers
        .flatten()
        .map(|layer| count(&layer.path().join("objects")))
        .sum()
}

/// Asserts that no thread has panicked. A request that panics is answered with EIO; other threads
/// report it only in the log.
pub fn has_not_panicked(rig: &Rig) {
    let log = fs::read_to_string(rig.path().join(".ckptfs/daemon.log")).unwrap_or_default();
    let line = log.lines().find(|line| line.contains("panicked"));
    assert_eq!(line, None, "the daemon's log");
}
