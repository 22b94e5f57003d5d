//! Paths of maximum length, and longer.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::support::{errno, get, put};
use crate::common::{Variant, for_each_variant, succeeds};

for_each_variant! { xfs => a_path_as_long_as_can_be_said_and_one_longer }

/// `PATH_MAX` of limits.h, including the terminating null byte.
const PATH_MAX: usize = 4096;

fn dir_in(dir: &OwnedFd, name: &str) -> OwnedFd {
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => panic!("{error}"),
    }
    rustix::fs::openat(
        dir,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .expect("open")
}

fn write_leaf(dir: &OwnedFd, content: &str) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, "leaf", flags, Mode::RWXU).expect("open");
    rustix::io::write(&file, content.as_bytes()).expect("write");
}

fn read_leaf(dir: &OwnedFd) -> String {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, "leaf", flags, Mode::empty()).expect("open");
    let mut bytes = [0; 10];
    let length = rustix::io::read(&file, &mut bytes).expect("read");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

fn a_path_as_long_as_can_be_said_and_one_longer(v: Variant) {
    let rig = v.start();
    let root = rig.path();
    // Creates directories until another name of 255 bytes would exceed PATH_MAX.
    let mut longest = root.to_owned();
    while longest.as_os_str().len() + 1 + 255 + 2 < PATH_MAX {
        longest.push("d".repeat(255));
        fs::create_dir(&longest).expect("mkdir");
    }
    let room = PATH_MAX - 1 - longest.as_os_str().len() - 1;
    let (fits, does_not) = (
        longest.join("f".repeat(room)),
        longest.join("f".repeat(room + 1)),
    );
    assert_eq!(fits.as_os_str().len(), PATH_MAX - 1);
    put(&fits, "then");
    assert_eq!(errno(fs::write(&does_not, "x")), libc::ENAMETOOLONG);
    assert_eq!(
        errno(fs::write(root.join("n".repeat(256)), "x")),
        libc::ENAMETOOLONG
    );
    // Continues below PATH_MAX relative to directory descriptors.
    let bottom: OwnedFd = rustix::fs::open(
        &longest,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .expect("open");
    let below = (0..8).fold(bottom, |dir, _| dir_in(&dir, &"e".repeat(255)));
    let write = |content: &str| write_leaf(&below, content);
    let read = || read_leaf(&below);
    write("then");
    let id = rig.mount.checkpoint();
    put(&fits, "now");
    write("now");
    let dirty = rig.mount.dirty();
    let inside = fits
        .strip_prefix(root)
        .expect("inside")
        .to_string_lossy()
        .into_owned();
    let deeper = dirty
        .iter()
        .find(|path| path.ends_with("/leaf"))
        .expect("the deeper one")
        .clone();
    assert!(
        dirty.len() == 2 && dirty.contains(&inside) && deeper.len() > PATH_MAX,
        "{dirty:?}"
    );
    // The path in a view is longer by `.snapshots/ID/`, so the command runs inside the tree.
    let id_text = id.to_string();
    succeeds(
        rig.mount
            .command(&["restore", "--times=kept", &id_text, &inside])
            .current_dir(root),
        60,
    );
    assert_eq!(get(&fits), "then");
    assert_eq!(read(), "now");
    succeeds(
        rig.mount
            .command(&["restore", "--times=kept", &id_text, &deeper])
            .current_dir(root),
        60,
    );
    assert_eq!(read(), "then");
    assert_eq!(rig.mount.diff_json(&id_text, None), serde_json::json!([]));
}
