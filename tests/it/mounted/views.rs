//! A view shows the complete tree at its checkpoint, unaffected by any later change of the live
//! files.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, setxattr, utimensat,
};

use super::support::{Mapping, errno, get, names, noise, put, said, sh, tree};
use crate::common::tree::assert_tree_is;
use crate::common::{
    MountOpts, Rig, TreeOpts, Variant, assert_same_tree, copy_tree, for_each_variant, sample_tree,
};

for_each_variant! { xfs =>
    every_change_to_a_view_fails_with_erofs,
    directories_renamed_and_deleted_stay_in_the_view,
    snapshots_is_hidden_and_has_latest_and_tags,
    a_checkpoint_is_made_with_mkdir_and_deleted_with_rmdir,
    a_deleted_checkpoint_is_gone_at_once_under_all_its_names,
}
for_each_variant! { xfs => each_checkpoint_keeps_its_own_state_of_a_file, stores_through_a_mapping_show_in_the_view_as_they_were }
for_each_variant! { reflink => a_view_equals_a_plain_copy_taken_at_that_moment, a_reader_that_opened_a_past_file_first_still_reads_the_old_bytes }

/// Compares with `diff`, `rsync` and `tar`, each of which checks attributes that the others skip.
fn tools_find_no_difference(view: &Path, copy: &Path, scratch: &Path) {
    let (view_dir, copy_dir) = (
        format!("{}/", view.display()),
        format!("{}/", copy.display()),
    );
    // diff reports two pipes or devices as different if their inodes differ.
    let mut arguments: Vec<&OsStr> = [
        "-r",
        "--no-dereference",
        "-x",
        "fifo",
        "-x",
        "socket",
        "-x",
        "null",
        "-x",
        "block",
    ]
    .map(OsStr::new)
    .to_vec();
    arguments.extend([view.as_os_str(), copy.as_os_str()]);
    assert_eq!(said("diff", &arguments), "", "diff -r");
    let rsync = [
        "-anc",
        "--itemize-changes",
        "-AXH",
        "--delete",
        &view_dir,
        &copy_dir,
    ]
    .map(OsStr::new);
    assert_eq!(said("rsync", &rsync), "", "rsync -anc");
    let archive = scratch.join("copy.tar");
    sh(
        copy,
        &format!(
            "tar --xattrs --xattrs-include='*' --acls --exclude=socket -cf {} .",
            archive.display()
        ),
    );
    sh(
        view,
        &format!(
            "test -z \"$(tar -df {} 2>&1)\" || tar -df {0}",
            archive.display()
        ),
    );
    fs::remove_file(archive).unwrap();
}

/// Makes sample files before the mount, and the same through it.
fn two_samples(v: Variant) -> Rig {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    fs::create_dir(rig.path().join("made")).unwrap();
    sample_tree(&rig.path().join("made"));
    rig
}

fn a_view_equals_a_plain_copy_taken_at_that_moment(v: Variant) {
    let mut rig = two_samples(v);
    let copy = rig.image.path().join("copy");
    copy_tree(rig.path(), &copy);
    let id = rig.mount.checkpoint();
    let live = tree(rig.path());
    tools_find_no_difference(&rig.view(id), &copy, rig.image.path());
    assert_same_tree(&rig.view(id), &copy, &TreeOpts::default());
    let numbers = tree(&rig.view(id));
    for (path, node) in &numbers {
        assert!(
            live.values().all(|other| other.ino != node.ino),
            "{path:?} has the number of a live inode"
        );
    }
    // All files are removed, and then others are created in their place.
    sh(
        rig.path(),
        "rm -rf -- *; mkdir plain.txt deep; touch empty-dir wide; echo new > deep/er",
    );
    tools_find_no_difference(&rig.view(id), &copy, rig.image.path());
    assert_same_tree(&rig.view(id), &copy, &TreeOpts::default());
    rig.mount.umount();
    rig.mount.remount();
    assert_same_tree(&rig.view(id), &copy, &TreeOpts::default());
    for (path, node) in tree(&rig.view(id)) {
        assert_eq!(
            node.ino, numbers[&path].ino,
            "{path:?} has another number after a remount"
        );
    }
}

fn each_checkpoint_keeps_its_own_state_of_a_file(v: Variant) {
    let mut rig = v.start();
    let file = rig.path().join("f");
    let mut expected = Vec::new();
    put(&file, "0");
    for round in 1..=6_u8 {
        match round {
            1 => put(&file, noise(100_000, 1)),
            2 => OpenOptions::new()
                .append(true)
                .open(&file)
                .unwrap()
                .write_all(b"appended")
                .unwrap(),
            3 => OpenOptions::new()
                .write(true)
                .open(&file)
                .unwrap()
                .set_len(5000)
                .unwrap(),
            4 => OpenOptions::new()
                .write(true)
                .open(&file)
                .unwrap()
                .write_all_at(b"in the middle", 2500)
                .unwrap(),
            5 => fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap(),
            _ => fs::remove_file(&file).unwrap(),
        }
        let id = rig.mount.checkpoint();
        expected.push((id, tree(rig.path())));
    }
    put(&file, "born again");
    for remounted in [false, true] {
        for (id, tree) in &expected {
            assert_tree_is(&rig.view(*id), tree, &TreeOpts::default());
        }
        if !remounted {
            rig.mount.umount();
            rig.mount.remount();
        }
    }
    assert_eq!(get(&file), "born again");
}

fn directories_renamed_and_deleted_stay_in_the_view(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "mkdir -p a/b/c x/y; echo 1 >a/b/c/one; echo 2 >a/b/two; echo 3 >x/y/three; ln -s b/two a/link; ln a/b/two x/hard");
    });
    let root = rig.path();
    let (first, was) = (rig.mount.checkpoint(), tree(root));
    sh(
        root,
        "mv a/b x/moved; echo more >> x/moved/c/one; mkdir a/b; echo other > a/b/two",
    );
    let (second, then) = (rig.mount.checkpoint(), tree(root));
    sh(root, "mv x a/b/; rm -rf a/b/x/moved/c; mv a z");
    let (third, after) = (rig.mount.checkpoint(), tree(root));
    sh(root, "rm -rf z; echo all gone > a");
    for (id, expected) in [(first, &was), (second, &then), (third, &after)] {
        assert_tree_is(&rig.view(id), expected, &TreeOpts::default());
    }
    assert_eq!(
        get(rig.view(first).join("a/link")),
        "2\n",
        "a link is followed inside the view"
    );
    assert_eq!(get(rig.view(second).join("x/moved/c/one")), "1\nmore\n");
}

/// Returns the errors of changes of attributes, and of creations.
fn changes_of_inodes(root: &Path, view: &Path) -> Vec<(&'static str, i32)> {
    let f = view.join("f");
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        },
        last_modification: Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        },
    };
    vec![
        (
            "utimens",
            utimensat(CWD, &f, &times, AtFlags::empty())
                .unwrap_err()
                .raw_os_error(),
        ),
        (
            "mknod",
            mknodat(
                CWD,
                view.join("new"),
                FileType::Fifo,
                Mode::from_raw_mode(0o600),
                0,
            )
            .unwrap_err()
            .raw_os_error(),
        ),
        (
            "setxattr",
            setxattr(&f, "user.x", b"1", XattrFlags::empty())
                .unwrap_err()
                .raw_os_error(),
        ),
        (
            "removexattr",
            rustix::fs::removexattr(&f, "user.x")
                .unwrap_err()
                .raw_os_error(),
        ),
        (
            "create in .snapshots",
            errno(File::create_new(root.join(".snapshots/file"))),
        ),
    ]
}

fn every_change_to_a_view_fails_with_erofs(v: Variant) {
    let rig = v.start();
    let root = rig.path();
    put(root.join("f"), "old");
    fs::create_dir(root.join("d")).unwrap();
    symlink("f", root.join("l")).unwrap();
    let id = rig.mount.checkpoint();
    let view = rig.view(id);
    let f = view.join("f");
    let mut results = changes_of_names(root, &view);
    results.extend(changes_of_inodes(root, &view));
    let wrong: Vec<_> = results
        .into_iter()
        .filter(|(_, errno)| *errno != libc::EROFS)
        .collect();
    assert!(wrong.is_empty(), "not EROFS: {wrong:?}");
    assert_eq!(
        errno(fs::hard_link(&f, root.join("out-of-the-past"))),
        libc::EXDEV,
        "a link from the view into the live tree"
    );
    assert_eq!(
        (get(&f), names(&view)),
        (
            "old".to_owned(),
            vec!["d".to_owned(), "f".to_owned(), "l".to_owned()]
        )
    );
}

/// Returns the errors of changes of contents and names.
fn changes_of_names(root: &Path, view: &Path) -> Vec<(&'static str, i32)> {
    let (f, d, l) = (view.join("f"), view.join("d"), view.join("l"));
    vec![
        (
            "open for writing",
            errno(OpenOptions::new().write(true).open(&f)),
        ),
        (
            "open to append",
            errno(OpenOptions::new().append(true).open(&f)),
        ),
        (
            "open to truncate",
            errno(OpenOptions::new().write(true).truncate(true).open(&f)),
        ),
        (
            "truncate",
            errno(OpenOptions::new().read(true).write(true).open(&f)),
        ),
        ("create", errno(File::create_new(view.join("new")))),
        (
            "create in a directory",
            errno(File::create_new(d.join("new"))),
        ),
        ("mkdir", errno(fs::create_dir(view.join("new")))),
        ("unlink", errno(fs::remove_file(&f))),
        ("unlink a link", errno(fs::remove_file(&l))),
        ("rmdir", errno(fs::remove_dir(&d))),
        ("rename inside", errno(fs::rename(&f, view.join("g")))),
        (
            "rename into the live tree",
            errno(fs::rename(&f, root.join("g"))),
        ),
        (
            "rename into the view",
            errno(fs::rename(root.join("f"), d.join("f"))),
        ),
        ("symlink", errno(symlink("x", view.join("new")))),
        (
            "chmod",
            errno(fs::set_permissions(&f, Permissions::from_mode(0o600))),
        ),
        (
            "chown",
            errno(std::os::unix::fs::chown(&f, Some(1), Some(1))),
        ),
        (
            "link in the view",
            errno(fs::hard_link(&f, view.join("new"))),
        ),
    ]
}

fn snapshots_is_hidden_and_has_latest_and_tags(v: Variant) {
    let mut rig = v.start();
    put(rig.path().join("f"), "1");
    rig.mount.ok(&["checkpoint", "--tag", "v1"]);
    put(rig.path().join("f"), "2");
    rig.mount.checkpoint();
    assert_eq!(
        names(rig.path()),
        ["f"],
        "a listing of the root does not name .snapshots"
    );
    let dir = rig.path().join(".snapshots");
    assert_eq!(names(&dir), ["1", "2", "latest", "v1"]);
    assert_eq!(fs::read_link(dir.join("latest")).unwrap(), Path::new("2"));
    assert_eq!(fs::read_link(dir.join("v1")).unwrap(), Path::new("1"));
    assert_eq!(
        (get(dir.join("latest/f")), get(dir.join("v1/f"))),
        ("2".into(), "1".into())
    );
    for name in ["3", "01", "0", "v2", "latest2", "+1"] {
        assert_eq!(
            errno(fs::symlink_metadata(dir.join(name))),
            libc::ENOENT,
            "{name}"
        );
    }
    rig.mount.checkpoint();
    assert_eq!(
        fs::read_link(dir.join("latest")).unwrap(),
        Path::new("3"),
        "latest follows"
    );
    our_names_are_ours(rig.path());
    fs::remove_file(dir.join("v1")).unwrap();
    assert_eq!(
        names(&dir),
        ["1", "2", "3", "latest"],
        "rm of a tag removes the tag and nothing else"
    );
    rig.mount.umount();
    let mut visible = crate::common::Mount::start(
        &rig.image.path().join("project"),
        &MountOpts::new(v.io).arg("--snapdir=visible"),
    );
    assert_eq!(names(visible.path()), [".snapshots", "f"]);
    visible.umount();
}

/// Asserts that our names cannot be created, renamed or removed.
fn our_names_are_ours(root: &Path) {
    let dir = root.join(".snapshots");
    for name in [".snapshots", ".ckptfs"] {
        assert_eq!(
            errno(fs::create_dir(root.join(name))),
            libc::EEXIST,
            "{name}"
        );
    }
    fs::create_dir(root.join("d")).unwrap();
    assert_eq!(errno(fs::rename(root.join("d"), &dir)), libc::EPERM);
    assert_eq!(
        errno(fs::rename(root.join("f"), root.join(".ckptfs"))),
        libc::EPERM
    );
    assert_eq!(errno(fs::rename(&dir, root.join("mine"))), libc::EPERM);
    assert_eq!(
        (
            errno(fs::remove_dir(&dir)),
            errno(fs::remove_file(root.join(".ckptfs")))
        ),
        (libc::EPERM, libc::EPERM)
    );
    fs::remove_dir(root.join("d")).unwrap();
}

fn a_checkpoint_is_made_with_mkdir_and_deleted_with_rmdir(v: Variant) {
    let rig = v.start();
    let dir = rig.path().join(".snapshots");
    put(rig.path().join("f"), "1");
    fs::create_dir(dir.join("before")).unwrap();
    put(rig.path().join("f"), "2");
    assert_eq!(get(dir.join("before/f")), "1");
    assert_eq!(
        rig.mount.log_json()[0]["tags"],
        serde_json::json!(["before"])
    );
    for bad in ["7", "latest", "live", "before"] {
        let errno = errno(fs::create_dir(dir.join(bad)));
        assert!(
            [libc::EINVAL, libc::EEXIST].contains(&errno),
            "mkdir {bad}: errno {errno}"
        );
    }
    let id = rig.mount.checkpoint();
    fs::remove_dir(dir.join("before")).unwrap();
    assert_eq!(names(&dir), [id.to_string(), "latest".to_owned()]);
    assert_eq!(errno(fs::read(dir.join("before/f"))), libc::ENOENT);
    fs::remove_dir(dir.join(id.to_string())).unwrap();
    assert_eq!(names(&dir), Vec::<String>::new());
    assert_eq!(errno(fs::remove_dir(dir.join("99"))), libc::ENOENT);
    fs::create_dir(dir.join("before")).unwrap();
    assert_eq!(get(dir.join("before/f")), "2", "the name is free again");
}

fn a_reader_that_opened_a_past_file_first_still_reads_the_old_bytes(v: Variant) {
    const LENGTH: usize = 3 << 20;
    const CASES: [&str; 6] = [
        "overwritten",
        "truncated",
        "deleted",
        "renamed-over",
        "mapped",
        "untouched",
    ];
    let old = noise(LENGTH, 1);
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        for name in CASES {
            put(dir.join(name), noise(LENGTH, 1));
        }
    });
    let root = rig.path();
    let view = rig.view(rig.mount.checkpoint());
    let mut readers: Vec<(File, Mapping)> = Vec::new();
    for name in CASES {
        let mut file = File::open(view.join(name)).unwrap();
        let mapping = Mapping::readable(&file, LENGTH);
        let mut head = [0; 4096];
        file.read_exact(&mut head).unwrap();
        assert_eq!(
            (head.as_slice(), mapping.read(8192, 4096).as_slice()),
            (&old[..4096], &old[8192..8192 + 4096]),
            "{name}"
        );
        readers.push((file, mapping));
    }
    OpenOptions::new()
        .write(true)
        .open(root.join("overwritten"))
        .unwrap()
        .write_all_at(&noise(LENGTH, 2), 0)
        .unwrap();
    OpenOptions::new()
        .write(true)
        .open(root.join("truncated"))
        .unwrap()
        .set_len(10)
        .unwrap();
    fs::remove_file(root.join("deleted")).unwrap();
    put(root.join("other"), noise(LENGTH, 3));
    fs::rename(root.join("other"), root.join("renamed-over")).unwrap();
    let live = OpenOptions::new()
        .read(true)
        .write(true)
        .open(root.join("mapped"))
        .unwrap();
    let stores = Mapping::writable(&live, LENGTH);
    stores.write(0, &noise(LENGTH, 4));
    for (name, (file, mapping)) in CASES.iter().zip(&mut readers) {
        let mut read = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut read).unwrap();
        assert!(read == old, "{name}: other bytes by read");
        assert!(
            mapping.read(0, LENGTH) == old,
            "{name}: other bytes by mapping"
        );
        assert!(
            fs::read(view.join(name)).unwrap() == old,
            "{name}: other bytes when opened again"
        );
    }
}

fn stores_through_a_mapping_show_in_the_view_as_they_were(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("m");
    put(&path, vec![b'.'; 8192]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mapping = Mapping::writable(&file, 8192);
    drop(file);
    let mut expected = Vec::new();
    for round in 0..5_u8 {
        mapping.write(0, &[b'a' + round; 10]);
        mapping.write(4096 + usize::from(round), &[b'A' + round]);
        expected.push((rig.mount.checkpoint(), mapping.read(0, 8192)));
        mapping.write(100, &[b'a' + round; 10]);
    }
    drop(mapping);
    put(&path, "something else");
    for (id, bytes) in expected {
        assert!(
            fs::read(rig.view(id).join("m")).unwrap() == bytes,
            "checkpoint {id}"
        );
    }
}

/// The kernel caches the path to a view, so a deletion must invalidate it, even when the kernel
/// itself waits for the deleting request.
fn a_deleted_checkpoint_is_gone_at_once_under_all_its_names(v: Variant) {
    let rig = v.start();
    put(rig.path().join("f"), "old");
    let dir = rig.path().join(".snapshots");
    for (round, way) in ["rmdir NAME", "rmdir NUMBER", "delete"]
        .into_iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        fs::create_dir(dir.join("named")).unwrap();
        let number = (round + 1).to_string();
        for name in ["named", &number] {
            assert_eq!(get(dir.join(name).join("f")), "old", "{way}");
            assert_eq!(names(dir.join(name)), ["f"], "{way}");
        }
        match way {
            "rmdir NAME" => fs::remove_dir(dir.join("named")).unwrap(),
            "rmdir NUMBER" => fs::remove_dir(dir.join(&number)).unwrap(),
            _ => drop(rig.mount.ok(&["delete", "--yes", &number])),
        }
        for name in ["named", &number] {
            assert_eq!(
                errno(fs::symlink_metadata(dir.join(name))),
                libc::ENOENT,
                "{way}: {name}"
            );
            assert_eq!(
                errno(fs::read(dir.join(name).join("f"))),
                libc::ENOENT,
                "{way}: a file in {name}"
            );
        }
    }
}
