//! POSIX and Linux semantics of names: links, renames, special files, and listings.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mknodat, openat, renameat_with};

use super::posix::{nofollow, with_past};
use super::support::{errno, get, ino, names, put, sh};
use crate::common::{Fs, MountOpts, Rig, Variant, for_each_variant, sample_tree};

for_each_variant! { xfs => special_files_and_odd_names, large_directories_and_long_paths, a_listing_under_way_has_every_name_that_stays_once }
for_each_variant! { all => names_links_and_renames, a_listing_has_the_numbers_that_stat_has }

fn names_links_and_renames(v: Variant) {
    let fill = |dir: &Path| {
        sh(dir, "mkdir -p a/sub b empty; echo 1 > f; echo 2 > g; echo 3 > a/sub/h; ln f hard; ln -s f link").truncate(0)
    };
    with_past(v, fill, |root| {
        let at = |name: &str| root.join(name);
        exchanged_or_not_replaced(root);
        let number = ino(at("f"));
        assert_eq!(
            rename_with(&at("f"), &at("b/f"), RenameFlags::NOREPLACE),
            Ok(())
        );
        assert_eq!(
            (
                ino(at("b/f")),
                ino(at("hard")),
                nofollow(&at("hard")).nlink()
            ),
            (number, number, 2)
        );
        fs::rename(at("b/f"), at("g")).unwrap();
        assert_eq!(
            (get(at("g")), errno(fs::metadata(at("b/f")))),
            ("1\n".into(), libc::ENOENT)
        );
        fs::rename(at("g"), at("hard")).unwrap();
        assert_eq!(
            names(root),
            ["a", "b", "empty", "g", "hard", "link"],
            "two names of one file: rename does nothing"
        );
        assert_eq!(errno(fs::rename(at("a"), at("a/sub/below"))), libc::EINVAL);
        assert_eq!(
            errno(fs::rename(at("b"), at("a"))),
            if v.fs == Fs::Xfs {
                libc::EEXIST
            } else {
                libc::ENOTEMPTY
            }
        );
        assert_eq!(errno(fs::rename(at("g"), at("b"))), libc::EISDIR);
        assert_eq!(errno(fs::rename(at("b"), at("g"))), libc::ENOTDIR);
        fs::rename(at("b"), at("empty")).unwrap();
        assert_eq!(errno(fs::remove_dir(at("a"))), libc::ENOTEMPTY);
        assert_eq!(errno(fs::remove_dir(at("g"))), libc::ENOTDIR);
        assert_eq!(errno(fs::remove_file(at("a"))), libc::EISDIR);
        assert_eq!(errno(fs::create_dir(at("a"))), libc::EEXIST);
        assert_eq!(errno(File::create_new(at("link"))), libc::EEXIST);
        assert_eq!(
            errno(fs::read(at("link"))),
            libc::ENOENT,
            "its target was renamed"
        );
        links_are_counted(root);
        sh(root, "rm -rf a empty link link2; test \"$(ls)\" = g");
    });
}

/// Checks hard links of files and symbolic links, and the link counts of directories.
fn links_are_counted(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::hard_link(at("link"), at("link2")).unwrap();
    assert_eq!(
        (ino(at("link")), fs::read_link(at("link2")).unwrap()),
        (ino(at("link2")), "f".into())
    );
    assert_eq!(errno(fs::hard_link(at("a"), at("dirlink"))), libc::EPERM);
    let links = nofollow(&at("a")).nlink();
    fs::create_dir(at("a/new")).unwrap();
    assert!(
        nofollow(&at("a")).nlink() == links + 1 || links == 1,
        "directories have the link counts of the filesystem"
    );
    fs::remove_file(at("hard")).unwrap();
    assert_eq!(nofollow(&at("g")).nlink(), 1);
}

/// Checks the flags of renameat2(2).
fn exchanged_or_not_replaced(root: &Path) {
    let at = |name: &str| root.join(name);
    assert_eq!(
        rename_with(&at("f"), &at("g"), RenameFlags::NOREPLACE),
        Err(libc::EEXIST)
    );
    assert_eq!(
        rename_with(&at("f"), &at("none"), RenameFlags::EXCHANGE),
        Err(libc::ENOENT)
    );
    assert_eq!(
        rename_with(&at("f"), &at("a"), RenameFlags::EXCHANGE),
        Ok(())
    );
    assert_eq!(
        (get(at("a")), get(at("f/sub/h"))),
        ("1\n".into(), "3\n".into()),
        "a file and a directory are exchanged"
    );
    assert_eq!(
        rename_with(&at("f"), &at("a"), RenameFlags::EXCHANGE),
        Ok(())
    );
}

fn special_files_and_odd_names(v: Variant) {
    with_past(v, sample_tree, |root| {
        let longest = root.join(OsStr::from_bytes(&[0xfe; 255]));
        put(&longest, "not UTF-8");
        assert_eq!(get(&longest), "not UTF-8");
        assert_eq!(
            errno(File::create(root.join("n".repeat(256)))),
            libc::ENAMETOOLONG
        );
        for name in [
            "back\\slash",
            "new\nline",
            " ",
            "-rf",
            "...",
            "tab\t",
            "\u{202e}abc",
            "*",
        ] {
            put(root.join(name), name);
            assert_eq!(get(root.join(name)), name);
            fs::rename(root.join(name), root.join(format!("{name}2"))).unwrap();
            fs::remove_file(root.join(format!("{name}2"))).unwrap();
        }
        special_files(root);
        fs::remove_file(root.join("block")).unwrap();
        fs::remove_file(root.join("socket")).unwrap();
        symlink("x".repeat(1000), root.join("long link")).unwrap();
        assert_eq!(
            fs::read_link(root.join("long link"))
                .unwrap()
                .as_os_str()
                .len(),
            1000
        );
        assert_eq!(errno(fs::read(root.join("loop"))), libc::ELOOP);
    });
}

/// Checks that pipes, sockets and devices can be made and used.
fn special_files(root: &Path) {
    mknodat(
        CWD,
        root.join("pipe"),
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    sh(
        root,
        "(echo through > pipe) & read line < pipe; test \"$line\" = through; wait",
    );
    sh(
        root,
        "(echo old > fifo) & read line < fifo; test \"$line\" = old; wait",
    );
    let socket = root.join("sock");
    let dir = File::open(root).unwrap();
    let _listener = UnixListener::bind(via(&dir, "sock")).unwrap();
    UnixStream::connect(via(&dir, "sock")).unwrap();
    assert!(nofollow(&socket).file_type().is_socket());
    mknodat(
        CWD,
        root.join("zero"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o600),
        rustix::fs::makedev(1, 5),
    )
    .unwrap();
    assert_eq!(
        errno(File::open(root.join("zero"))),
        libc::EACCES,
        "device nodes work with -o dev only"
    );
    assert_eq!(
        nofollow(&root.join("zero")).rdev(),
        rustix::fs::makedev(1, 5)
    );
}

/// Returns a path short enough for a socket address.
fn via(dir: &File, name: &str) -> std::path::PathBuf {
    format!(
        "/proc/self/fd/{}/{name}",
        std::os::fd::AsRawFd::as_raw_fd(dir)
    )
    .into()
}

/// Returns the next names of an open directory: one small buffer without readahead.
fn some_names(dir: &File) -> Vec<String> {
    let mut buffer = Vec::with_capacity(2048);
    let mut reader = rustix::fs::RawDir::new(dir, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = reader.next() {
        names.push(
            entry
                .expect("getdents")
                .file_name()
                .to_string_lossy()
                .into_owned(),
        );
        if reader.is_buffer_empty() {
            break;
        }
    }
    names
}

/// A name that exists throughout is listed once, regardless of concurrent changes (readdir(3)). The
/// daemon has no directory handle to identify the listing.
fn a_listing_under_way_has_every_name_that_stays_once(v: Variant) {
    let stays: Vec<String> = (0..2_000)
        .map(|number| format!("stays-{number:04}"))
        .collect();
    let fill = |dir: &Path| {
        fs::create_dir(dir.join("d")).expect("mkdir");
        stays
            .iter()
            .for_each(|name| put(dir.join("d").join(name), name));
        (0..2_000).for_each(|number| put(dir.join("d").join(format!("goes-{number:04}")), "x"));
    };
    let rig: Rig = v.start_with(MountOpts::new(v.io), fill);
    let id = rig.mount.checkpoint();
    let open = |path: &Path| File::open(path).expect("open");
    let (live, also, past) = (
        open(&rig.path().join("d")),
        open(&rig.path().join("d")),
        open(&rig.view(id).join("d")),
    );
    let mut seen = [some_names(&live), some_names(&also), some_names(&past)];
    for number in 0..2_000 {
        fs::remove_file(rig.path().join(format!("d/goes-{number:04}"))).expect("unlink");
        put(rig.path().join(format!("d/comes-{number:04}")), "y");
        if number % 20 == 0 {
            for (seen, dir) in seen.iter_mut().zip([&live, &also, &past]) {
                seen.extend(some_names(dir));
            }
        }
    }
    for (seen, dir) in seen.iter_mut().zip([&live, &also, &past]) {
        while let Some(more) = Some(some_names(dir)).filter(|more| !more.is_empty()) {
            seen.extend(more);
        }
        let mut found: Vec<&String> = seen
            .iter()
            .filter(|name| name.starts_with("stays-"))
            .collect();
        found.sort();
        assert_eq!(found, stays.iter().collect::<Vec<_>>());
    }
    assert_eq!(
        seen[2].len(),
        4_000 + 2,
        "the view has exactly the old names"
    );
}

fn large_directories_and_long_paths(v: Variant) {
    const FILES: usize = 5000;
    let fill = |dir: &Path| {
        fs::create_dir(dir.join("many")).unwrap();
        (0..FILES / 2).for_each(|number| put(dir.join(format!("many/old-{number}")), ""));
    };
    with_past(v, fill, |root| {
        let many = root.join("many");
        (0..FILES / 2).for_each(|number| put(many.join(format!("new-{number}")), ""));
        assert_eq!(names(&many).len(), FILES);
        assert_eq!(sh(&many, "ls -l | wc -l"), format!("{}\n", FILES + 1));
        let dir = File::open(&many).unwrap();
        let mut list = rustix::fs::Dir::read_from(&dir).unwrap();
        let first: Vec<_> = list
            .by_ref()
            .take(100)
            .map(|entry| entry.unwrap().file_name().to_owned())
            .collect();
        put(many.join("one more"), "");
        list.rewind();
        let again: Vec<_> = list
            .by_ref()
            .map(|entry| entry.unwrap().file_name().to_owned())
            .collect();
        assert_eq!(
            (again.len(), &again[..50]),
            (FILES + 3, &first[..50]),
            "rewinddir reads the directory again"
        );
        assert!(list.next().is_none());
        sh(
            &many,
            "ls | head -2500 | xargs rm; test $(ls | wc -l) = 2501",
        );
        let mut at: OwnedFd = File::open(root).unwrap().into();
        for _ in 0..60 {
            let name = "d".repeat(100);
            rustix::fs::mkdirat(&at, &name, Mode::from_raw_mode(0o755)).unwrap();
            at = openat(
                &at,
                &name,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .unwrap();
        }
        let file = openat(
            &at,
            "leaf",
            OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )
        .unwrap();
        File::from(file).write_all(b"6,000 bytes down").unwrap();
        let mut text = String::new();
        File::from(openat(&at, "leaf", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "6,000 bytes down");
        drop(at);
        sh(root, &format!("rm -rf {}", "d".repeat(100)));
    });
}

fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), i32> {
    renameat_with(CWD, from, CWD, to, flags).map_err(rustix::io::Errno::raw_os_error)
}

/// Failed before: a listing directly after an unlink of one of a file's names had another inode
/// number for the others, and the kernel cached it (compare fuse-overlayfs issue 391).
fn a_listing_has_the_numbers_that_stat_has(v: Variant) {
    let fill = |dir: &Path| {
        sh(
            dir,
            "mkdir d; echo 1 > d/a; ln d/a d/b; ln d/a d/c; ln d/a e; mkfifo d/p; ln -s a d/s; ln d/p d/q",
        )
        .truncate(0)
    };
    with_past(v, fill, |root| {
        let dir = root.join("d");
        let same = |dir: &Path| {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let (path, listed) = (entry.path(), entry.ino());
                let stat = nofollow(&path);
                assert_eq!(
                    (listed, entry.file_type().unwrap()),
                    (stat.ino(), stat.file_type()),
                    "{path:?}"
                );
            }
        };
        same(&dir);
        fs::remove_file(dir.join("b")).unwrap();
        same(&dir);
        fs::rename(dir.join("s"), dir.join("c")).unwrap();
        same(&dir);
        fs::remove_file(dir.join("q")).unwrap();
        same(&dir);
        same(&dir);
        // The lookups of entries that the kernel rejected are forgotten: the last name and the file
        // are removed.
        for name in ["d/a", "e"] {
            fs::remove_file(root.join(name)).unwrap();
        }
        put(dir.join("a"), "2");
        same(&dir);
        assert_eq!(
            (get(dir.join("a")), names(&dir)),
            ("2".into(), vec!["a".into(), "c".into(), "p".into()])
        );
    });
}
