//! A user who has a file open or mapped for writing before it becomes a set-id program cannot run
//! code with another user's rights.
//!
//! Failed before: with passthrough the kernel writes with the daemon's rights, which preserves
//! set-id bits. A user kept a file open, root made it 4755, and the user wrote through the old
//! descriptor. The result was the user's program running as root, from the backing directory and
//! after the unmount.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::XattrFlags;

use super::support::{Mapping, get, put};
use crate::common::mount::abort;
use crate::common::{
    CallerCreds, MountOpts, Rig, Variant, caller, for_each_variant, run_limited, tool,
};

for_each_variant! { xfs =>
    a_descriptor_from_before_makes_no_program,
    nor_does_it_once_the_mount_is_gone,
    a_restore_gives_no_bits_to_what_somebody_can_write,
    a_view_has_the_bits_with_the_content_that_had_them,
    attributes_that_could_not_be_kept_are_refused,
    trusted_attributes_are_listed_to_who_may_read_them,
}

const USER: CallerCreds = caller("user", 4001, 4001, &[], false);
const GOOD: &[u8] = b"good";
const EVIL: &[u8] = b"evil";
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// A mount on another directory, with a root directory that every user may write to.
fn start(v: Variant) -> Rig {
    let image = crate::common::Image::of(v.fs);
    let mountpoint = Some(image.dir("mounted"));
    v.start_on(
        image,
        MountOpts {
            mountpoint,
            ..MountOpts::new(v.io).arg("-osuid")
        },
        |dir| mode(dir, 0o777),
    )
}

fn mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn mode_of(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

/// Makes a file as the user, and returns its open descriptor.
fn held(path: &Path) -> File {
    USER.does(|| {
        put(path, GOOD);
        mode(path, 0o755);
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("open")
    })
}

fn make_program(path: &Path) {
    chown(path, Some(0), Some(0)).expect("chown");
    mode(path, 0o6755);
}

#[track_caller]
fn is_harmless(path: &Path) {
    let (content, bits) = (fs::read(path).expect("read"), mode_of(path) & 0o6000);
    let capability = rustix::fs::getxattr(path, "security.capability", &mut [0; 64][..]).is_ok();
    assert!(
        content == GOOD || (bits == 0 && !capability),
        "{}: {bits:o} with data from another user",
        path.display()
    );
}

fn a_descriptor_from_before_makes_no_program(v: Variant) {
    let mut rig = start(v);
    let backing = rig.image.path().join("project");
    for (name, way) in [
        ("write", 0),
        ("truncate", 1),
        ("takeover", 2),
        ("capability", 3),
    ] {
        let path = rig.path().join(name);
        let file = held(&path);
        make_program(&path);
        if way == 2 {
            rig.mount.replace_worker();
        }
        if way == 3 {
            rustix::fs::setxattr(
                &path,
                "security.capability",
                &CAPABILITY,
                XattrFlags::empty(),
            )
            .expect("setcap");
        }
        USER.does(|| {
            if way == 1 {
                file.set_len(3)
            } else {
                file.write_all_at(EVIL, 0)
            }
        })
        .expect("it is open");
        assert_eq!(
            (mode_of(&path), mode_of(backing.join(name))),
            (0o755, 0o755),
            "{name}"
        );
        is_harmless(&path);
        is_harmless(&backing.join(name));
    }
    let written = rig.path().join("killed");
    let file = held(&written);
    make_program(&written);
    USER.does(|| file.write_all_at(EVIL, 0))
        .expect("it is open");
    drop(file);
    rig.mount.kill();
    is_harmless(&backing.join("killed"));
    rig.mount.remount();
    is_harmless(&written);
}

/// The kernel continues to write to the backing file without requests after the daemon has died.
fn nor_does_it_once_the_mount_is_gone(v: Variant) {
    let mut rig = start(v);
    let backing = rig.image.path().join("project");
    let file = held(&rig.path().join("f"));
    abort(rig.path());
    rig.mount.kill();
    run_limited(
        &mut tool("umount", &["-l".as_ref(), rig.path().as_os_str()]),
        60,
    );
    make_program(&backing.join("f"));
    rustix::fs::setxattr(
        backing.join("f"),
        "security.capability",
        &CAPABILITY,
        XattrFlags::empty(),
    )
    .expect("setcap");
    let written = USER.does(|| file.write_all_at(EVIL, 0));
    assert_eq!(
        written.is_ok(),
        v.io == crate::common::Io::Passthrough,
        "{written:?}"
    );
    is_harmless(&backing.join("f"));
}

/// Failed before: a restore kept the inode of a file that was only opened for writing, and set its
/// attributes in place. A user who had it open or mapped wrote afterwards, or between the check of
/// its content and the change of its mode.
fn a_restore_gives_no_bits_to_what_somebody_can_write(v: Variant) {
    let rig = start(v);
    let (open, mapped, linked) = (
        rig.path().join("open"),
        rig.path().join("mapped"),
        rig.path().join("linked"),
    );
    for path in [&open, &mapped, &linked] {
        put(path, GOOD);
        make_program(path);
    }
    rustix::fs::setxattr(
        &mapped,
        "security.capability",
        &CAPABILITY,
        XattrFlags::empty(),
    )
    .expect("setcap");
    fs::hard_link(&linked, rig.path().join("other")).expect("link");
    let id = rig.mount.checkpoint();
    for path in [&open, &mapped, &linked] {
        chown(path, Some(USER.uid), Some(USER.gid)).expect("chown");
    }
    let hold = |path: &Path| {
        USER.does(|| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .expect("open")
        })
    };
    let (file, map, link) = (
        hold(&open),
        Mapping::writable(&hold(&mapped), GOOD.len()),
        hold(&linked),
    );
    USER.does(|| link.write_all_at(EVIL, 0)).expect("write");
    rig.mount.restore(id);
    for (path, what) in [(&open, "mode"), (&mapped, "mapping"), (&linked, "links")] {
        assert_eq!(
            (mode_of(path), get(path)),
            (0o6755, "good".to_owned()),
            "{what} is restored"
        );
    }
    let has_capability =
        rustix::fs::getxattr(&mapped, "security.capability", &mut [0; 64][..]).is_ok();
    USER.does(|| (file.write_all_at(EVIL, 0), link.write_all_at(EVIL, 0)))
        .0
        .expect("it is open");
    map.write(0, EVIL);
    for path in [&open, &mapped, &linked, &rig.path().join("other")] {
        is_harmless(path);
    }
    // A chown(2) after the capability was set would have removed it.
    assert!(has_capability, "it is restored with its capability");
    // A file that is not open keeps its inode.
    drop((file, map, link));
    let before = fs::metadata(&open).expect("stat").ino();
    let id = rig.mount.checkpoint();
    mode(&open, 0o700);
    rig.mount.restore(id);
    assert_eq!(
        (mode_of(&open), fs::metadata(&open).expect("stat").ino()),
        (0o6755, before)
    );
}

/// Root makes the file a program only while it has good content, and the user writes to it only
/// while it is one. At no instant is it a program with the user's content, so no checkpoint may
/// show one.
fn a_view_has_the_bits_with_the_content_that_had_them(v: Variant) {
    let rig = start(v);
    let path = rig.path().join("f");
    let file = held(&path);
    let busy = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(rig.path().join("busy"))
        .expect("open");
    let (stop, mut views) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.write_all_at(GOOD, 0).expect("write");
                make_program(&path);
                while get(&path).as_bytes() == GOOD && !stop.load(Ordering::Relaxed) {}
            }
        });
        scope.spawn(|| {
            USER.does(|| {
                while !stop.load(Ordering::Relaxed) {
                    if mode_of(&path) & 0o6000 == 0o6000 {
                        file.write_all_at(EVIL, 0).expect("write");
                    }
                    busy.write_all_at(EVIL, 0).expect("write");
                }
            });
        });
        views.extend((0..12).map(|_| rig.mount.checkpoint()));
        stop.store(true, Ordering::Relaxed);
    });
    views
        .into_iter()
        .for_each(|id| is_harmless(&rig.view(id).join("f")));
}

/// Failed before: ninety attributes of 60 kB were accepted, and then every chmod failed with E2BIG
/// because they exceeded the size of a record. Checkpoints failed likewise if the file was open for
/// writing.
fn attributes_that_could_not_be_kept_are_refused(v: Variant) {
    let rig = start(v);
    let set = |path: &Path, name: &str, value: &[u8]| -> io::Result<()> {
        Ok(rustix::fs::setxattr(
            path,
            format!("user.{name}"),
            value,
            XattrFlags::empty(),
        )?)
    };
    let files: Vec<_> = (0..6)
        .map(|number| rig.path().join(format!("large{number}")))
        .collect();
    let many = rig.path().join("many");
    files.iter().chain([&many]).for_each(|path| put(path, GOOD));
    let first = rig.mount.checkpoint();
    for path in &files {
        let refused = (0..90).find_map(|number| {
            set(path, &format!("{number}"), &[7; 60_000])
                .err()
                .map(|error| (number, error))
        });
        let (number, error) = refused.expect("ninety are too many");
        assert!(
            number > 30 && error.raw_os_error() == Some(libc::ENOSPC),
            "{number} {error}"
        );
        set(path, "0", &[8; 60_000]).expect("an existing one can be changed");
    }
    let refused = (0..3000).find_map(|number| {
        set(&many, &format!("{number:0240}"), b"")
            .err()
            .map(|error| (number, error))
    });
    let (number, error) = refused.expect("no program can list that many");
    assert!(
        number > 200 && error.raw_os_error() == Some(libc::ENOSPC),
        "{number} {error}"
    );
    let second = rig.mount.checkpoint();
    let open: Vec<File> = files
        .iter()
        .map(|path| OpenOptions::new().write(true).open(path).expect("open"))
        .collect();
    open.iter()
        .for_each(|file| file.write_all_at(EVIL, 0).expect("write"));
    let third = rig.mount.checkpoint();
    for path in files.iter().chain([&many]) {
        mode(path, 0o600);
        fs::remove_file(path).expect("unlink");
    }
    let length = |id: u64, name: &str| {
        rustix::fs::listxattr(rig.view(id).join(name), &mut [0; 65_536][..]).expect("list")
    };
    assert_eq!((length(first, "large0"), length(first, "many")), (0, 0));
    for id in [second, third] {
        assert!(length(id, "large5") > 200 && length(id, "many") > 40_000);
        assert_eq!(mode_of(rig.view(id).join("many")), 0o644);
    }
}

/// Names in the `trusted` namespace are listed only for processes with CAP_SYS_ADMIN (xattr(7)).
/// Failed before: the daemon has it, and listed them for every user.
fn trusted_attributes_are_listed_to_who_may_read_them(v: Variant) {
    let rig = start(v);
    let path = rig.path().join("f");
    put(&path, GOOD);
    mode(&path, 0o666);
    for name in ["trusted.secret", "user.open"] {
        rustix::fs::setxattr(&path, name, b"1", XattrFlags::empty()).expect("setxattr");
    }
    let id = rig.mount.checkpoint();
    let list = |path: &Path| {
        let mut buffer = [0; 4096];
        let length = rustix::fs::listxattr(path, &mut buffer[..]).expect("list");
        let names = buffer[..length]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty());
        let mut names: Vec<String> = names
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        names.sort();
        names
    };
    for path in [&path, &rig.view(id).join("f")] {
        assert_eq!(USER.does(|| list(path)), ["user.open"]);
        assert_eq!(list(path), ["trusted.secret", "user.open"]);
    }
}
