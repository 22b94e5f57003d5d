//! Real filesystems: a sparse image file, mkfs, a loop mount. A tmpfs is mounted directly.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::command::{TOOL_SECONDS, run_limited, succeeds, tool, try_run_limited};
use super::run_dir::RunDir;

/// Enough for every test; XFS requires 300 MB.
pub const DEFAULT_BYTES: u64 = 1 << 30;

/// A filesystem that ckptfs supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fs {
    /// With reflink.
    Xfs,
    /// With reflink.
    Btrfs,
    /// No reflink: captures are copies.
    Ext4,
    /// No reflink, not persistent.
    Tmpfs,
}

impl Fs {
    /// Returns the kernel's name of the filesystem.
    pub fn name(self) -> &'static str {
        match self {
            Fs::Xfs => "xfs",
            Fs::Btrfs => "btrfs",
            Fs::Ext4 => "ext4",
            Fs::Tmpfs => "tmpfs",
        }
    }

    /// Returns whether files can share extents.
    pub fn has_reflink(self) -> bool {
        matches!(self, Fs::Xfs | Fs::Btrfs)
    }

    fn mkfs(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            Fs::Xfs => Some(("mkfs.xfs", &["-q", "-f", "-K", "-m", "reflink=1"])),
            Fs::Btrfs => Some(("mkfs.btrfs", &["-q", "-f", "-K"])),
            Fs::Ext4 => Some((
                "mkfs.ext4",
                &["-q", "-F", "-E", "nodiscard,lazy_itable_init=1"],
            )),
            Fs::Tmpfs => None,
        }
    }

    /// Returns the reason why it cannot be used on this machine, if any.
    pub fn unavailable(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some(format!("mounting {} needs root", self.name()));
        }
        if let Some((mkfs, _)) = self.mkfs()
            && try_run_limited(&mut tool(mkfs, &["-V"]), 60).is_err()
        {
            return Some(format!("{mkfs} is not installed (make deps)"));
        }
        let known = || {
            fs::read_to_string("/proc/filesystems")
                .is_ok_and(|list| list.split_whitespace().any(|word| word == self.name()))
        };
        if !known() {
            let _ = try_run_limited(&mut tool("modprobe", &[self.name()]), 60);
        }
        (!known()).then(|| format!("this kernel has no {}", self.name()))
    }
}

/// A mounted filesystem. Dropping it unmounts it and removes the image.
pub struct Image {
    fs: Fs,
    slot: PathBuf,
    point: PathBuf,
    file: Option<PathBuf>,
    /// The tmpfs that contains the image file, if any.
    memory: Option<PathBuf>,
    mounted: bool,
    _run: Arc<RunDir>,
}

/// A bind mount of an image without the mounts in it. Must be dropped before the image.
pub struct Below(PathBuf);

impl Below {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let _ = try_run_limited(tool("umount", &["-l"]).arg(&self.0), 60);
        let _ = fs::remove_dir(&self.0);
    }
}

/// Two threads that request the first free loop device would get the same one.
static LOOP_SETUP: Mutex<()> = Mutex::new(());

impl Image {
    /// Makes a new filesystem of `bytes`; panics with the reason on failure.
    pub fn new(fs: Fs, bytes: u64) -> Image {
        Image::with(fs, bytes, &[])
    }

    /// As [`Image::new`], with additional mkfs arguments.
    pub fn with(fs: Fs, bytes: u64, arguments: &[&str]) -> Image {
        Image::make(fs, bytes, arguments, false)
    }

    /// As [`Image::new`], with the image file in memory: for tests that sync often and do not
    /// depend on the disk.
    pub fn in_memory(fs: Fs, bytes: u64) -> Image {
        Image::make(fs, bytes, &[], true)
    }

    fn make(fs: Fs, bytes: u64, arguments: &[&str], in_memory: bool) -> Image {
        let run = RunDir::get();
        let slot = run.slot(fs.name());
        let point = slot.join("mnt");
        fs::create_dir(&point).expect("the slot is empty");
        let memory = (in_memory && fs != Fs::Tmpfs).then(|| {
            let memory = slot.join("memory");
            fs::create_dir(&memory).expect("the slot is empty");
            succeeds(
                tool(
                    "mount",
                    &[
                        "-t",
                        "tmpfs",
                        "-o",
                        &format!("size={}", bytes + (64 << 20)),
                        "ckptfs-test",
                    ],
                )
                .arg(&memory),
                TOOL_SECONDS,
            );
            memory
        });
        let file = fs.mkfs().map(|(mkfs, options)| {
            let file = slot.join("disk.img");
            File::create_new(&file)
                .and_then(|file| file.set_len(bytes))
                .unwrap_or_else(|error| panic!("cannot create an image of {bytes} bytes: {error}"));
            succeeds(tool(mkfs, options).args(arguments).arg(&file), TOOL_SECONDS);
            match &memory {
                Some(memory) => move_to_memory(&file, memory),
                None => file,
            }
        });
        let mut image = Image {
            fs,
            slot,
            point,
            file,
            memory,
            mounted: false,
            _run: run,
        };
        match fs {
            Fs::Tmpfs => image.mount_with(&format!("size={bytes}")),
            _ => image.mount_with(""),
        }
        image
    }

    /// Makes a new filesystem of the default size, in memory: on a busy disk each sync of a test
    /// waits for other writers.
    pub fn of(fs: Fs) -> Image {
        Image::in_memory(fs, DEFAULT_BYTES)
    }

    pub fn fs(&self) -> Fs {
        self.fs
    }

    /// Returns its mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Returns the image file; a tmpfs has no image file.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns the directory `name` in it; creates it if missing.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.point.join(name);
        fs::create_dir_all(&dir)
            .unwrap_or_else(|error| panic!("cannot create {}: {error}", dir.display()));
        dir
    }

    /// Mounts its content without the mounts in it.
    pub fn below(&self) -> Below {
        let below = Below(self.slot.join("below"));
        fs::create_dir(&below.0).expect("the slot has no such directory");
        succeeds(
            tool("mount", &["--bind"]).arg(&self.point).arg(&below.0),
            TOOL_SECONDS,
        );
        succeeds(
            tool("mount", &["--make-private"]).arg(&below.0),
            TOOL_SECONDS,
        );
        below
    }

    /// Unmounts it, for a test that remounts it or reads the image file.
    pub fn unmount(&mut self) {
        succeeds(&mut tool("umount", &[&self.point]), TOOL_SECONDS);
        self.mounted = false;
    }

    /// Mounts it with these `-o` options, which may be empty. The loop device is detached by the
    /// unmount.
    pub fn mount_with(&mut self, options: &str) {
        let mut arguments = vec!["-t".to_owned(), self.fs.name().to_owned()];
        let mut options: Vec<&str> = options
            .split(',')
            .filter(|option| !option.is_empty())
            .collect();
        let source = match &self.file {
            Some(file) => {
                options.push("loop");
                file.clone()
            }
            None => PathBuf::from("ckptfs-test"),
        };
        if !options.is_empty() {
            arguments.extend(["-o".to_owned(), options.join(",")]);
        }
        mount_retrying(tool("mount", &arguments).arg(&source).arg(&self.point));
        self.mounted = true;
    }
}

/// Moves an image to memory. mkfs runs on disk, where a range can be zeroed without a write: in
/// memory the log of an XFS would use 64 MiB.
fn move_to_memory(file: &Path, memory: &Path) -> PathBuf {
    succeeds(
        tool("cp", &["--sparse=always"]).arg(file).arg(memory),
        TOOL_SECONDS,
    );
    fs::remove_file(file).expect("the file can be removed");
    memory.join("disk.img")
}

/// Mounts with retries: other processes use loop devices, and a machine without devtmpfs lacks the
/// nodes of higher numbers.
fn mount_retrying(command: &mut std::process::Command) {
    const ATTEMPTS: u32 = 6;
    let _one_at_a_time = LOOP_SETUP
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    for attempt in 1..=ATTEMPTS {
        let output = run_limited(command, TOOL_SECONDS);
        if output.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            attempt < ATTEMPTS && said.contains("loop"),
            "{command:?} failed ({}): {said}",
            output.status
        );
        make_loop_nodes();
        thread::sleep(Duration::from_millis(100 * u64::from(attempt)));
    }
}

fn make_loop_nodes() {
    for number in 0..64 {
        let node = format!("/dev/loop{number}");
        if !Path::new(&node).exists() {
            let _ = try_run_limited(
                &mut tool(
                    "mknod",
                    &["-m", "660", &node, "b", "7", &number.to_string()],
                ),
                60,
            );
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.mounted && !unmount_patiently(&self.point) {
            eprintln!(
                "harness: {} is busy; unmounting it lazily",
                self.point.display()
            );
            let _ = try_run_limited(
                &mut tool("umount", &["-l".as_ref(), self.point.as_os_str()]),
                60,
            );
        }
        if let Err(error) = fs::remove_dir(&self.point) {
            eprintln!("harness: {} was not removed: {error}", self.point.display());
            return;
        }
        if let Some(memory) = &self.memory
            && !unmount_patiently(memory)
        {
            let _ = try_run_limited(
                &mut tool("umount", &["-l".as_ref(), memory.as_os_str()]),
                60,
            );
        }
        if let Err(error) = fs::remove_dir_all(&self.slot) {
            eprintln!("harness: {} was not removed: {error}", self.slot.display());
        }
    }
}

/// Unmounts with retries: a daemon that has just unmounted may still be closing its descriptors.
fn unmount_patiently(point: &Path) -> bool {
    for attempt in 0..10 {
        if try_run_limited(&mut tool("umount", &[point]), 60)
            .is_ok_and(|output| output.status.success())
        {
            return true;
        }
        thread::sleep(Duration::from_millis(25 << attempt));
    }
    false
}
