//! Set-id bits and file capabilities after each call by each caller, on the plain filesystem and
//! through the mount.
//!
//! The rules are the kernel's (`setattr_should_drop_suidgid` in fs/attr.c, `posix_acl_update_mode`
//! in fs/posix_acl.c). They depend on the caller's groups and CAP_FSETID, which a FUSE request does
//! not carry. The plain filesystem is the reference. generic/193, 355, 375, 683, 684 and 685 of
//! xfstests check some of these rows.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown,
};
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use rustix::fs::{FallocateFlags, XattrFlags};

use super::map::SharedMapping;
use crate::common::{
    CallerCreds, Fs, Image, Io, Mount, MountOpts, Variant, caller, for_each_variant,
};

for_each_variant! { reflink => every_row, a_holder_from_before }
for_each_variant! { branch => every_row, a_holder_from_before }

const OWNER: u32 = 4001;
const GROUP: u32 = 4002;
const STRANGER: u32 = 4003;

const CALLERS: [CallerCreds; 9] = [
    caller("root", 0, 0, &[], true),
    caller("root without CAP_FSETID", 0, 0, &[], false),
    caller("owner with CAP_FSETID", OWNER, STRANGER, &[], true),
    caller("owner, by group", OWNER, GROUP, &[], false),
    caller(
        "owner, by further group",
        OWNER,
        STRANGER,
        &[5, GROUP, 6],
        false,
    ),
    caller("owner, not in the group", OWNER, STRANGER, &[0], false),
    caller("stranger with CAP_FSETID", STRANGER, STRANGER, &[], true),
    caller(
        "stranger, by further group",
        STRANGER,
        STRANGER,
        &[GROUP],
        false,
    ),
    caller("stranger", STRANGER, STRANGER, &[], false),
];

/// A call on a file, by its path or by the caller's descriptor, open for reading and writing.
type Call = fn(&Path, &File) -> io::Result<()>;

const CALLS: &[(&str, Call)] = &[
    ("write", |_, file| file.write_all_at(b"x", 0)),
    ("append", |path, _| {
        OpenOptions::new()
            .append(true)
            .open(path)
            .and_then(|file| file.write_all_at(b"x", 0))
    }),
    ("truncate", |path, _| {
        OpenOptions::new().write(true).open(path)?.set_len(1)
    }),
    ("ftruncate", |_, file| file.set_len(1)),
    ("`O_TRUNC`", |path, _| {
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path)
            .map(drop)
    }),
    ("fallocate", |_, file| {
        Ok(rustix::fs::fallocate(
            file,
            FallocateFlags::empty(),
            0,
            8192,
        )?)
    }),
    ("punch hole", |_, file| {
        Ok(rustix::fs::fallocate(
            file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            4096,
        )?)
    }),
    ("zero range", |_, file| {
        Ok(rustix::fs::fallocate(
            file,
            FallocateFlags::ZERO_RANGE,
            0,
            4096,
        )?)
    }),
    ("direct write", |path, _| {
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)?;
        file.write_all_at(&Block([b'x'; 4096]).0, 0)
    }),
    ("copy_file_range", |path, file| {
        let from = File::open(path.with_file_name("from"))?;
        Ok(rustix::fs::copy_file_range(&from, Some(&mut 0), file, Some(&mut 0), 4096).map(drop)?)
    }),
    ("store through a mapping", |_, file| {
        SharedMapping::new(file.try_clone()?, 4096).store(0, 7);
        Ok(())
    }),
    ("chown of nothing", |path, _| chown(path, None, None)),
    ("chgrp to a group of one's own", |path, _| {
        chown(path, None, Some(STRANGER))
    }),
    ("chown to oneself", |path, _| chown(path, Some(OWNER), None)),
    ("chmod 6777", |path, _| {
        fs::set_permissions(path, Permissions::from_mode(0o6777))
    }),
    ("chmod 2766", |path, _| {
        fs::set_permissions(path, Permissions::from_mode(0o2766))
    }),
    ("utimes", |_, file| file.set_modified(std::time::UNIX_EPOCH)),
    ("setfacl u::rwx,g::rwx,o::rwx", |path, _| {
        set_acl(path, "access", &[(1, 7, !0), (4, 7, !0), (0x20, 7, !0)])
    }),
    ("setfacl u:NAME:rwx", |path, _| {
        set_acl(path, "access", NAMED)
    }),
    ("setfacl -b", |path, _| {
        Ok(rustix::fs::removexattr(path, "system.posix_acl_access")?)
    }),
    ("setfattr user.x", |path, _| {
        Ok(rustix::fs::setxattr(
            path,
            "user.x",
            b"1",
            XattrFlags::empty(),
        )?)
    }),
];

/// Aligned for O_DIRECT.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// An ACL with a named user, by tag, permissions and id.
const NAMED: &[(u16, u16, u32)] = &[
    (1, 7, !0),
    (2, 7, 4009),
    (4, 7, !0),
    (0x10, 7, !0),
    (0x20, 7, !0),
];

/// Sets an ACL in the format of linux/posix_acl_xattr.h.
fn set_acl(path: &Path, which: &str, entries: &[(u16, u16, u32)]) -> io::Result<()> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        value.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    Ok(rustix::fs::setxattr(
        path,
        format!("system.posix_acl_{which}"),
        &value,
        XattrFlags::empty(),
    )?)
}

/// `security.capability` as setcap(8) writes it: cap_net_raw, permitted and effective.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Modes that the rules distinguish: with and without execute permission for the group.
const MODES: [u32; 6] = [0o4777, 0o2777, 0o6777, 0o6766, 0o2666, 0o6666];

/// A tree to make calls in.
struct SetidTree<'a> {
    /// The root for the calls.
    root: &'a Path,
    /// The same tree below the mount.
    below: PathBuf,
    /// The mount, if the tree is one.
    mount: Option<&'a Mount>,
}

impl SetidTree<'_> {
    /// Returns the mode after a call, equal above and below the mount, and the call's error.
    fn left(&self, name: &str, said: io::Result<()>) -> String {
        let (here, below) = (
            fs::metadata(self.root.join(name)).expect("stat"),
            fs::metadata(self.below.join(name)).expect("stat"),
        );
        let capability = |root: &Path| {
            rustix::fs::getxattr(root.join(name), "security.capability", &mut [0; 64][..]).is_ok()
        };
        assert_eq!(
            here.mode() & 0o7777,
            below.mode() & 0o7777,
            "{name}: the mount shows the mode of the backing file"
        );
        assert_eq!(
            capability(self.root),
            capability(&self.below),
            "{name}: the mount shows the capability of the backing file"
        );
        let error = said
            .err()
            .map_or_else(String::new, |error| format!(" {}", errno_name(&error)));
        format!(
            "{:o}{}{error}",
            here.mode() & 0o7777,
            if capability(self.root) { " cap" } else { "" }
        )
    }

    /// Makes a call on a file of OWNER and GROUP that all users may write. The caller opens it
    /// before or after its mode is set.
    fn call(
        &self,
        name: &str,
        caller: CallerCreds,
        (mode, capability): (u32, bool),
        before: bool,
        call: Call,
    ) -> String {
        let path = self.root.join(name);
        fs::write(&path, [b'.'; 4096]).expect("write");
        chown(&path, Some(OWNER), Some(GROUP)).expect("chown");
        let open = || OpenOptions::new().read(true).write(true).open(&path);
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod");
        let turn = Barrier::new(2);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                caller.does(|| {
                    let held = before.then(&open);
                    turn.wait();
                    turn.wait();
                    call(&path, &held.unwrap_or_else(&open)?)
                })
            });
            turn.wait();
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
            if capability {
                rustix::fs::setxattr(
                    &path,
                    "security.capability",
                    &CAPABILITY,
                    XattrFlags::empty(),
                )
                .expect("setcap");
            }
            // The kernel caches the mode.
            assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, mode);
            turn.wait();
            self.left(name, thread.join().expect("no panic"))
        })
    }
}

fn errno_name(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => "EPERM".to_owned(),
        Some(libc::EACCES) => "EACCES".to_owned(),
        Some(libc::ENODATA) => "ENODATA".to_owned(),
        _ => error.to_string(),
    }
}

/// Each row by its name, with its result.
type Rows = Vec<(String, String)>;

fn calls(place: &SetidTree<'_>, before: bool) -> Rows {
    fs::write(place.root.join("from"), [b','; 4096]).expect("write");
    let mut rows = Rows::new();
    for (call_name, call) in CALLS {
        for caller in CALLERS {
            for (mode, capability) in MODES
                .map(|mode| (mode, false))
                .into_iter()
                .chain([(0o755, true)])
            {
                if caller.uid == STRANGER && (capability || *call_name == "chown of nothing") {
                    continue;
                }
                let name = format!(
                    "{call_name} of {mode:o} by {}{}",
                    caller.name,
                    if before { ", opened before" } else { "" }
                );
                let left = place.call(
                    &name.replace('/', " "),
                    caller,
                    (mode, capability),
                    before,
                    *call,
                );
                rows.push((name, left));
            }
        }
    }
    rows
}

/// A call in a directory of OWNER and GROUP that all users may write, and the name to check.
type DirCall = fn(&Path) -> io::Result<()>;

const DIR_CALLS: &[(&str, &str, DirCall)] = &[
    ("setfacl of it", "", |dir| set_acl(dir, "access", NAMED)),
    ("default acl", "", |dir| set_acl(dir, "default", NAMED)),
    ("chmod 2770", "", |dir| {
        fs::set_permissions(dir, Permissions::from_mode(0o2770))
    }),
    ("chgrp", "", |dir| chown(dir, None, Some(STRANGER))),
    ("chown of nothing", "", |dir| chown(dir, None, None)),
    ("creat 2755", "f", |dir| {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o2755)
            .open(dir.join("f"))
            .map(drop)
    }),
    ("creat 6744", "f", |dir| {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o6744)
            .open(dir.join("f"))
            .map(drop)
    }),
    ("mkdir", "d", |dir| {
        fs::DirBuilder::new().mode(0o755).create(dir.join("d"))
    }),
    ("creat 2755, write", "f", |dir| {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o2755)
            .open(dir.join("f"))?;
        file.write_all_at(b"x", 0)
    }),
];

fn dir_calls(place: &SetidTree<'_>) -> Rows {
    let mut rows = Rows::new();
    for (call_name, made, call) in DIR_CALLS {
        for caller in CALLERS {
            let name = format!("{call_name} of a directory by {}", caller.name);
            let dir = place.root.join(&name);
            fs::create_dir(&dir).expect("mkdir");
            chown(&dir, Some(OWNER), Some(GROUP)).expect("chown");
            fs::set_permissions(&dir, Permissions::from_mode(0o2777)).expect("chmod");
            let said = caller.does(|| call(&dir));
            if said.is_err() && !made.is_empty() {
                rows.push((name, errno_name(&said.expect_err("it failed"))));
                continue;
            }
            let left = place.left(&format!("{name}/{made}"), said);
            rows.push((name, left));
        }
    }
    rows
}

/// The kernel sends chown(2) without an id like the request that precedes a write, which any
/// process with the file open may make; on a file that is not open only the owner may.
fn not_open(place: &SetidTree<'_>) -> Rows {
    let name =
        |caller: CallerCreds| format!("chown of nothing of 6777 by {}, not open", caller.name);
    for caller in CALLERS {
        let path = place.root.join(name(caller));
        fs::write(&path, [b'.'; 4096]).expect("write");
        chown(&path, Some(OWNER), Some(GROUP)).expect("chown");
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).expect("chmod");
    }
    // A mount receives the last RELEASE after close(2) has returned.
    if let Some(mount) = place.mount {
        mount.all_is_closed();
    }
    let row = |caller: CallerCreds| {
        let name = name(caller);
        let path = place.root.join(&name);
        let left = place.left(&name, caller.does(|| chown(&path, None, None)));
        (name, left)
    };
    CALLERS.map(row).into()
}

/// Compares the rows on the plain filesystem and through a mount of it; returns the former.
fn compare(v: Variant, rows: fn(&SetidTree<'_>) -> Rows) -> Rows {
    let image = Image::of(v.fs);
    let (plain, project, mounted) = (
        image.dir("plain"),
        image.dir("project"),
        image.dir("mounted"),
    );
    let expected = rows(&SetidTree {
        root: &plain,
        below: plain.clone(),
        mount: None,
    });
    let mount = Mount::start(
        &project,
        &MountOpts {
            mountpoint: Some(mounted),
            ..MountOpts::new(v.io).arg("-osuid")
        },
    );
    let below = image.below();
    let place = mount.path().strip_prefix(image.path());
    let found = rows(&SetidTree {
        mount: Some(&mount),
        root: mount.path(),
        below: match mount.is_branch() {
            true => (below.path())
                .join(place.expect("it is in the image"))
                .join(".ckptfs/tree"),
            false => project,
        },
    });
    let wrong = expected
        .iter()
        .zip(&found)
        .filter(|((name, expected), (_, found))| stricter(v, name, expected) != *found);
    let wrong: Vec<String> = wrong
        .map(|((name, expected), (_, found))| {
            format!("{name}: {found}, and {expected} on the plain filesystem")
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} rows on {v:?}:\n{}",
        wrong.len(),
        expected.len(),
        wrong.join("\n")
    );
    expected
}

/// Returns the expected result where the mount drops more than the plain filesystem
/// (docs/semantics.md, "What is not promised").
fn stricter(v: Variant, name: &str, expected: &str) -> String {
    // The kernel writes with the credentials of the daemon's threads, which lack CAP_FSETID and the
    // file's group.
    let by_the_kernel = name.ends_with("opened before")
        && ["write of", "append of", "direct write of"]
            .iter()
            .any(|call| name.starts_with(call));
    // The dirty page is written with a WRITE request.
    let mapped = name.starts_with("store through a mapping");
    match (v.io, expected.split_once(' ')) {
        (Io::Passthrough, None) if by_the_kernel => format!(
            "{:o}",
            u32::from_str_radix(expected, 8).expect("a mode") & 0o777
        ),
        (Io::Daemon, Some((mode, "cap"))) if mapped => mode.to_owned(),
        _ => expected.to_owned(),
    }
}

fn every_row(v: Variant) {
    let rows = compare(v, |place| {
        let mut rows = calls(place, false);
        rows.extend(dir_calls(place));
        rows.extend(not_open(place));
        rows
    });
    if v.fs == Fs::Xfs {
        check_document(&rows);
    }
}

fn a_holder_from_before(v: Variant) {
    compare(v, |place| calls(place, true));
}

/// Asserts that the table of docs/semantics.md describes XFS.
fn check_document(rows: &Rows) {
    let left = |row: String| {
        rows.iter()
            .find_map(|(name, left)| (*name == row).then_some(left.as_str()))
            .unwrap_or_else(|| panic!("no row {row}"))
    };
    let callers = ["root", "owner, by further group", "owner, not in the group"];
    let of = |what: String| {
        callers
            .map(|caller| left(format!("{what} by {caller}")))
            .join(", ")
    };
    let file = |call: &str| {
        let capability = if left(format!("{call} of 755 by root")).ends_with("cap") {
            "stay"
        } else {
            "go"
        };
        format!(
            "| {call} | {} | {} | {capability} |",
            of(format!("{call} of 6777")),
            of(format!("{call} of 6666"))
        )
    };
    let lines = CALLS.iter().map(|(call, _)| file(call));
    let lines: Vec<String> = lines
        .chain(
            DIR_CALLS
                .iter()
                .map(|(call, ..)| format!("| {call} | {} |", of(format!("{call} of a directory")))),
        )
        .collect();
    let missing = lines
        .iter()
        .any(|line| !DOCUMENT.lines().any(|known| known == line));
    assert!(
        !missing,
        "docs/semantics.md lacks these lines:\n{}",
        lines.join("\n")
    );
}

const DOCUMENT: &str = include_str!("../../../docs/semantics.md");
