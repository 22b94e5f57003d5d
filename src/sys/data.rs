//! Reading, writing and flushing of one open file, where both systems have the same calls.

use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, SeekFrom};

use super::fault::{self, Call};
use super::name::retry;
use super::types::{Errno, SysResult};

/// Reads at `offset` bytes into `buffer`; gives how many bytes, 0 at the end of the file. It may
/// give fewer than asked (pread(2)).
pub fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> SysResult<usize> {
    retry(Call::Read, || {
        rustix::io::pread(&file, &mut *buffer, offset)
    })
}

/// Reads from `offset` on until `buffer` is full or the file ends; gives the number of bytes read.
///
/// Errors: those of pread(2); what was read before is lost.
pub fn read_full_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> SysResult<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match read_at(&file, rest, offset + filled as u64)? {
            0 => break,
            got => filled += got,
        }
    }
    Ok(filled)
}

/// Writes `data` at `offset` bytes; gives how many bytes were taken, which may be fewer
/// (pwrite(2)).
pub fn write_at(file: impl AsFd, data: &[u8], offset: u64) -> SysResult<usize> {
    retry(Call::Write, || rustix::io::pwrite(&file, data, offset)).inspect_err(|_| {
        if fault::writes_half() {
            let _ = rustix::io::pwrite(
                &file,
                data.get(..data.len() / 2).unwrap_or_default(),
                offset,
            );
        }
    })
}

/// Writes all of `data` at `offset` bytes. After a failure an unknown part of it has been written.
pub fn write_all_at(file: impl AsFd, mut data: &[u8], mut offset: u64) -> SysResult<()> {
    while !data.is_empty() {
        let written = write_at(&file, data, offset)?;
        if written == 0 {
            return Err(Errno::EIO);
        }
        data = data.get(written..).ok_or(Errno::EIO)?;
        offset = offset.checked_add(written as u64).ok_or(Errno::EFBIG)?;
    }
    Ok(())
}

/// Sets the file's size in bytes, cutting it or adding a hole (ftruncate(2)).
pub fn truncate(file: impl AsFd, size: u64) -> SysResult<()> {
    retry(Call::Truncate, || rustix::fs::ftruncate(&file, size))
}

/// Offset of the first data at or after `offset`; ENXIO when there is none (`SEEK_DATA`). Moves the
/// file's position.
pub fn seek_data(file: impl AsFd, offset: u64) -> SysResult<u64> {
    retry(Call::Probe, || {
        rustix::fs::seek(&file, SeekFrom::Data(offset))
    })
}

/// Offset of the first hole at or after `offset`, the file's end included; ENXIO beyond it
/// (`SEEK_HOLE`). Moves the file's position.
pub fn seek_hole(file: impl AsFd, offset: u64) -> SysResult<u64> {
    retry(Call::Probe, || {
        rustix::fs::seek(&file, SeekFrom::Hole(offset))
    })
}

/// Writes a message in one call, for files that take it as a whole.
pub fn write_at_once(fd: impl AsFd, message: &[u8]) -> SysResult<()> {
    rustix::io::retry_on_intr(|| rustix::io::write(&fd, message))
        .map(drop)
        .map_err(Errno::from)
}

/// Makes data and metadata durable (fsync(2); on macOS it reaches the drive, not its platter:
/// `F_FULLFSYNC` is `syncfs`'s).
///
/// An error means that data may be lost already; another fsync that succeeds proves nothing.
pub fn fsync(fd: impl AsFd) -> SysResult<()> {
    retry(Call::Sync, || rustix::fs::fsync(&fd))
}

/// Makes the data durable, and of the metadata what reading it back needs (fdatasync(2); fsync on
/// macOS).
pub fn fdatasync(fd: impl AsFd) -> SysResult<()> {
    #[cfg(target_os = "linux")]
    return retry(Call::Sync, || rustix::fs::fdatasync(&fd));
    #[cfg(not(target_os = "linux"))]
    return fsync(fd);
}

/// Takes the exclusive advisory lock of an open file, without waiting; false when another has it
/// (flock(2)).
///
/// It ends when the last copy of the descriptor is closed, so also with `kill -9`.
pub fn flock_exclusive(file: impl AsFd) -> SysResult<bool> {
    match retry(Call::Probe, || {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
    }) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}
