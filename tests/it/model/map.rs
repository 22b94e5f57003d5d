//! Operations that need unsafe code: shared mappings, and truncate(2) by path.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// A shared writable mapping of a whole file. It outlives the descriptor.
pub struct Mapping {
    start: *mut c_void,
    length: usize,
}

impl Mapping {
    pub fn new(file: BorrowedFd<'_>, length: usize) -> Result<Mapping, Errno> {
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        Ok(Mapping { start, length })
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Checks that the first `length` bytes are accessible: a file shorter than expected would
    /// raise SIGBUS.
    fn check(&self, length: usize) -> Result<(), String> {
        assert!(length <= self.length, "beyond the mapping");
        let memory =
            File::open("/proc/self/mem").map_err(|error| format!("/proc/self/mem: {error}"))?;
        let mut byte = [0];
        for page in (0..length).step_by(4096).chain(length.checked_sub(1)) {
            let at = self.start.addr() + page;
            memory
                .read_exact_at(&mut byte, at as u64)
                .map_err(|error| format!("byte {page} of a mapping cannot be reached: {error}"))?;
        }
        Ok(())
    }

    /// Stores within the expected length of the file.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.check(offset + bytes.len())?;
        // SAFETY: the range is within the mapping, to which nothing else in this process refers.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.start.cast::<u8>().add(offset),
                bytes.len(),
            )
        };
        Ok(())
    }

    /// Returns the first `length` bytes, within the expected length of the file.
    pub fn load(&self, length: usize) -> Result<Vec<u8>, String> {
        self.check(length)?;
        let mut bytes = vec![0; length];
        // SAFETY: the range is within the mapping, and the vector has the same length.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.cast::<u8>(), bytes.as_mut_ptr(), length)
        };
        Ok(bytes)
    }

    pub fn flush(&self) {
        // SAFETY: the range is the mapping.
        let flushed = unsafe { rustix::mm::msync(self.start, self.length, MsyncFlags::SYNC) };
        assert!(flushed.is_ok(), "msync: {flushed:?}");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and no reference to it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.length) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// truncate(2), without opening the file.
pub fn truncate(path: &Path, size: u64) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no name has a NUL");
    // SAFETY: the path is a C string that outlives the call.
    if unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) } == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
