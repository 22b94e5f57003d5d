//! Deduplication by shared extents: two files with the same bytes share them.
//!
//! The caller only assumes that they are equal. The kernel compares them with both files locked,
//! and shares nothing that differs. A hash collision, a stale index or a concurrent writer can
//! therefore not change a byte. Timestamps do not change.
//!
//! Locking: none.

use std::fs::File;

use ckptfs_sys::{self as sys, Errno, SysResult};

/// Bytes of one call: the maximum of btrfs, and short enough to wait for.
pub const CALL_BYTES: u64 = 16 << 20;

/// Progress after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingStep {
    /// This many more bytes are shared, or are holes in both.
    More(u64),
    /// All bytes are shared.
    Done,
    /// The files differ from here on; the bytes before are shared.
    Differs,
}

/// Two files whose data is being shared.
#[derive(Debug)]
pub struct ExtentSharing<F> {
    source: F,
    target: F,
    size: u64,
    offset: u64,
}

impl<F: AsRef<File>> ExtentSharing<F> {
    /// Prepares to share the `size` bytes of `source` with `target`.
    pub fn new(source: F, target: F, size: u64) -> ExtentSharing<F> {
        ExtentSharing {
            source,
            target,
            size,
            offset: 0,
        }
    }

    /// Shares up to the next [`CALL_BYTES`] bytes.
    ///
    /// # Errors
    /// As [`sys::dedupe_range`].
    pub fn step(&mut self) -> SysResult<SharingStep> {
        let (source, target) = (self.source.as_ref(), self.target.as_ref());
        let began = self.offset;
        match (
            next_data(source, self.offset),
            next_data(target, self.offset),
        ) {
            (None, None) => return Ok(SharingStep::Done),
            (Some(one), None) | (None, Some(one)) => self.offset = one,
            (Some(one), Some(other)) => self.offset = one.min(other),
        }
        if self.offset >= self.size {
            return Ok(SharingStep::Done);
        }
        match sys::dedupe_range(
            source,
            target,
            self.offset,
            CALL_BYTES.min(self.size - self.offset),
        )? {
            // The last block of a file that has grown.
            None | Some(0) => Ok(SharingStep::Differs),
            Some(shared) => {
                self.offset = self.offset.saturating_add(shared).min(self.size);
                Ok(if self.offset >= self.size {
                    SharingStep::Done
                } else {
                    SharingStep::More(self.offset - began)
                })
            }
        }
    }
}

/// Returns whether two files can never share, which is no failure.
pub fn cannot_share(errno: Errno) -> bool {
    [
        Errno::EOPNOTSUPP,
        Errno::ENOTTY,
        Errno::EINVAL,
        Errno::EXDEV,
        Errno::ENOSYS,
    ]
    .contains(&errno)
}

/// Returns whether two files have the same bytes, by shared extents or by comparison.
pub fn same_bytes(a: &File, b: &File) -> SysResult<bool> {
    if sys::stat_fd(a)?.size != sys::stat_fd(b)?.size {
        return Ok(false);
    }
    if sys::shares_extents(a, b).unwrap_or(false) {
        return Ok(true);
    }
    let (mut left, mut right) = (vec![0_u8; 128 * 1024], vec![0_u8; 128 * 1024]);
    let mut offset = 0_u64;
    loop {
        // Skips common holes: a sparse file may have more of them than can be read.
        match (next_data(a, offset), next_data(b, offset)) {
            (None, None) => return Ok(true),
            (Some(one), None) | (None, Some(one)) => offset = one,
            (Some(one), Some(other)) => offset = one.min(other),
        }
        let got = sys::read_at(a, &mut left, offset)?;
        let mut filled = 0;
        while filled < got {
            match sys::read_at(
                b,
                right.get_mut(filled..got).unwrap_or_default(),
                offset + filled as u64,
            )? {
                0 => return Ok(false),
                more => filled += more,
            }
        }
        if left.get(..got) != right.get(..got) {
            return Ok(false);
        }
        if got == 0 {
            return Ok(true);
        }
        offset += got as u64;
    }
}

/// Returns the start of the first data at or after an offset, `None` without data; the offset
/// itself if the filesystem does not support the query.
fn next_data(file: &File, offset: u64) -> Option<u64> {
    match sys::seek_data(file, offset) {
        Ok(start) => Some(start),
        Err(Errno::ENXIO) => None,
        Err(_) => Some(offset),
    }
}
