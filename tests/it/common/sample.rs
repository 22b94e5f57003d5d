//! A small tree with an example of everything that has failed in some snapshot tool.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, makedev, mknodat, setxattr,
    utimensat,
};

/// 2001-09-09, with nanoseconds that rounding to microseconds would lose.
const OLD: Timespec = Timespec {
    tv_sec: 1_000_000_000,
    tv_nsec: 123_456_789,
};

/// Fills the directory `root`. Owners and devices are included only for root.
pub fn sample_tree(root: &Path) {
    let is_root = rustix::process::geteuid().is_root();
    regular_files(root);
    links(root);
    directories(root);
    special_files(root, is_root);
    attributes(root, is_root);
    if is_root {
        chown(root.join("plain.txt"), Some(1234), Some(4321)).unwrap();
        lchown(root.join("dangling"), Some(1000), Some(1000)).unwrap();
    }
    fs::set_permissions(root.join("setuid"), Permissions::from_mode(0o6755)).unwrap();
    old_times(root);
}

fn regular_files(root: &Path) {
    fs::write(root.join("plain.txt"), "a line\n").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(
        root.join("binary"),
        (0..200_000_u32)
            .flat_map(u32::to_le_bytes)
            .collect::<Vec<u8>>(),
    )
    .unwrap();
    fs::write(root.join("unreadable"), "secret").unwrap();
    fs::set_permissions(root.join("unreadable"), Permissions::from_mode(0o000)).unwrap();
    fs::write(root.join("setuid"), "#!/bin/sh\n").unwrap();
    let mut sparse = File::create(root.join("sparse")).unwrap();
    sparse.seek(SeekFrom::Start(8 << 20)).unwrap();
    sparse.write_all(b"after the hole").unwrap();
    sparse.set_len(16 << 20).unwrap();
    let longest = vec![0xff_u8; 255];
    fs::write(
        root.join(OsStr::from_bytes(&longest)),
        "255 bytes that are not UTF-8",
    )
    .unwrap();
    fs::write(
        root.join(OsStr::from_bytes(b"new\nline \\ \"quote\" \x1b[31m")),
        "control characters",
    )
    .unwrap();
}

fn links(root: &Path) {
    fs::create_dir_all(root.join("links")).unwrap();
    fs::hard_link(root.join("plain.txt"), root.join("links/same-as-plain")).unwrap();
    fs::hard_link(root.join("plain.txt"), root.join("links/same-again")).unwrap();
    symlink("plain.txt", root.join("to-plain")).unwrap();
    symlink("no/such/file", root.join("dangling")).unwrap();
    symlink("/etc/passwd", root.join("out-of-the-tree")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
}

fn directories(root: &Path) {
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    fs::write(root.join("deep/er/and/deeper/leaf"), "leaf").unwrap();
    fs::create_dir(root.join("empty-dir")).unwrap();
    fs::create_dir(root.join("sticky")).unwrap();
    fs::set_permissions(root.join("sticky"), Permissions::from_mode(0o1777)).unwrap();
    fs::create_dir(root.join("setgid-dir")).unwrap();
    fs::set_permissions(root.join("setgid-dir"), Permissions::from_mode(0o2775)).unwrap();
    fs::create_dir(root.join("wide")).unwrap();
    for number in 0..300 {
        fs::write(
            root.join(format!("wide/file-{number:03}")),
            format!("{number}"),
        )
        .unwrap();
    }
}

fn special_files(root: &Path, is_root: bool) {
    mknodat(
        CWD,
        root.join("fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    // A path of more than 107 bytes cannot be bound, so the socket is made at a short path.
    let short = tempfile::Builder::new()
        .prefix("s")
        .tempdir_in(root)
        .unwrap();
    match UnixListener::bind(short.path().join("s")) {
        Ok(_listener) => fs::rename(short.path().join("s"), root.join("socket")).unwrap(),
        Err(_) => mknodat(
            CWD,
            root.join("socket"),
            FileType::Socket,
            Mode::from_raw_mode(0o755),
            0,
        )
        .unwrap(),
    }
    if is_root {
        mknodat(
            CWD,
            root.join("null"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            makedev(1, 3),
        )
        .unwrap();
        mknodat(
            CWD,
            root.join("block"),
            FileType::BlockDevice,
            Mode::from_raw_mode(0o600),
            makedev(7, 255),
        )
        .unwrap();
    }
}

/// Sets attributes and ACLs, unless the filesystem has no user attributes (a tmpfs before Linux
/// 6.6).
fn attributes(root: &Path, is_root: bool) {
    let file = root.join("plain.txt");
    match setxattr(
        &file,
        "user.note",
        b"kept \0 with a zero byte",
        XattrFlags::empty(),
    ) {
        Ok(()) => setxattr(
            root.join("deep"),
            "user.on-a-directory",
            b"",
            XattrFlags::empty(),
        )
        .unwrap(),
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        Err(error) => panic!("cannot set an attribute: {error}"),
    }
    if is_root {
        setxattr(&file, "trusted.note", b"for root", XattrFlags::empty()).unwrap();
        // Version 2, cap_net_raw permitted and effective.
        let capability = [
            1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        setxattr(
            root.join("binary"),
            "security.capability",
            &capability,
            XattrFlags::empty(),
        )
        .unwrap();
    }
    // user::rwx, user:1000:r-x, group::r-x, mask::r-x, other::---
    let entries: [(u16, u16, u32); 5] = [
        (1, 7, u32::MAX),
        (2, 5, 1000),
        (4, 5, u32::MAX),
        (0x10, 5, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        setxattr(root.join("setgid-dir"), name, &acl, XattrFlags::empty()).unwrap();
    }
}

/// Sets old times, including one before 1970; last, because every other step would change them.
fn old_times(root: &Path) {
    let set = |name: &str, time: Timespec| {
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    };
    for name in [
        "plain.txt",
        "to-plain",
        "dangling",
        "fifo",
        "empty-dir",
        "deep/er",
        "deep",
    ] {
        set(name, OLD);
    }
    set(
        "empty",
        Timespec {
            tv_sec: -86_400,
            tv_nsec: 0,
        },
    );
    set(
        "binary",
        Timespec {
            tv_sec: 4_000_000_000,
            tv_nsec: 999_999_999,
        },
    );
}
