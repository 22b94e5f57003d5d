//! Removing many files without keeping others waiting.
//!
//! XFS frees the inode of a removed file later, in the background, and when many wait for that,
//! whoever gives up one more waits for all of them: also another process that renames over a file.
//! So who removes many rests after some until their inodes are free.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::statfs_fd;

/// Removals between two rests: XFS has others wait from 256 on.
const STEP: u32 = 64;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);
/// So long it is waited for the next inode to come free: on a busy machine the thread that frees
/// them waits for the processor, 100 ms and more.
const PATIENCE: Duration = Duration::from_millis(150);

/// Who removes many files, one after the other.
#[derive(Debug, Default)]
pub struct Gently {
    removed: u32,
    /// Inodes that were used at the beginning, or after the last rest.
    used: Option<u64>,
    /// Nothing came free: what is removed may be names of inodes that have others.
    in_vain: bool,
}

impl Gently {
    /// One was removed from this filesystem. Sleeps now and then, so no lock is to be held that
    /// others need.
    pub fn removed(&mut self, filesystem: impl AsFd) {
        let before = *self.used.get_or_insert_with(|| used(&filesystem));
        self.removed += 1;
        if self.removed < STEP {
            return;
        }
        self.removed = 0;
        // Half of them may wait.
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

/// Inodes that are not free; 0: the filesystem does not count them. To ask has XFS go on with those
/// that wait.
fn used(filesystem: impl AsFd) -> u64 {
    statfs_fd(filesystem).map_or(0, |info| info.files.saturating_sub(info.ffree))
}
