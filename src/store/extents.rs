//! The same content once: two files with the same bytes come to share their extents.
//!
//! Whoever asks believes them to be equal; the kernel compares, with both files locked, and shares
//! nothing that differs. So neither a hash that is another content's too, nor a stale index, nor a
//! writer that comes between can change a byte. No time changes either.
//!
//! Locking: none.

use std::fs::File;

use crate::sys::{self, Errno, SysResult};

/// Bytes of one call: what btrfs takes at most, and what nobody waits long for.
pub const CALL_BYTES: u64 = 16 << 20;

/// How far it is after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes more share, or are holes in both.
    More(u64),
    /// All do.
    Done,
    /// The files hold something else from here on; what shares before does.
    Differs,
}

/// Two files on the way to share what they hold.
#[derive(Debug)]
pub struct Sharing<F> {
    source: F,
    target: F,
    size: u64,
    offset: u64,
}

impl<F: AsRef<File>> Sharing<F> {
    /// `target` is to share the `size` bytes of `source`.
    pub fn new(source: F, target: F, size: u64) -> Sharing<F> {
        Sharing {
            source,
            target,
            size,
            offset: 0,
        }
    }

    /// Shares the next bytes, [`CALL_BYTES`] at most.
    ///
    /// # Errors
    /// As [`sys::dedupe_range`].
    pub fn step(&mut self) -> SysResult<Step> {
        let (source, target) = (self.source.as_ref(), self.target.as_ref());
        let began = self.offset;
        match (
            next_data(source, self.offset),
            next_data(target, self.offset),
        ) {
            (None, None) => return Ok(Step::Done),
            (Some(one), None) | (None, Some(one)) => self.offset = one,
            (Some(one), Some(other)) => self.offset = one.min(other),
        }
        if self.offset >= self.size {
            return Ok(Step::Done);
        }
        match sys::dedupe_range(
            source,
            target,
            self.offset,
            CALL_BYTES.min(self.size - self.offset),
        )? {
            // The last block of a file that has grown meanwhile.
            None | Some(0) => Ok(Step::Differs),
            Some(shared) => {
                self.offset = self.offset.saturating_add(shared).min(self.size);
                Ok(if self.offset >= self.size {
                    Step::Done
                } else {
                    Step::More(self.offset - began)
                })
            }
        }
    }
}

/// That two files cannot share is so for good, and no failure.
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

/// Two files hold the same bytes: their extents are shared, or a comparison says so.
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
        // What is a hole in both is equal: a sparse file has more of it than can be read.
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

/// Where the first data at or after an offset begins, `None` if there is none; the offset itself
/// where the filesystem does not tell.
fn next_data(file: &File, offset: u64) -> Option<u64> {
    match sys::seek_data(file, offset) {
        Ok(start) => Some(start),
        Err(Errno::ENXIO) => None,
        Err(_) => Some(offset),
    }
}
