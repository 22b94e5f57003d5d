//! Copying file data where reflink is not available: preserves holes.

use std::fs::File;

use super::data::{read_at, seek_data, seek_hole, truncate, write_all_at};
use super::os::copy_file_range;
use super::types::{Errno, SysResult};

/// Size of a read and write where the kernel cannot copy, in bytes.
const BUFFER_LEN: usize = 256 * 1024;

/// Copies `size` bytes of `src` to `dst`, preserving holes, and sets the size of `dst`.
///
/// `dst` must read as zeros: new, or truncated to nothing. If `src` has become shorter, the rest
/// reads as zeros. On XFS and btrfs the kernel may share the extents instead (copy_file_range(2)).
/// Nothing is durable on return; after a failure `dst` holds an unspecified part. Stores through a
/// shared mapping of `src` are included up to some moment during the copy.
pub fn copy_data(src: &File, dst: &File, size: u64) -> SysResult<()> {
    truncate(dst, size)?;
    let mut buffer = Vec::new();
    let mut offset = 0;
    while offset < size {
        let (start, end) = match next_data(src, offset, size)? {
            Some(range) => range,
            None => break,
        };
        if !copy_range(src, dst, start, end, &mut buffer)? {
            break;
        }
        offset = end;
    }
    // A copy that ended exactly where the file grew keeps the size set above: writes within `size`
    // cannot change it.
    Ok(())
}

/// Appends the data of `src` from `start` up to `size` to `dst`, whose size is `start`, by reading
/// and writing. It shares no extent and causes no writeback. On XFS and btrfs the kernel's copy
/// (copy_file_range(2)) is a reflink and waits for the dirty pages of `src`. Meant for small files:
/// holes become zeros.
///
/// If `src` has become shorter, so is `dst`. Nothing is durable on return.
pub fn copy_apart(src: &File, dst: &File, start: u64, size: u64) -> SysResult<()> {
    copy_plain(src, dst, start, size, &mut Vec::new()).map(drop)
}

/// The first range with data at or after `offset`, up to `size`; the whole rest if the filesystem
/// does not report holes.
fn next_data(src: &File, offset: u64, size: u64) -> SysResult<Option<(u64, u64)>> {
    let start = match seek_data(src, offset) {
        Ok(start) => start,
        Err(Errno::ENXIO) => return Ok(None),
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(Some((offset, size))),
        Err(errno) => return Err(errno),
    };
    if start >= size {
        return Ok(None);
    }
    let end = match seek_hole(src, start) {
        // Another thread may punch the data out at the same time: then the hole begins at `start`,
        // and copying zeros is harmless.
        Ok(end) if end > start => end.min(size),
        Ok(_) | Err(Errno::ENXIO) => size,
        Err(errno) => return Err(errno),
    };
    Ok(Some((start, end)))
}

/// Copies the bytes from `start` up to `end`; returns false if `src` ends before.
fn copy_range(
    src: &File,
    dst: &File,
    start: u64,
    end: u64,
    buffer: &mut Vec<u8>,
) -> SysResult<bool> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let want = usize::try_from(end - from)
            .unwrap_or(usize::MAX)
            .min(1 << 30);
        match copy_file_range(src, &mut from, dst, &mut to, want) {
            // Some filesystems (procfs, FUSE) return 0 before the end of the file, so plain reads
            // decide.
            Ok(0) => return copy_plain(src, dst, from, end, buffer),
            Ok(_) => {}
            Err(Errno::EXDEV | Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
                return copy_plain(src, dst, from, end, buffer);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// Copies by reading and writing; returns false if `src` ends before `end`.
fn copy_plain(
    src: &File,
    dst: &File,
    start: u64,
    end: u64,
    buffer: &mut Vec<u8>,
) -> SysResult<bool> {
    let length = usize::try_from(end - start).map_or(BUFFER_LEN, |length| length.min(BUFFER_LEN));
    if buffer.len() < length {
        *buffer = vec![0; length];
    }
    let mut offset = start;
    while offset < end {
        let want = usize::try_from(end - offset)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let chunk = buffer.get_mut(..want).ok_or(Errno::EIO)?;
        let read = read_at(src, chunk, offset)?;
        if read == 0 {
            return Ok(false);
        }
        write_all_at(dst, chunk.get(..read).ok_or(Errno::EIO)?, offset)?;
        offset += read as u64;
    }
    Ok(true)
}
