//! Shared helpers of the tests on mounts.

use std::ffi::c_void;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub use crate::common::command::sh;
pub use crate::common::tree::{Tree, names, tree};
use crate::common::{run_limited, tool};

/// A shared mapping of a file.
pub struct Mapping {
    at: *mut c_void,
    length: usize,
}

impl Mapping {
    /// Maps the first `length` bytes of a file for reading and writing; the descriptor may be
    /// closed afterwards.
    pub fn writable(file: &File, length: usize) -> Mapping {
        Mapping::new(
            file,
            length,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
        )
    }

    /// Maps the first `length` bytes of a file for reading.
    pub fn readable(file: &File, length: usize) -> Mapping {
        Mapping::new(file, length, rustix::mm::ProtFlags::READ)
    }

    fn new(file: &File, length: usize, protection: rustix::mm::ProtFlags) -> Mapping {
        // SAFETY: the kernel chooses the address, so no existing memory is replaced; the mapping
        // lives as long as the value.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                rustix::mm::MapFlags::SHARED,
                file,
                0,
            )
        };
        Mapping {
            at: at.expect("the file can be mapped"),
            length,
        }
    }

    /// Writes the stored bytes to the file (msync(2)).
    pub fn sync(&self) {
        // SAFETY: the range is the mapping, which lives as long as `self`.
        unsafe { rustix::mm::msync(self.at, self.length, rustix::mm::MsyncFlags::SYNC) }
            .expect("a mapping of a file can be synced");
    }

    /// Reads bytes from the mapping.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        // SAFETY: the range is within the mapping, which lives as long as `self`; these tests do
        // not truncate mapped files.
        (0..length)
            .map(|index| unsafe { self.at.cast::<u8>().add(offset + index).read_volatile() })
            .collect()
    }

    /// Stores bytes through the mapping.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: as in `read`, and the mapping is writable.
            unsafe {
                self.at
                    .cast::<u8>()
                    .add(offset + index)
                    .write_volatile(*byte)
            };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping has no references left.
        let _ = unsafe { rustix::mm::munmap(self.at, self.length) };
    }
}

/// Returns the errno of a failed call.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result
        .expect_err("it must fail")
        .raw_os_error()
        .expect("it has an errno")
}

/// Writes a file; panics with the path.
#[track_caller]
pub fn put(path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
    let path = path.as_ref();
    fs::write(path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Reads a file as text; panics with the path.
#[track_caller]
pub fn get(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    String::from_utf8_lossy(
        &fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    )
    .into_owned()
}

/// Returns the inode number, without following a link.
#[track_caller]
pub fn ino(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path.as_ref())
        .unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
        .ino()
}

/// Runs a tool and returns its output, preceded by a nonzero exit status.
pub fn said(name: &str, arguments: &[&std::ffi::OsStr]) -> String {
    let output = run_limited(
        &mut tool(name, arguments),
        crate::common::command::TOOL_SECONDS,
    );
    let mut text = String::new();
    if !output.status.success() {
        text.push_str(&format!("{}\n", output.status));
    }
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

/// Returns pseudorandom bytes.
pub fn noise(length: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&[seed])
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}
