//! A shared mapping of a file that outlives its descriptor.

use std::fs::File;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A whole file, mapped shared. Cells are 64-bit words at multiples of 8 bytes.
pub struct SharedMapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to the value until it is dropped, and is accessed only through
// atomics.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes of `file` for writing, and closes the descriptor.
    pub fn new(file: File, len: usize) -> SharedMapping {
        SharedMapping::with(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `len` bytes of `file` for reading.
    pub fn read_only(file: File, len: usize) -> SharedMapping {
        SharedMapping::with(file, len, ProtFlags::READ)
    }

    fn with(file: File, len: usize, protection: ProtFlags) -> SharedMapping {
        // SAFETY: a new mapping at an address chosen by the kernel affects no other memory.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0) }
            .expect("the file can be mapped");
        SharedMapping {
            start: start.cast(),
            len,
        }
    }

    fn cell(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "the cell is in the mapping"
        );
        // SAFETY: the cell is aligned and inside the mapping, as asserted, which lives as long as
        // `self`.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    /// Stores `value` at `offset` bytes. Stores of one thread are visible in program order.
    pub fn store(&self, offset: usize, value: u64) {
        self.cell(offset).store(value, Ordering::SeqCst);
    }

    /// Returns the value at `offset` bytes.
    pub fn load(&self, offset: usize) -> u64 {
        self.cell(offset).load(Ordering::SeqCst)
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `with` and has no references left.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
