//! Trees deeper than `PATH_MAX` and deeper than a stack: any user who may create directories can
//! make them.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};

use super::support::{get, put, sh};
use crate::common::random::is_long;
use crate::common::{Io, MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { xfs => a_tree_deeper_than_a_path_and_than_a_stack }

/// Directory levels; the path has twice as many bytes.
const LEVELS: usize = 2_200;

fn dir_in(dir: &OwnedFd, name: &str) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .expect("open")
}

/// Opens the directory `levels` below `dir`; with `make`, creates the directories.
fn bottom(dir: &Path, levels: usize, make: bool) -> OwnedFd {
    (0..levels).fold(open(dir), |dir, _| {
        if make {
            rustix::fs::mkdirat(&dir, "d", Mode::from_raw_mode(0o755)).expect("mkdir");
        }
        dir_in(&dir, "d")
    })
}

fn write(dir: &OwnedFd, content: &str) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file =
        rustix::fs::openat(dir, "leaf", flags, Mode::from_raw_mode(0o644)).expect("open the leaf");
    rustix::io::write(&file, content.as_bytes()).expect("write");
}

fn read(dir: &OwnedFd) -> String {
    let file = rustix::fs::openat(dir, "leaf", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .expect("open the leaf");
    let mut buffer = vec![0; 100];
    let length = rustix::io::read(&file, &mut buffer).expect("read");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

fn a_tree_deeper_than_a_path_and_than_a_stack(v: Variant) {
    // The daemon handles depth alike in both modes, so the short form tests one.
    if v.io == Io::Passthrough && !is_long() {
        return;
    }
    let mut rig = v.start_with(MountOpts::new(v.io), |_| {});
    let root = rig.path().to_owned();
    let levels = if is_long() { 3 * LEVELS } else { LEVELS };
    fs::create_dir(root.join("top")).expect("mkdir");
    let leaf = bottom(&root.join("top"), levels, true);
    write(&leaf, "then");
    let id = rig.mount.checkpoint();
    write(&leaf, "now");
    drop(leaf);
    assert_eq!(
        read(&bottom(&rig.view(id).join("top"), levels, false)),
        "then"
    );
    // A reported path has a maximum length; the directory at that depth represents deeper changes.
    let dirty = rig.mount.dirty();
    assert!(
        dirty.len() == 1 && dirty[0].starts_with("top/d/d/"),
        "{} paths",
        dirty.len()
    );
    assert_eq!(
        rig.mount
            .diff_json(&id.to_string(), None)
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    rig.mount.ok(&["restore", &id.to_string(), "top"]);
    assert_eq!(read(&bottom(&root.join("top"), levels, false)), "then");
    if is_long() {
        comes_and_goes(&mut rig, id, levels);
    }
    let gone = rustix::fs::unlinkat(open(&root), "top", AtFlags::REMOVEDIR);
    assert_eq!(gone, Err(rustix::io::Errno::NOTEMPTY));
    put(root.join("f"), "the mount goes on");
    assert_eq!(get(root.join("f")), "the mount goes on");
    sh(&root, "rm -rf top");
}

/// The whole tree is moved and restored, and survives a remount.
fn comes_and_goes(rig: &mut Rig, id: u64, levels: usize) {
    let root = rig.path().to_owned();
    sh(&root, "mkdir aside");
    let (from, to) = (open(&root), open(&root.join("aside")));
    rustix::fs::renameat_with(&from, "top", &to, "moved", RenameFlags::empty()).expect("rename");
    drop((from, to));
    rig.mount.checkpoint();
    rig.mount.restore(id);
    assert_eq!(read(&bottom(&root.join("top"), levels, false)), "then");
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(
        read(&bottom(&rig.view(id).join("top"), levels, false)),
        "then"
    );
    rig.mount.ok(&["status"]);
}
