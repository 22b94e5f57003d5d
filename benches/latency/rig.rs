//! The tree, its image, its mount, and changes to it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};

use crate::common::command::{succeeds, tool};
use crate::common::{Fs, Image, Io, Mount, MountOpts};
use crate::shared::tree::{self, TREE_SECONDS};
use ckptfs_api::{CheckpointInfo, CheckpointOptions, Client, STORE_NAME};

/// Regular files in the tree.
pub const FILES: usize = 36_000;
/// Sparse; the tree uses about an eighth of it.
const IMAGE_BYTES: u64 = 8 << 30;
/// Longer than all measurements of one mount.
const MOUNT_LIMIT: Duration = Duration::from_secs(3600);
/// Bytes that a change writes to the beginning of a file.
const STAMP_BYTES: usize = 64;

/// A filesystem with the tree on it.
pub struct Tree {
    dir: PathBuf,
    /// Relative paths of the non-empty regular files, in a scattered order.
    files: Vec<PathBuf>,
    pub image: Image,
}

impl Tree {
    pub fn make(fs: Fs) -> Tree {
        let image = Image::new(fs, IMAGE_BYTES);
        let dir = image.dir("tree");
        tree::make(&dir, FILES);
        succeeds(tool("sync", &["-f"]).arg(&dir), TREE_SECONDS);
        let files = tree::regular_files(&dir, STAMP_BYTES as u64);
        Tree {
            dir,
            files: shuffled(&files),
            image,
        }
    }

    /// Mounts the tree without a history.
    pub fn mount(&self, io: Io) -> Rig<'_> {
        let store = self.dir.join(STORE_NAME);
        if store.exists() {
            fs::remove_dir_all(&store).expect("the old history can be removed");
        }
        succeeds(tool("sync", &["-f"]).arg(&self.dir), TREE_SECONDS);
        let mount = Mount::start(
            &self.dir,
            &MountOpts {
                limit: MOUNT_LIMIT,
                ..MountOpts::new(io)
            },
        );
        assert_eq!(
            mount.status_json()["io"],
            io.name(),
            "the mount uses another I/O path than requested"
        );
        Rig {
            mount,
            tree: self,
            io,
            next: 0,
            stamp: 0,
        }
    }
}

/// Returns every file once, each distant from the previous one, by steps coprime to the length.
fn shuffled(files: &[PathBuf]) -> Vec<PathBuf> {
    const PRIME: usize = 7919;
    assert!(
        !files.len().is_multiple_of(PRIME),
        "the size of the tree is a multiple of PRIME"
    );
    (0..files.len())
        .map(|index| files[index * PRIME % files.len()].clone())
        .collect()
}

/// The mounted tree.
pub struct Rig<'a> {
    pub mount: Mount,
    pub tree: &'a Tree,
    pub io: Io,
    next: usize,
    stamp: u64,
}

impl Rig<'_> {
    pub fn client(&self) -> Client {
        let store = rustix::fs::openat(
            CWD,
            self.mount.path().join(STORE_NAME),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        Client::connect(store.expect("the mount points to its store")).expect("the daemon listens")
    }

    /// Returns the next `count` relative paths; none is repeated before all were returned.
    pub fn files(&mut self, count: usize) -> Vec<PathBuf> {
        let all = &self.tree.files;
        let chosen = (0..count)
            .map(|index| all[(self.next + index) % all.len()].clone())
            .collect();
        self.next = (self.next + count) % all.len();
        chosen
    }

    /// Changes the next `count` files: open, a small write, close.
    pub fn change(&mut self, count: usize) {
        let root = self.mount.path().to_owned();
        for path in self.files(count) {
            let stamp = self.stamp();
            let file = OpenOptions::new()
                .write(true)
                .open(root.join(path))
                .expect("a file can be opened");
            write_stamp(&file, stamp);
        }
    }

    /// Returns a number not written before.
    pub fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Mounts again; returns the duration of the process from fork to exit, when the mount is
    /// ready.
    pub fn mount_again(&mut self) -> Duration {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
        command
            .arg("mount")
            .arg(&self.tree.dir)
            .args(["--io", self.io.name()])
            .current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let started = Instant::now();
        let status = command.status().expect("the binary can be started");
        let took = started.elapsed();
        assert!(status.success(), "ckptfs mount failed: {status}");
        self.mount.adopt();
        took
    }

    /// "xfs, passthrough"
    pub fn name(&self) -> String {
        format!("{}, {}", self.tree.image.fs().name(), self.io.name())
    }
}

/// Writes a number to the beginning of a file.
pub fn write_stamp(file: &File, stamp: u64) {
    file.write_all_at(
        format!("{stamp:0width$}", width = STAMP_BYTES).as_bytes(),
        0,
    )
    .expect("a file can be written");
}

/// Makes a checkpoint; panics on failure.
pub fn make_checkpoint(client: &mut Client) -> CheckpointInfo {
    client
        .ask(CheckpointOptions::default())
        .unwrap_or_else(|error| panic!("checkpoint failed: {error}"))
}
