//! A test filesystem with the tree of 36,076 files, mounts, and changes to files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags};

use crate::common::command::{succeeds, tool};
use crate::common::{Fs, Image, Io, Mount, MountOpts};
use crate::options::Options;
use crate::shared::stats::Samples;
use crate::shared::tree;
use ckptfs_api::{Client, STORE_NAME};

/// Files of Spike 2's tree.
pub const FILES: usize = 36_076;
/// Files in a quick run.
const FILES_QUICK: usize = 4_000;
/// A sparse image.
const IMAGE_BYTES: u64 = 16 << 30;
/// A tmpfs image occupies memory.
const TMPFS_BYTES: u64 = 6 << 30;
/// Longer than all measurements of one mount.
const MOUNT_LIMIT: Duration = Duration::from_secs(1800);
/// Time limit for one command.
pub const SECONDS: u64 = 600;

/// A filesystem with the options of the run.
pub struct SeedEnv<'a> {
    pub options: &'a Options,
    image: Image,
    tree: Option<PathBuf>,
}

impl<'a> SeedEnv<'a> {
    pub fn new(fs: Fs, options: &'a Options) -> SeedEnv<'a> {
        let bytes = if fs == Fs::Tmpfs {
            TMPFS_BYTES
        } else {
            IMAGE_BYTES
        };
        SeedEnv {
            options,
            image: Image::new(fs, bytes),
            tree: None,
        }
    }

    pub fn fs(&self) -> &'static str {
        self.image.fs().name()
    }

    pub fn has_reflink(&self) -> bool {
        self.image.fs().has_reflink()
    }

    /// Reports whether each capture is a synced copy before the change, which takes milliseconds
    /// per file.
    pub fn captures_slowly(&self) -> bool {
        self.image.fs() == Fs::Ext4
    }

    pub fn path(&self) -> &Path {
        self.image.path()
    }

    /// Returns a new empty directory.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.image.path().join(name);
        remove(&dir);
        self.image.dir(name)
    }

    /// Returns the number of files of the tree.
    pub fn files(&self) -> usize {
        if self.options.quick {
            FILES_QUICK
        } else {
            FILES
        }
    }

    /// Returns the tree without a history; the first call makes it.
    pub fn tree(&mut self) -> PathBuf {
        let dir = self.image.path().join("tree");
        if self.tree.is_none() {
            eprintln!("{}: making the tree of {} files", self.fs(), self.files());
            remove(&dir);
            tree::make(&dir, self.files());
            self.tree = Some(dir.clone());
        }
        remove(&dir.join(STORE_NAME));
        self.sync();
        dir
    }

    /// Writes back dirty data, so that no operation pays for an earlier one.
    pub fn sync(&self) {
        succeeds(tool("sync", &["-f"]).arg(self.image.path()), SECONDS);
    }

    /// Returns the used bytes, as `df` reports them.
    pub fn used(&self) -> i64 {
        self.sync();
        let space = rustix::fs::statvfs(self.image.path()).expect("it is mounted");
        ((space.f_blocks - space.f_bfree) * space.f_frsize) as i64
    }

    /// Mounts a directory in place with the default I/O mode: passthrough if there is reflink.
    pub fn mount(&self, dir: &Path) -> Mount {
        let io = if self.has_reflink() {
            Io::Passthrough
        } else {
            Io::Daemon
        };
        Mount::start(
            dir,
            &MountOpts {
                limit: MOUNT_LIMIT,
                ..MountOpts::new(io)
            },
        )
    }
}

/// Connects to the daemon of a mount.
pub fn client(mount: &Mount) -> Client {
    let store = rustix::fs::openat(
        CWD,
        mount.path().join(STORE_NAME),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    Client::connect(store.expect("the mount leads to its store")).expect("the daemon listens")
}

/// Removes a tree, if it exists.
pub fn remove(dir: &Path) {
    if fs::symlink_metadata(dir).is_ok() {
        succeeds(tool("rm", &["-rf", "--"]).arg(dir), SECONDS);
    }
}

/// Returns `count` files, each distant from the previous one.
pub fn spread(files: &[PathBuf], count: usize, round: usize) -> Vec<&PathBuf> {
    const PRIME: usize = 7919;
    (0..count)
        .map(|index| &files[(round * count + index) * PRIME % files.len()])
        .collect()
}

/// Writes a number to the beginning of a file.
pub fn stamp(path: &Path, number: usize) {
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.write_all_at(format!("{number:016}").as_bytes(), 0)
        .expect("a file can be written");
}

/// Runs a process, which must succeed, and adds its time from fork to exit.
pub fn timed(samples: &mut Samples, command: &mut std::process::Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    samples.time(|| {
        ended(
            command.status().map(|status| (status, status.success())),
            command,
        )
    });
}

/// Returns the output of a process, which must succeed. It waits for the exit instead of polling as
/// the tests do, which would distort short times.
pub fn said(command: &mut std::process::Command) -> std::process::Output {
    command.stdin(Stdio::null());
    let output = command.output().map(|output| {
        let well = output.status.success();
        (output, well)
    });
    ended(output, command)
}

fn ended<T>(result: std::io::Result<(T, bool)>, command: &std::process::Command) -> T {
    match result {
        Ok((ended, true)) => ended,
        Ok(_) => panic!("{command:?} failed"),
        Err(error) => panic!("{command:?}: {error}"),
    }
}

/// Returns the usual command to copy a tree, with reflinks if possible.
pub fn cp(from: &Path, to: &Path) -> std::process::Command {
    let mut command = tool("cp", &["-a", "--reflink=auto", "--"]);
    command.arg(from).arg(to);
    command
}

/// Returns the command that makes the directory `to` equal to `from`, by times and sizes.
pub fn rsync(from: &Path, to: &Path) -> std::process::Command {
    let mut command = tool("rsync", &["-a", "--"]);
    command.arg(from.join("")).arg(to.join(""));
    command
}
