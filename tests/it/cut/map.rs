//! A shared mapping of a file, kept after the descriptor was closed.

use std::fs::File;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A whole file, mapped shared. Cells are 64-bit words at multiples of 8 bytes.
pub struct Map {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to the value until it is dropped, and is only accessed through
// atomics.
unsafe impl Send for Map {}

impl Map {
    /// Maps `len` bytes of `file` to be written; the descriptor is not kept.
    pub fn new(file: File, len: usize) -> Map {
        Map::with(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `len` bytes of `file` to be read only.
    pub fn read_only(file: File, len: usize) -> Map {
        Map::with(file, len, ProtFlags::READ)
    }

    fn with(file: File, len: usize, protection: ProtFlags) -> Map {
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0) }
            .expect("the file can be mapped");
        Map {
            start: start.cast(),
            len,
        }
    }

    fn cell(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "the cell is in the mapping"
        );
        // SAFETY: it is inside the mapping and aligned, as asserted, and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    /// Stores `value` at `offset` bytes. Stores of one thread are seen in their order.
    pub fn store(&self, offset: usize, value: u64) {
        self.cell(offset).store(value, Ordering::SeqCst);
    }

    /// The value at `offset` bytes.
    pub fn load(&self, offset: usize) -> u64 {
        self.cell(offset).load(Ordering::SeqCst)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `with` and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
