//! Throttled removal of many files, so that other processes do not wait.
//!
//! XFS frees the inode of a removed file in the background. When many inodes are queued, each
//! further removal waits for all of them, including a rename over a file by another process. A
//! caller that removes many files therefore pauses until the queued inodes are free.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::statfs_fd;

/// Removals between two pauses: XFS makes other removals wait from 256 queued inodes on.
const STEP: u32 = 64;
/// Interval between two checks.
const LOOK: Duration = Duration::from_millis(1);
/// Maximum wait for the next inode to be freed: on a busy machine the freeing thread waits for a
/// CPU for 100 ms and more.
const PATIENCE: Duration = Duration::from_millis(150);

/// Throttle for one caller that removes many files in sequence.
#[derive(Debug, Default)]
pub struct ThrottledUnlink {
    removed: u32,
    /// Inodes in use at the start, or after the last pause.
    used: Option<u64>,
    /// The last pause timed out: the removed names may be links of inodes with other names. The
    /// next pause is one check.
    in_vain: bool,
}

impl ThrottledUnlink {
    /// Counts a removal from this filesystem. It sleeps occasionally, so the caller must hold no
    /// lock that others need.
    pub fn removed(&mut self, filesystem: impl AsFd) {
        let before = *self.used.get_or_insert_with(|| used(&filesystem));
        self.removed += 1;
        if self.removed < STEP {
            return;
        }
        self.removed = 0;
        // Up to half of them may stay queued.
        let enough = before.saturating_sub(u64::from(STEP / 2));
        let (mut least, mut last) = (used(&filesystem), Instant::now());
        self.in_vain = loop {
            std::thread::sleep(LOOK);
            let used = used(&filesystem);
            if used < least {
                (least, last, self.in_vain) = (used, Instant::now(), false);
            }
            if used <= enough {
                break false;
            }
            if self.in_vain || last.elapsed() >= PATIENCE {
                break true;
            }
        };
        self.used = Some(least);
    }
}

/// Inodes in use; 0 if the filesystem does not count them. On XFS statfs(2) also expedites the
/// background freeing.
fn used(filesystem: impl AsFd) -> u64 {
    statfs_fd(filesystem).map_or(0, |info| info.files.saturating_sub(info.ffree))
}
