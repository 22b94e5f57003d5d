//! The live tree behaves like the directory itself: every operation on the mount has its result in
//! the backing directory.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps, openat,
    utimensat,
};

use super::support::{Mapping, errno, get, noise, put, sh, tree};
use crate::common::tree::assert_tree_is;
use crate::common::{
    MountOpts, Rig, TreeOpts, Variant, for_each_variant, run_limited, sample_tree, tool,
};

for_each_variant! { all =>
    content_holes_and_ranges,
}
for_each_variant! { xfs =>
    unlinked_files_live_until_they_are_closed,
    permissions_umask_and_acls_as_an_ordinary_user,
    set_id_bits_go_when_somebody_else_changes_the_file,
    locks_and_appends_of_two_processes,
    mappings_and_direct_io,
    times_access_and_statfs,
    what_was_made_through_the_mount_is_in_the_directory,
}

pub(super) fn nofollow(path: &Path) -> fs::Metadata {
    fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a test on a mount with a checkpoint, so that every change captures; asserts that the view
/// is unchanged at the end.
pub(super) fn with_past(v: Variant, fill: impl FnOnce(&Path), test: impl FnOnce(&Path)) {
    let rig: Rig = v.start_with(MountOpts::new(v.io), fill);
    let was = tree(rig.path());
    let id = rig.mount.checkpoint();
    test(rig.path());
    assert_tree_is(&rig.view(id), &was, &TreeOpts::default());
}

fn content_holes_and_ranges(v: Variant) {
    const SIZE: usize = 1 << 20;
    let fill = |dir: &Path| {
        put(dir.join("data"), noise(SIZE, 1));
        put(dir.join("other"), noise(SIZE, 2));
    };
    with_past(v, fill, |root| {
        let mut expected = noise(SIZE, 1);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(root.join("data"))
            .unwrap();
        file.write_all_at(b"in the middle", 300_000).unwrap();
        expected[300_000..300_013].copy_from_slice(b"in the middle");
        rustix::fs::fallocate(
            &file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            65_536,
            131_072,
        )
        .unwrap();
        expected[65_536..65_536 + 131_072].fill(0);
        assert!(
            fs::read(root.join("data")).unwrap() == expected,
            "after a punched hole"
        );
        assert_eq!(
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)),
            Ok(65_536)
        );
        assert_eq!(
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(65_536)),
            Ok(65_536 + 131_072)
        );
        file.set_len(3 << 20).unwrap();
        expected.resize(3 << 20, 0);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 3 << 20, 4096).unwrap();
        expected.resize((3 << 20) + 4096, 0);
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
        let other = File::open(root.join("other")).unwrap();
        let (mut from, mut to) = (0, 1 << 20);
        while (from as usize) < SIZE {
            let left = SIZE - from as usize;
            let copied =
                rustix::fs::copy_file_range(&other, Some(&mut from), &file, Some(&mut to), left)
                    .unwrap();
            assert!(copied > 0);
        }
        expected[SIZE..2 * SIZE].copy_from_slice(&noise(SIZE, 2));
        assert!(
            fs::read(root.join("data")).unwrap() == expected,
            "after copy_file_range"
        );
        file.set_len(10).unwrap();
        file.set_len(20).unwrap();
        expected.truncate(10);
        expected.resize(20, 0);
        assert!(
            fs::read(root.join("data")).unwrap() == expected,
            "cut and grown again"
        );
        a_hole_takes_nothing(root);
    });
}

fn a_hole_takes_nothing(root: &Path) {
    let mut sparse = File::create(root.join("sparse")).unwrap();
    sparse.seek(SeekFrom::Start(100 << 20)).unwrap();
    sparse.write_all(b"end").unwrap();
    sparse.sync_all().unwrap();
    assert!(
        sparse.metadata().unwrap().blocks() < 10_000,
        "a hole has no blocks"
    );
}

fn unlinked_files_live_until_they_are_closed(v: Variant) {
    let fill = |dir: &Path| {
        put(dir.join("old"), "old content");
        sh(dir, "mkdir d; echo x > d/x");
    };
    with_past(v, fill, |root| {
        put(root.join("new"), "new content");
        for name in ["old", "new"] {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(root.join(name))
                .unwrap();
            fs::remove_file(root.join(name)).unwrap();
            assert_eq!(errno(fs::metadata(root.join(name))), libc::ENOENT);
            put(root.join(name), "another");
            file.write_all_at(b"NEW", 0).unwrap();
            file.set_len(20).unwrap();
            file.set_permissions(Permissions::from_mode(0o640)).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(&text[3..11], " content");
            let meta = file.metadata().unwrap();
            assert_eq!(
                (meta.nlink(), meta.len(), meta.mode() & 0o777),
                (0, 20, 0o640),
                "{name}"
            );
            assert_eq!(get(root.join(name)), "another");
            file.sync_all().unwrap();
        }
        let dir: OwnedFd = File::open(root.join("d")).unwrap().into();
        sh(root, "rm -r d");
        let failed = openat(
            &dir,
            "new",
            OFlags::CREATE | OFlags::WRONLY,
            Mode::from_raw_mode(0o600),
        )
        .unwrap_err();
        assert_eq!(
            failed.raw_os_error(),
            libc::ENOENT,
            "nothing can be created in a removed directory"
        );
        let mut list = rustix::fs::Dir::read_from(&dir).unwrap();
        assert!(
            list.all(|entry| [".", ".."].contains(&entry.unwrap().file_name().to_str().unwrap()))
        );
        let temp = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(root.join("t"))
            .unwrap();
        fs::rename(root.join("old"), root.join("t")).unwrap();
        temp.write_all_at(b"replaced", 0).unwrap();
        assert_eq!(get(root.join("t")), "another");
    });
}

/// Runs a script as an unprivileged user.
fn as_user(dir: &Path, uid: u32, script: &str) -> String {
    let id = uid.to_string();
    let mut command = tool(
        "setpriv",
        &[
            "--reuid",
            &id,
            "--regid",
            &id,
            "--clear-groups",
            "bash",
            "-c",
            script,
        ],
    );
    let output = run_limited(command.current_dir(dir), 60);
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn permissions_umask_and_acls_as_an_ordinary_user(v: Variant) {
    let fill = |dir: &Path| {
        sh(
            dir,
            "chmod 755 .; mkdir mine shared group acl; chown 1000:1000 mine; chmod 1777 shared; chgrp 77 group; chmod 2777 group; echo secret > s; chmod 600 s
             echo mine > mine/f; chown 1000:1000 mine/f; echo root > shared/root; chmod 777 acl; setfacl -d -m u:2000:rwx,m::rwx,o::- acl; setfacl -m u:1000:- s",
        );
    };
    with_past(v, fill, |root| {
        let user = |script: &str| as_user(root, 1000, script);
        assert!(user("cat s").contains("Permission denied"));
        assert!(user("echo x > new").contains("Permission denied"));
        assert!(
            user("rm shared/root").contains("not permitted"),
            "the sticky bit is respected"
        );
        assert!(user("chown 0 mine/f").contains("not permitted"));
        assert!(user("chmod 777 s").contains("not permitted"));
        assert!(
            user("touch -d 2001-01-01 shared/root").contains("not permitted")
                || user("touch -d 2001-01-01 shared/root").contains("denied")
        );
        assert_eq!(
            user("umask 027; echo x > mine/n; mkdir mine/d; stat -c '%a %u:%g' mine/n mine/d"),
            "640 1000:1000\n750 1000:1000\n"
        );
        assert_eq!(
            user(
                "umask 077; mkfifo mine/p; ln -s x mine/l; stat -c '%a %u' mine/p; stat -c %u mine/l"
            ),
            "600 1000\n1000\n"
        );
        assert_eq!(
            user("umask 022; echo x > group/f; mkdir group/d; stat -c '%a %g' group/f group/d"),
            "644 77\n2755 77\n",
            "a setgid directory"
        );
        let acl = user("umask 022; echo x > acl/f; getfacl -cnE acl/f");
        assert_eq!(
            acl.trim_end(),
            "user::rw-\nuser:2000:rwx\ngroup::rwx\nmask::rw-\nother::---",
            "a default ACL replaces the umask"
        );
        assert_eq!(
            as_user(root, 2000, "cat acl/f; echo y >> acl/f; cat acl/f"),
            "x\nx\ny\n",
            "the ACL grants access to the user that it names"
        );
        assert!(as_user(root, 3000, "cat acl/f").contains("Permission denied"));
        assert_eq!(
            user("mkdir acl/d && getfacl -cdn acl/d | grep 2000"),
            "user:2000:rwx\n",
            "a directory inherits the default ACL"
        );
        assert!(user("chmod 400 mine/f; echo x > mine/f").contains("Permission denied"));
        assert_eq!(user("test -w mine/f || echo no"), "no\n");
        assert!(
            user("cat .ckptfs/format; ls .ckptfs/").contains("denied"),
            "only the owner can read the store"
        );
    });
}

fn set_id_bits_go_when_somebody_else_changes_the_file(v: Variant) {
    let fill = |dir: &Path| {
        sh(
            dir,
            "for f in w t a c k h m r p; do echo content > $f; chmod 6777 $f; done; echo x > cap; chmod 666 cap; setcap cap_net_raw+ep cap 2>/dev/null || true",
        );
    };
    with_past(v, fill, |root| {
        let user = |script: &str| as_user(root, 1000, script);
        assert_eq!(
            user("echo x > w; stat -c %a w"),
            "777\n",
            "open to truncate, and write"
        );
        assert_eq!(user("echo x >> a; stat -c %a a"), "777\n", "append");
        assert_eq!(user("truncate -s 3 t; stat -c %a t"), "777\n", "truncate");
        assert_eq!(
            user("dd if=/dev/zero of=k bs=1 count=1 conv=notrunc status=none; stat -c %a k"),
            "777\n",
            "a write in the middle"
        );
        assert_eq!(
            sh(root, "echo x >> h; stat -c %a h"),
            "6777\n",
            "root does not clear them"
        );
        let range = "python3 -c \"import os; a=os.open('h',0); b=os.open('r',1); os.copy_file_range(a,b,3)\"";
        assert_eq!(
            user(&format!("{range}; stat -c %a r")),
            "777\n",
            "copy_file_range"
        );
        assert_eq!(
            user("fallocate -p -o 0 -l 4096 p; stat -c %a p"),
            "777\n",
            "fallocate"
        );
        assert_eq!(sh(root, "chown 5 c; stat -c %a c"), "777\n", "chown");
        assert_eq!(user("echo y >> cap; cat cap | wc -l"), "2\n");
        assert_eq!(
            sh(
                root,
                "getfattr -n security.capability cap 2>&1 | grep -c 'No such attribute' || true"
            ),
            "1\n",
            "a write drops file capabilities"
        );
        assert_eq!(
            sh(
                root,
                "chmod 4755 m; stat -c %a m; chmod g+s m; stat -c %a m"
            ),
            "4755\n6755\n"
        );
    });
}

fn locks_and_appends_of_two_processes(v: Variant) {
    with_past(
        v,
        |dir| put(dir.join("f"), ""),
        |root| {
            let path = root.join("f");
            let held = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
            assert!(sh(root, "flock -n f true || echo busy").contains("busy"));
            rustix::fs::flock(&held, FlockOperation::Unlock).unwrap();
            sh(root, "flock -n f true");
            rustix::fs::fcntl_lock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
            let try_lock = "import fcntl\nf = open('f', 'r+')\ntry: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')\nexcept OSError: print('busy')\n";
            let python = format!("python3 -c \"{try_lock}\"");
            if sh(root, "command -v python3 || true").is_empty() {
                eprintln!("no python3: fcntl locks are not tested");
            } else {
                assert_eq!(sh(root, &python), "busy\n");
                rustix::fs::fcntl_lock(&held, FlockOperation::Unlock).unwrap();
                assert_eq!(sh(root, &python), "free\n");
            }
            drop(held);
            sh(
                root,
                "for p in a b c; do (for i in $(seq 300); do echo $p-$i >> f; done) & done; wait",
            );
            let text = get(&path);
            assert_eq!(text.lines().count(), 900, "no line is missing");
            assert!(
                text.lines()
                    .all(|line| line.len() >= 3 && line.as_bytes()[1] == b'-'),
                "no line is torn"
            );
            let writers: Vec<File> = (0..2)
                .map(|_| OpenOptions::new().append(true).open(&path).unwrap())
                .collect();
            for number in 0..50 {
                (&writers[number % 2])
                    .write_all(format!("x-{number}\n").as_bytes())
                    .unwrap();
            }
            assert_eq!(
                get(&path).lines().skip(900).collect::<Vec<_>>(),
                (0..50)
                    .map(|number| format!("x-{number}"))
                    .collect::<Vec<_>>()
            );
        },
    );
}

fn mappings_and_direct_io(v: Variant) {
    with_past(
        v,
        |dir| put(dir.join("m"), noise(1 << 20, 1)),
        |root| {
            let path = root.join("m");
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            let mapping = Mapping::writable(&file, 1 << 20);
            file.write_all_at(b"by write", 5000).unwrap();
            assert_eq!(
                mapping.read(5000, 8),
                b"by write",
                "a write shows in the mapping"
            );
            mapping.write(70_000, b"by store");
            let mut read = [0; 8];
            file.read_exact_at(&mut read, 70_000).unwrap();
            assert_eq!(&read, b"by store", "a store shows to a read");
            assert_eq!(&fs::read(&path).unwrap()[70_000..70_008], b"by store");
            mapping.sync();
            drop((mapping, file));
            let direct = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(&path)
                .unwrap();
            let memory = File::open("/dev/zero").unwrap();
            drop(memory);
            let block = AlignedBlock([0x5a; 4096]);
            direct.write_all_at(&block.0, 8192).unwrap();
            let mut back = AlignedBlock([0; 4096]);
            direct.read_exact_at(&mut back.0, 8192).unwrap();
            assert!(back.0 == block.0 && fs::read(&path).unwrap()[8192..12_288] == block.0);
            let copy = sh(root, "cp m copy; cmp m copy && echo same");
            assert_eq!(copy, "same\n");
        },
    );
}

#[repr(C, align(4096))]
struct AlignedBlock([u8; 4096]);

fn times_access_and_statfs(v: Variant) {
    with_past(
        v,
        |dir| sh(dir, "echo x > f; mkdir d; ln -s f l").truncate(0),
        |root| {
            for (name, seconds) in [("f", -1), ("d", 1), ("l", 4_000_000_000)] {
                let time = |nsec| Timespec {
                    tv_sec: seconds,
                    tv_nsec: nsec,
                };
                let times = Timestamps {
                    last_access: time(1),
                    last_modification: time(999_999_999),
                };
                utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
                let meta = nofollow(&root.join(name));
                assert_eq!(
                    (meta.mtime(), meta.mtime_nsec(), meta.atime()),
                    (seconds, 999_999_999, seconds),
                    "{name}"
                );
            }
            let before = nofollow(&root.join("f"));
            put(root.join("f"), "y");
            let after = nofollow(&root.join("f"));
            assert!(after.mtime() > before.mtime() && after.ctime() >= before.ctime());
            let dir = nofollow(&root.join("d")).mtime();
            put(root.join("d/new"), "");
            assert!(
                nofollow(&root.join("d")).mtime() > dir,
                "a new name changes the time of its directory"
            );
            sh(
                root,
                "test -r f -a -w f -a ! -x f -a -d d -a -L l; chmod +x f; test -x f",
            );
            assert_eq!(as_user(root, 1000, "test -w f || echo no"), "no\n");
            let (here, below) = (
                rustix::fs::statvfs(root).unwrap(),
                rustix::fs::statvfs(root.parent().unwrap()).unwrap(),
            );
            assert_eq!(
                (here.f_blocks * here.f_frsize, here.f_namemax),
                (below.f_blocks * below.f_frsize, 255)
            );
            rustix::fs::fsync(File::open(root.join("d")).unwrap().as_fd()).unwrap();
            rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
        },
    );
}

fn what_was_made_through_the_mount_is_in_the_directory(v: Variant) {
    let mut rig = v.start();
    let root = rig.path().to_owned();
    sample_tree(&root);
    let through = tree(&root);
    rig.mount.umount();
    assert_tree_is(&root, &through, &TreeOpts::default());
    let plain = rig.image.path().join("plain");
    fs::create_dir(&plain).unwrap();
    sample_tree(&plain);
    let opts = TreeOpts {
        mtime: false,
        dir_mtime: false,
        ..TreeOpts::default()
    };
    crate::common::assert_same_tree(&root, &plain, &opts);
    rig.mount.remount();
}
