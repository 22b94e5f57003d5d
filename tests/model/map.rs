//! What needs unsafe code: shared mappings, and truncate(2) by path.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// A shared writable mapping of a whole file. It outlives the descriptor it was made from.
pub struct Mapping {
    start: *mut c_void,
    length: usize,
}

impl Mapping {
    pub fn new(file: BorrowedFd<'_>, length: usize) -> Result<Mapping, Errno> {
        // SAFETY: the kernel chooses the place, so nothing that exists is mapped over.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        Ok(Mapping { start, length })
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Stores; the caller knows that the file is that long.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length, "a store beyond the mapping");
        // SAFETY: the range lies within the mapping, which nothing else in this process refers to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.cast::<u8>().add(offset), bytes.len()) };
    }

    /// The first `length` bytes; the caller knows that the file is that long.
    pub fn load(&self, length: usize) -> Vec<u8> {
        assert!(length <= self.length, "a load beyond the mapping");
        let mut bytes = vec![0; length];
        // SAFETY: the range lies within the mapping, and the vector has as much room.
        unsafe { std::ptr::copy_nonoverlapping(self.start.cast::<u8>(), bytes.as_mut_ptr(), length) };
        bytes
    }

    pub fn flush(&self) {
        // SAFETY: the range is the mapping.
        let flushed = unsafe { rustix::mm::msync(self.start, self.length, MsyncFlags::SYNC) };
        assert!(flushed.is_ok(), "msync: {flushed:?}");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and nobody refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.length) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// truncate(2), without opening the file.
pub fn truncate(path: &Path, size: u64) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no name has a NUL");
    // SAFETY: the path is a C string that lives through the call.
    if unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) } == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
