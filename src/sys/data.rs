//! Reading, writing and syncing one open file: the calls that both systems share.

use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, SeekFrom};

use super::fault::{self, CallKind};
use super::name::retry;
use super::types::{Errno, SysResult};

/// Reads at `offset` bytes into `buffer` and returns the number of bytes, 0 at the end of the file.
/// It may be short (pread(2)).
pub fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> SysResult<usize> {
    retry(CallKind::Read, || {
        rustix::io::pread(&file, &mut *buffer, offset)
    })
}

/// Reads from `offset` on until `buffer` is full or the file ends; returns the number of bytes
/// read.
///
/// Errors: those of pread(2); data read before the error is lost.
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

/// Writes `data` at `offset` bytes and returns the number of bytes written, which may be short
/// (pwrite(2)).
pub fn write_at(file: impl AsFd, data: &[u8], offset: u64) -> SysResult<usize> {
    retry(CallKind::Write, || rustix::io::pwrite(&file, data, offset)).inspect_err(|_| {
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

/// Sets the size of the file in bytes, truncating it or adding a hole (ftruncate(2)).
pub fn truncate(file: impl AsFd, size: u64) -> SysResult<()> {
    retry(CallKind::Truncate, || rustix::fs::ftruncate(&file, size))
}

/// Returns the offset of the first data at or after `offset`; ENXIO if none follows (`SEEK_DATA`).
/// Moves the file offset.
pub fn seek_data(file: impl AsFd, offset: u64) -> SysResult<u64> {
    retry(CallKind::Probe, || {
        rustix::fs::seek(&file, SeekFrom::Data(offset))
    })
}

/// Returns the offset of the first hole at or after `offset`, including the end of the file; ENXIO
/// beyond it (`SEEK_HOLE`). Moves the file offset.
pub fn seek_hole(file: impl AsFd, offset: u64) -> SysResult<u64> {
    retry(CallKind::Probe, || {
        rustix::fs::seek(&file, SeekFrom::Hole(offset))
    })
}

/// Writes a message with one call, for descriptors that accept a message as a whole.
pub fn write_at_once(fd: impl AsFd, message: &[u8]) -> SysResult<()> {
    rustix::io::retry_on_intr(|| rustix::io::write(&fd, message))
        .map(drop)
        .map_err(Errno::from)
}

/// Makes data and metadata durable (fsync(2)). On macOS it reaches the drive but not its platter;
/// `F_FULLFSYNC` is part of `syncfs`.
///
/// After an error data may be lost already; a later successful fsync proves nothing.
pub fn fsync(fd: impl AsFd) -> SysResult<()> {
    retry(CallKind::Sync, || rustix::fs::fsync(&fd))
}

/// Makes the data durable, with the metadata needed to read it (fdatasync(2); fsync on macOS).
pub fn fdatasync(fd: impl AsFd) -> SysResult<()> {
    #[cfg(target_os = "linux")]
    return retry(CallKind::Sync, || rustix::fs::fdatasync(&fd));
    #[cfg(not(target_os = "linux"))]
    return fsync(fd);
}

/// Acquires the exclusive advisory lock of an open file without waiting; returns false if another
/// process holds it (flock(2)).
///
/// The lock ends when the last duplicate of the descriptor is closed, hence also after `kill -9`.
pub fn flock_exclusive(file: impl AsFd) -> SysResult<bool> {
    match retry(CallKind::Probe, || {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
    }) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}
