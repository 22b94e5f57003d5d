//! A disk whose content can be copied at any moment: an image with direct I/O on a filesystem with
//! reflink.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::common::command::{TOOL_SECONDS, try_run_limited};
use crate::common::wait::wait_until;
use crate::common::{Fs, Image, stdout_of, succeeds, tool};

/// mkfs.xfs requires at least 300 MB.
const DISK_BYTES: u64 = 340 << 20;
/// Size of the sparse host image: one disk and the differences of its copies.
const HOST_BYTES: u64 = 16 << 30;

/// As [`HOST_BYTES`], for a host in memory.
const MEMORY_BYTES: u64 = 2 << 30;

/// The filesystem that contains the images.
pub struct ImageHost(Image);

impl ImageHost {
    pub fn new() -> ImageHost {
        ImageHost(Image::new(Fs::Xfs, HOST_BYTES))
    }

    /// A host in memory, for tests with many syncs.
    pub fn in_memory() -> ImageHost {
        ImageHost(Image::in_memory(Fs::Xfs, MEMORY_BYTES))
    }

    /// Returns the path of file `name`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates the mount point for an image.
    fn point(&self, file: &Path) -> PathBuf {
        let point = file.with_extension("mnt");
        fs::create_dir_all(&point).unwrap_or_else(|error| panic!("{}: {error}", point.display()));
        point
    }

    /// Creates an image with an empty filesystem and returns its path.
    pub fn format(&self, fs: Fs, name: &str) -> PathBuf {
        self.format_sized(fs, name, DISK_BYTES)
    }

    /// As [`ImageHost::format`], with a size in bytes.
    pub fn format_sized(&self, fs: Fs, name: &str, bytes: u64) -> PathBuf {
        let file = self.file(name);
        File::create_new(&file)
            .and_then(|file| file.set_len(bytes))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        // One copy of the btrfs metadata halves the writes.
        let mut mkfs = match fs {
            Fs::Btrfs => tool("mkfs.btrfs", &["-q", "-f", "-K", "-m", "single"]),
            _ => tool(
                "mkfs.xfs",
                &["-q", "-f", "-K", "-m", "reflink=1", "-s", "size=4096"],
            ),
        };
        succeeds(mkfs.arg(&file), TOOL_SECONDS);
        file
    }

    /// Mounts an image, or a file served by a recorder.
    pub fn mount(&self, fs: Fs, file: &Path) -> ImageDisk {
        let point = self.point(&self.file(&file.file_name().expect("a file").to_string_lossy()));
        let device = stdout_of(
            tool("losetup", &["-f", "--show", "--direct-io=on"]).arg(file),
            TOOL_SECONDS,
        )
        .trim()
        .to_owned();
        let mut disk = ImageDisk {
            fs,
            file: file.to_owned(),
            device,
            point,
            mounted: false,
        };
        // Allows several copies of one filesystem to be mounted.
        let options = if fs == Fs::Xfs { "nouuid" } else { "rw" };
        succeeds(
            tool("mount", &["-t", fs.name(), "-o", options])
                .arg(&disk.device)
                .arg(&disk.point),
            TOOL_SECONDS,
        );
        disk.mounted = true;
        disk
    }
}

/// A mounted disk. Drop unmounts it and keeps the image.
pub struct ImageDisk {
    fs: Fs,
    file: PathBuf,
    device: String,
    point: PathBuf,
    mounted: bool,
}

impl ImageDisk {
    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Copies the disk as a power cut would leave it. The clone waits for direct I/O in flight, so
    /// the copy is consistent with one instant.
    pub fn freeze(&self, to: &Path) {
        succeeds(
            tool("cp", &["--reflink=always"]).arg(&self.file).arg(to),
            TOOL_SECONDS,
        );
    }

    /// Unmounts the disk and runs the filesystem's checker.
    pub fn check(mut self) {
        succeeds(&mut tool("umount", &[&self.point]), TOOL_SECONDS);
        self.mounted = false;
        // A process in another mount namespace may keep a copy of the mount for a moment.
        wait_until("no process has it mounted", || {
            let mut exclusive = OpenOptions::new();
            let exclusive = exclusive.read(true).custom_flags(libc::O_EXCL);
            exclusive.open(&self.device).map(drop)
        });
        let mut check = match self.fs {
            Fs::Btrfs => tool("btrfs", &["check", "--readonly", "--force", &self.device]),
            _ => tool("xfs_repair", &["-n", &self.device]),
        };
        succeeds(&mut check, TOOL_SECONDS);
    }
}

impl Drop for ImageDisk {
    fn drop(&mut self) {
        if self.mounted {
            let plain = try_run_limited(&mut tool("umount", &[&self.point]), 60);
            if !plain.is_ok_and(|output| output.status.success()) {
                eprintln!(
                    "harness: {} is busy; unmounting it lazily",
                    self.point.display()
                );
                let _ = try_run_limited(
                    &mut tool("umount", &["-l".as_ref(), self.point.as_os_str()]),
                    60,
                );
            }
        }
        let _ = try_run_limited(&mut tool("losetup", &["-d", &self.device]), 60);
    }
}
