//! A daemon with the common default limit of 1,024 descriptors.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use super::support::{errno, get, put, sh};
use super::{rss, size};
use crate::common::wait::{seen, wait_until};
use crate::common::{Fs, Image, Io, Mount, MountOpts, Variant, skip, succeeds, tool};

const DESCRIPTORS: u32 = 1024;

/// Mounts `dir` with that descriptor limit.
fn limited(dir: &Path, io: Io) -> Mount {
    let mut mount = Mount::start(dir, &MountOpts::new(io));
    mount.umount();
    let limit = format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}");
    succeeds(
        tool(
            "prlimit",
            &[
                &limit,
                "--",
                env!("CARGO_BIN_EXE_ckptfs"),
                "mount",
                "--io",
                io.name(),
            ],
        )
        .arg(dir),
        60,
    );
    mount.adopt();
    mount
}

fn with_few(io: Io) {
    let v = Variant { fs: Fs::Xfs, io };
    if let Some(reason) = v.unavailable() {
        return skip(&reason);
    }
    let image = Image::of(v.fs);
    let dir = image.dir("project");
    let (dirs, files) = size_of_tree();
    for number in 1..=dirs {
        let dir = dir.join(format!("d{number}"));
        fs::create_dir(&dir).expect("mkdir");
        put(dir.join("1"), format!("{number}\n"));
        (2..=files).for_each(|file| put(dir.join(file.to_string()), ""));
    }
    let mount = limited(&dir, io);
    let root = mount.path();
    // The kernel has every file and directory cached.
    let known = sh(root, "find . -size +0 | wc -l; find . -type f | wc -l");
    assert_eq!(
        known
            .lines()
            .last()
            .and_then(|line| line.trim().parse().ok()),
        Some(dirs * files),
        "{known}"
    );
    let before = rss(&mount, "with every file known");
    let id = mount.checkpoint();
    for number in 1..=dirs {
        put(root.join(format!("d{number}/1")), "changed");
    }
    assert_eq!(mount.dirty().len(), dirs);
    assert_eq!(
        get(mount.view(id).join(format!("d{dirs}/1"))),
        format!("{dirs}\n")
    );
    opened_until_refused(&mount, dirs);
    // Restores more files than the limit has descriptors. The kernel has an entry for each file
    // that is replaced.
    mount.restore(id);
    assert_eq!(get(root.join("d1/1")), "1\n");
    assert!(rss(&mount, "after a restore") < before + (128 << 20));
}

/// Opens files until the client receives EMFILE. Open files stay writable, captures continue, and
/// the daemon replies.
fn opened_until_refused(mount: &Mount, dirs: usize) {
    let root = mount.path();
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(root.join("log"))
        .expect("open");
    let mut open = Vec::new();
    let refused = loop {
        match File::open(root.join(format!("d{}/1", open.len() % dirs + 1))) {
            Ok(file) => open.push(file),
            Err(error) => break error,
        }
        assert!(open.len() < DESCRIPTORS as usize * 4, "never refused");
    };
    eprintln!("{} files open: {refused}", open.len());
    assert!(
        refused.raw_os_error() == Some(libc::EMFILE) && open.len() > 100,
        "{refused}"
    );
    log.write_all(b"1").expect("an open file can be written");
    // Verbs work while every descriptor is taken: the CLI reaches the store through the link
    // `.ckptfs`, below the mount, which needs no new descriptor in the daemon.
    let second = mount.checkpoint();
    log.write_all(b"2")
        .expect("the file is captured before the write");
    assert_eq!(errno(File::create(root.join("new"))), libc::EMFILE);
    fs::create_dir(root.join("directories")).expect("directories need no descriptor");
    drop(open);
    make_once_there_is_room(&root.join("new"));
    drop(log);
    assert_eq!(
        (get(mount.view(second).join("log")), get(root.join("log"))),
        ("1".to_owned(), "12".to_owned())
    );
}

/// Creates an empty file. The kernel sends RELEASE after close(2) has returned, so a descriptor may
/// be missing for a moment.
fn make_once_there_is_room(path: &Path) {
    wait_until("a descriptor is available", || {
        let made = fs::write(path, "");
        seen(made.is_ok(), made)
    });
}

/// Returns the number of directories, which exceeds the descriptor limit, and the number of files
/// in each.
fn size_of_tree() -> (usize, usize) {
    (size(1_200, 2_000), size(4, 50))
}

#[test]
fn few_descriptors_and_a_large_tree_daemon() {
    with_few(Io::Daemon);
}

#[test]
fn few_descriptors_and_a_large_tree_passthrough() {
    with_few(Io::Passthrough);
}

/// Failed before: a file open only for writing uses one descriptor but was counted as two, so only
/// 256 instead of 512 could be open.
#[test]
fn a_file_that_is_written_to_counts_for_the_descriptors_it_has() {
    let v = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = v.unavailable() {
        return skip(&reason);
    }
    let image = Image::of(v.fs);
    let mount = limited(&image.dir("project"), v.io);
    let may = (DESCRIPTORS - 512) as usize;
    for (mode, each) in [("w", 1), ("r+", 2)] {
        let mut how = OpenOptions::new();
        how.write(true).read(mode == "r+");
        let name = |number: usize| mount.path().join(number.to_string());
        (0..=may).for_each(|number| make_once_there_is_room(&name(number)));
        let mut open = Vec::new();
        let refused = loop {
            match how.open(name(open.len())) {
                Ok(file) => open.push(file),
                Err(error) => break error,
            }
        };
        assert_eq!(
            (open.len(), refused.raw_os_error()),
            (may / each, Some(libc::EMFILE)),
            "{mode}"
        );
        let id = mount.checkpoint();
        open.iter_mut().for_each(|file| {
            file.write_all(b"after")
                .expect("an open file can be written")
        });
        assert!(
            mount
                .view(id)
                .join("0")
                .metadata()
                .is_ok_and(|then| then.len() == 0),
            "{mode}"
        );
    }
}
