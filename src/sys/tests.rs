//! Tests of the calls together, on a real directory: in `CKPTFS_TEST_DIR`, or in /var/tmp, which is
//! a disk filesystem but not necessarily one with reflink.

use std::fs::File;
use std::os::fd::OwnedFd;

use super::name::make_device;
use super::*;

/// A directory of its own for one test, and a descriptor of it.
fn scratch() -> (tempfile::TempDir, OwnedFd) {
    let parent = std::env::var_os("CKPTFS_TEST_DIR").unwrap_or_else(|| "/var/tmp".into());
    let temp = tempfile::Builder::new()
        .prefix("ckptfs-sys-")
        .tempdir_in(parent)
        .expect("tempdir");
    let dir = open_root(temp.path()).expect("open_root");
    (temp, dir)
}

/// A new file with this content, open for reading and writing.
fn file_with(dir: &OwnedFd, name: &[u8], content: &[u8]) -> File {
    let file = create_file_at(dir, name, Open::READ_WRITE, 0o644).expect("create");
    write_all_at(&file, content, 0).expect("write");
    file
}

/// The whole content of an open file.
fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; stat_fd(file).expect("stat").size as usize];
    let mut done = 0;
    while done < bytes.len() {
        let read = read_at(file, &mut bytes[done..], done as u64).expect("read");
        assert_ne!(read, 0);
        done += read;
    }
    bytes
}

fn is_root() -> bool {
    ids().0 == 0
}

#[test]
fn names_that_lead_out_are_refused() {
    let (_temp, dir) = scratch();
    for (name, errno) in [
        (&b""[..], Errno::ENOENT),
        (b"..", Errno::EINVAL),
        (b"a/b", Errno::EINVAL),
        (b"a\0b", Errno::EINVAL),
        (&[b'x'; NAME_LEN_MAX + 1], Errno::ENAMETOOLONG),
    ] {
        assert_eq!(mkdir_at(&dir, name, 0o755), Err(errno));
        assert_eq!(stat_at(&dir, name), Err(errno));
    }
    assert_eq!(mkdir_at(&dir, &[b'x'; NAME_LEN_MAX], 0o755), Ok(()));
}

#[test]
fn stat_tells_the_same_by_name_and_by_path_descriptor() {
    let (_temp, dir) = scratch();
    let file = file_with(&dir, b"f", b"12345");
    let path = open_path_at(&dir, b"f").expect("path");
    let stat = stat_at(&dir, b"f").expect("stat");
    assert_eq!(stat_fd(&path), Ok(stat));
    assert_eq!(stat_fd(&file), Ok(stat));
    assert_eq!((stat.kind, stat.size, stat.nlink), (Kind::File, 5, 1));
    assert_eq!(
        stat.dev,
        std::os::unix::fs::MetadataExt::dev(&file.metadata().expect("metadata"))
    );
    assert!(stat.btime.is_some());
}

#[test]
fn opening_a_fifo_or_a_link_neither_blocks_nor_follows() {
    let (_temp, dir) = scratch();
    mknod_at(&dir, b"fifo", Kind::Fifo, 0o600, 0).expect("fifo");
    assert!(open_file_at(&dir, b"fifo", Open::READ).is_ok());
    assert_eq!(
        open_file_at(&dir, b"fifo", Open::WRITE).err(),
        Some(Errno::ENXIO)
    );
    symlink_at(b"/etc/passwd", &dir, b"link").expect("symlink");
    assert_eq!(
        open_file_at(&dir, b"link", Open::READ).err(),
        Some(Errno::ELOOP)
    );
    assert_eq!(
        create_file_at(&dir, b"link", Open::WRITE, 0o600).err(),
        Some(Errno::EEXIST)
    );
    assert_eq!(readlink_at(&dir, b"link"), Ok(b"/etc/passwd".to_vec()));
    assert_eq!(readlink_at(&dir, b"fifo"), Err(Errno::EINVAL));
    let path = open_path_at(&dir, b"link").expect("path");
    assert_eq!(stat_fd(&path).map(|stat| stat.kind), Ok(Kind::Symlink));
    assert_eq!(reopen(&path, Open::READ).err(), Some(Errno::ELOOP));
}

#[test]
fn special_inodes_keep_kind_and_device() {
    let (_temp, dir) = scratch();
    mknod_at(&dir, b"file", Kind::File, 0o600, 0).expect("file");
    assert_eq!(
        mknod_at(&dir, b"dir", Kind::Dir, 0o600, 0),
        Err(Errno::EINVAL)
    );
    if !is_root() {
        return;
    }
    mknod_at(&dir, b"dev", Kind::CharDev, 0o600, make_device(1, 300)).expect("device");
    let stat = stat_at(&dir, b"dev").expect("stat");
    assert_eq!((stat.kind, stat.rdev), (Kind::CharDev, make_device(1, 300)));
}

#[test]
fn nothing_outside_is_reached_by_a_path() {
    let (_temp, dir) = scratch();
    mkdir_at(&dir, b"a", 0o755).expect("mkdir");
    let a = open_dir_at(&dir, b"a").expect("a");
    file_with(&a, b"f", b"x");
    symlink_at(b"..", &a, b"up").expect("symlink");
    let by_kernel = |path: &[u8], kind| open_beneath(&dir, path, kind);
    let by_walk = |path: &[u8], kind| path::walk_beneath(&dir, path, kind);
    for open in [
        &by_kernel as &dyn Fn(&[u8], OpenKind) -> SysResult<OwnedFd>,
        &by_walk,
    ] {
        assert!(open(b"a/f", OpenKind::File(Open::READ)).is_ok());
        assert!(open(b"./a/", OpenKind::Dir).is_ok());
        assert_eq!(
            open(b"a/up", OpenKind::Path)
                .and_then(stat_fd)
                .map(|stat| stat.kind),
            Ok(Kind::Symlink)
        );
        assert_eq!(open(b"a/../../x", OpenKind::Path).err(), Some(Errno::EXDEV));
        assert_eq!(open(b"/etc", OpenKind::Dir).err(), Some(Errno::EXDEV));
        assert!(matches!(
            open(b"a/up/a", OpenKind::Dir),
            Err(Errno::ELOOP | Errno::ENOTDIR)
        ));
        assert_eq!(open(b"", OpenKind::Path).err(), Some(Errno::ENOENT));
    }
    assert_eq!(open_dir_at(&a, b"f").err(), Some(Errno::ENOTDIR));
}

#[test]
fn a_path_descriptor_opens_what_it_names_after_a_rename() {
    let (_temp, dir) = scratch();
    file_with(&dir, b"f", b"first");
    let path = open_path_at(&dir, b"f").expect("path");
    rename_at(&dir, b"f", &dir, b"g", RenameMode::Replace).expect("rename");
    file_with(&dir, b"f", b"second");
    assert_eq!(
        content(&reopen(&path, Open::READ).expect("reopen")),
        b"first"
    );
    let emptied = reopen(
        &path,
        Open {
            truncate: true,
            ..Open::WRITE
        },
    )
    .expect("truncate");
    assert_eq!(stat_fd(&emptied).map(|stat| stat.size), Ok(0));
}

#[test]
fn rename_modes_do_what_they_say() {
    let (_temp, dir) = scratch();
    file_with(&dir, b"a", b"A");
    file_with(&dir, b"b", b"B");
    assert_eq!(
        rename_at(&dir, b"a", &dir, b"b", RenameMode::NoReplace),
        Err(Errno::EEXIST)
    );
    rename_at(&dir, b"a", &dir, b"b", RenameMode::Exchange).expect("exchange");
    assert_eq!(
        content(&open_file_at(&dir, b"a", Open::READ).expect("a")),
        b"B"
    );
    rename_at(&dir, b"a", &dir, b"b", RenameMode::Replace).expect("replace");
    assert_eq!(stat_at(&dir, b"a"), Err(Errno::ENOENT));
    assert_eq!(
        content(&open_file_at(&dir, b"b", Open::READ).expect("b")),
        b"B"
    );
}

#[test]
fn links_are_made_by_name_and_by_descriptor() {
    let (_temp, dir) = scratch();
    file_with(&dir, b"f", b"x");
    symlink_at(b"f", &dir, b"s").expect("symlink");
    link_at(&dir, b"s", &dir, b"s2").expect("link of the link");
    assert_eq!(
        stat_at(&dir, b"s2").map(|stat| (stat.kind, stat.nlink)),
        Ok((Kind::Symlink, 2))
    );
    let path = open_path_at(&dir, b"f").expect("path");
    link_fd(&path, &dir, b"f2").expect("link_fd");
    assert_eq!(stat_at(&dir, b"f2").map(|stat| stat.nlink), Ok(2));
    unlink_at(&dir, b"f").expect("unlink");
    unlink_at(&dir, b"f2").expect("unlink");
    assert_eq!(link_fd(&path, &dir, b"f3"), Err(Errno::ENOENT));
    mkdir_at(&dir, b"d", 0o755).expect("mkdir");
    assert!(unlink_at(&dir, b"d").is_err());
    rmdir_at(&dir, b"d").expect("rmdir");
}

#[test]
fn attributes_are_set_through_path_descriptors() {
    let (_temp, dir) = scratch();
    file_with(&dir, b"f", b"x");
    symlink_at(b"nowhere", &dir, b"s").expect("symlink");
    let (file, link) = (
        open_path_at(&dir, b"f").expect("f"),
        open_path_at(&dir, b"s").expect("s"),
    );
    chmod_fd(&file, 0o1640).expect("chmod");
    assert_eq!(stat_fd(&file).map(|stat| stat.mode), Ok(0o1640));
    assert_eq!(chmod_fd(&link, 0o600), Err(Errno::EOPNOTSUPP));
    let (atime, mtime) = (
        Time { sec: -5, nsec: 7 },
        Time {
            sec: 1_234_567_890,
            nsec: 123_456_789,
        },
    );
    for fd in [&file, &link] {
        utimens_fd(fd, SetTime::At(atime), SetTime::At(mtime)).expect("utimens");
        assert_eq!(
            stat_fd(fd).map(|stat| (stat.atime, stat.mtime)),
            Ok((atime, mtime))
        );
        utimens_fd(fd, SetTime::Omit, SetTime::Now).expect("utimens");
        let stat = stat_fd(fd).expect("stat");
        assert_eq!(stat.atime, atime);
        assert!(stat.mtime.sec > 1_700_000_000);
    }
    let broken = SetTime::At(Time {
        sec: 0,
        nsec: 1_000_000_000,
    });
    assert_eq!(utimens_fd(&file, broken, SetTime::Omit), Err(Errno::EINVAL));
    assert_eq!(chown_fd(&file, Some(u32::MAX), None), Err(Errno::EINVAL));
    if is_root() {
        chown_fd(&link, Some(12), None).expect("chown");
        chown_fd(&link, None, Some(34)).expect("chown");
        assert_eq!(
            stat_fd(&link).map(|stat| (stat.uid, stat.gid)),
            Ok((12, 34))
        );
        assert_eq!(stat_fd(&file).map(|stat| stat.uid), Ok(0));
    }
}

#[test]
fn xattrs_work_on_every_kind_of_inode() {
    let (_temp, dir) = scratch();
    file_with(&dir, b"file", b"x");
    mkdir_at(&dir, b"dir", 0o755).expect("mkdir");
    symlink_at(b"file", &dir, b"link").expect("symlink");
    mknod_at(&dir, b"fifo", Kind::Fifo, 0o600, 0).expect("fifo");
    let open = |name: &[u8]| open_path_at(&dir, name).expect("path");
    for name in [&b"file"[..], b"dir"] {
        let fd = open(name);
        let large = vec![7; 600];
        setxattr(&fd, b"user.b", &large, XattrMode::Create).expect("create");
        assert_eq!(
            setxattr(&fd, b"user.b", b"", XattrMode::Create),
            Err(Errno::EEXIST)
        );
        assert_eq!(
            setxattr(&fd, b"user.a", b"", XattrMode::Replace),
            Err(Errno::NO_XATTR)
        );
        setxattr(&fd, b"user.a", b"", XattrMode::Any).expect("any");
        assert_eq!(
            all_xattrs(&fd),
            Ok(vec![
                (b"user.a".to_vec(), Vec::new()),
                (b"user.b".to_vec(), large)
            ])
        );
        removexattr(&fd, b"user.a").expect("remove");
        assert_eq!(removexattr(&fd, b"user.a"), Err(Errno::NO_XATTR));
        assert_eq!(getxattr(&fd, b"user.a"), Err(Errno::NO_XATTR));
    }
    if !cfg!(target_os = "linux") || !has_sys_admin() {
        return;
    }
    for name in [&b"file"[..], b"dir", b"link", b"fifo"] {
        let fd = open(name);
        setxattr(&fd, b"trusted.ckptfs", name, XattrMode::Any).expect("trusted");
        assert_eq!(getxattr(&fd, b"trusted.ckptfs"), Ok(name.to_vec()));
        assert!(
            listxattr(&fd)
                .expect("list")
                .contains(&b"trusted.ckptfs".to_vec())
        );
    }
    // Each has its own value: the link's did not reach the file that it leads to.
    assert_eq!(
        getxattr(open(b"file"), b"trusted.ckptfs"),
        Ok(b"file".to_vec())
    );
    assert_eq!(
        setxattr(open(b"link"), b"user.a", b"", XattrMode::Any),
        Err(Errno::EPERM)
    );
}

#[test]
fn a_long_list_of_xattrs_is_read_whole() {
    let (_temp, dir) = scratch();
    let file = file_with(&dir, b"f", b"");
    let names: Vec<Vec<u8>> = (0..40)
        .map(|index| format!("user.a-rather-long-name-{index:02}").into_bytes())
        .collect();
    for name in &names {
        setxattr(&file, name, b"v", XattrMode::Any).expect("set");
    }
    let found: Vec<Vec<u8>> = all_xattrs(&file)
        .expect("all")
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(found, names);
}

#[test]
fn a_directory_is_listed_whole_and_twice_at_once() {
    let (_temp, dir) = scratch();
    let mut names: Vec<Vec<u8>> = (0..2000)
        .map(|index| format!("a name of some length {index:04}").into_bytes())
        .collect();
    for name in &names {
        mknod_at(&dir, name, Kind::File, 0o600, 0).expect("mknod");
    }
    let list = || {
        let mut found: Vec<Vec<u8>> = list_dir(&dir)
            .expect("list")
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        found.sort_unstable();
        found
    };
    names.sort_unstable();
    std::thread::scope(|scope| {
        let other = scope.spawn(list);
        assert_eq!(list(), names);
        assert_eq!(other.join().expect("thread"), names);
    });
}

#[test]
fn entries_carry_kind_and_inode_and_a_removed_directory_is_empty() {
    let (_temp, dir) = scratch();
    mkdir_at(&dir, b"d", 0o755).expect("mkdir");
    let inode = stat_at(&dir, b"d").expect("stat").ino;
    let listed = list_dir(&dir).expect("list");
    assert_eq!(
        listed
            .iter()
            .map(|entry| (entry.name.as_slice(), entry.ino, entry.kind))
            .collect::<Vec<_>>(),
        [(&b"d"[..], inode, Some(Kind::Dir))]
    );
    let path = open_path_at(&dir, b"d").expect("path");
    assert_eq!(list_dir(&path), Ok(Vec::new()));
    rmdir_at(&dir, b"d").expect("rmdir");
    if cfg!(target_os = "linux") {
        assert_eq!(list_dir(&path), Ok(Vec::new()));
    }
}

#[test]
fn a_copy_keeps_content_size_and_holes() {
    let (_temp, dir) = scratch();
    let src = file_with(&dir, b"src", b"");
    truncate(&src, 10 << 20).expect("truncate");
    let chunk: Vec<u8> = (0..300_000u32).map(|index| index as u8).collect();
    write_all_at(&src, &chunk, 1 << 20).expect("write");
    write_all_at(&src, b"near the end", (8 << 20) + 5).expect("write");
    let size = 10 << 20;
    let dst = file_with(&dir, b"dst", b"");
    copy_data(&src, &dst, size).expect("copy");
    assert_eq!(content(&dst), content(&src));
    assert_eq!(seek_data(&dst, 0), seek_data(&src, 0));
    assert!(stat_fd(&dst).expect("stat").blocks < 4096);
    assert_eq!(seek_data(&dst, size), Err(Errno::ENXIO));
    assert_eq!(seek_hole(&dst, 0), Ok(0));
}

#[test]
fn a_copy_of_a_shorter_source_ends_in_zeros() {
    let (_temp, dir) = scratch();
    let (src, dst) = (
        file_with(&dir, b"src", b"abc"),
        file_with(&dir, b"dst", b""),
    );
    copy_data(&src, &dst, 6).expect("copy");
    assert_eq!(content(&dst), b"abc\0\0\0");
    let empty = file_with(&dir, b"empty", b"");
    copy_data(&src, &empty, 0).expect("copy of nothing");
    assert_eq!(stat_fd(&empty).map(|stat| stat.size), Ok(0));
}

#[test]
fn a_copy_apart_has_the_content_and_is_as_short_as_the_source() {
    let (_temp, dir) = scratch();
    let (src, dst) = (
        file_with(&dir, b"src", b"abc"),
        file_with(&dir, b"dst", b""),
    );
    copy_apart(&src, &dst, 0, 6).expect("copy");
    assert_eq!(content(&dst), b"abc");
    let chunk: Vec<u8> = (0..600_000u32).map(|index| (index % 251) as u8).collect();
    let (long, apart) = (
        file_with(&dir, b"long", &chunk),
        file_with(&dir, b"apart", b""),
    );
    copy_apart(&long, &apart, 0, chunk.len() as u64).expect("copy of several buffers");
    assert_eq!(content(&apart), chunk);
    assert!(!shares_extents(&long, &apart).unwrap_or(false));
}

#[test]
fn the_head_of_a_file_is_cloned_and_its_end_is_copied() {
    let (_temp, dir) = scratch();
    let bytes: Vec<u8> = (0..100_000u32).map(|index| (index % 251) as u8).collect();
    let (src, dst) = (
        file_with(&dir, b"src", &bytes),
        file_with(&dir, b"dst", b""),
    );
    match clone_head(&src, &dst, 81_920) {
        Ok(()) => {}
        Err(Errno::EOPNOTSUPP | Errno::EXDEV | Errno::ENOSYS) => return,
        Err(errno) => panic!("clone of a head: {errno}"),
    }
    assert_eq!(content(&dst), bytes[..81_920]);
    copy_apart(&src, &dst, 81_920, 100_000).expect("copy of the end");
    assert_eq!(content(&dst), bytes);
    assert_eq!(
        dirty_pages_before(&dst, 81_920),
        Ok(0),
        "what was cloned is on the disk"
    );
    assert!(
        clone_head(&src, &file_with(&dir, b"other", b""), 100).is_err(),
        "no multiple of a block"
    );
}

#[test]
fn a_clone_shares_or_says_that_it_cannot() {
    let (_temp, dir) = scratch();
    let src = file_with(&dir, b"src", &[9; 100_000]);
    match clone_to(&src, &dir, b"clone") {
        Ok(clone) => {
            assert_eq!(content(&clone), content(&src));
            assert_eq!(stat_fd(&clone).map(|stat| stat.mode), Ok(0o600));
            if cfg!(target_os = "linux") {
                assert_eq!(shares_extents(&src, &clone), Ok(true));
                write_all_at(&clone, &[9], 50_000).expect("write");
                assert_eq!(shares_extents(&src, &clone), Ok(false));
                clone_file(&src, &clone).expect("clone again");
                assert_eq!(shares_extents(&src, &clone), Ok(true));
            }
        }
        Err(errno) => {
            assert_eq!(errno, Errno::EOPNOTSUPP);
            assert!(!matches!(
                fs_name(statfs_fd(&dir).expect("statfs").fs_type),
                "xfs" | "btrfs"
            ));
            assert_eq!(stat_at(&dir, b"clone"), Err(Errno::ENOENT));
        }
    }
    assert_eq!(clone_to(&src, &dir, b"src").err(), Some(Errno::EEXIST));
}

#[cfg(target_os = "linux")]
#[test]
fn the_same_bytes_share_after_the_kernel_compared_them_and_others_do_not() {
    let (_temp, dir) = scratch();
    let bytes: Vec<u8> = (0..300_001u32).map(|index| (index % 249) as u8).collect();
    let (one, two) = (
        file_with(&dir, b"one", &bytes),
        file_with(&dir, b"two", &bytes),
    );
    let before = stat_at(&dir, b"two").expect("stat");
    // Open for reading only, by its owner.
    let two = {
        drop(two);
        open_file_at(&dir, b"two", Open::READ).expect("open")
    };
    let size = bytes.len() as u64;
    match dedupe_range(&one, &two, 0, size) {
        Ok(shared) => {
            assert_eq!(shared, Some(size));
            assert_eq!(extent_map(&one, size), extent_map(&two, size));
            assert_eq!(content(&two), bytes);
            let after = stat_at(&dir, b"two").expect("stat");
            assert_eq!(
                (after.mtime, after.ctime, after.size),
                (before.mtime, before.ctime, before.size)
            );
            let mut other = bytes;
            *other.last_mut().expect("bytes") ^= 1;
            let other = file_with(&dir, b"other", &other);
            assert_eq!(dedupe_range(&one, &other, 0, size), Ok(None));
        }
        Err(errno) => {
            assert!(
                [Errno::EOPNOTSUPP, Errno::EINVAL, Errno::ENOTTY].contains(&errno),
                "{errno}"
            );
            assert!(!matches!(
                fs_name(statfs_fd(&dir).expect("statfs").fs_type),
                "xfs" | "btrfs"
            ));
        }
    }
}

#[test]
fn a_lock_is_held_by_one_description() {
    let (_temp, dir) = scratch();
    let first = file_with(&dir, b"lock", b"");
    let second = open_file_at(&dir, b"lock", Open::READ_WRITE).expect("open");
    assert_eq!(flock_exclusive(&first), Ok(true));
    assert_eq!(flock_exclusive(&second), Ok(false));
    drop(first);
    assert_eq!(flock_exclusive(&second), Ok(true));
}

#[test]
fn filesystem_is_told() {
    let (_temp, dir) = scratch();
    let info = statfs_fd(&dir).expect("statfs");
    assert!(info.blocks > 0 && info.frsize >= 512 && info.namelen >= 255);
    assert_eq!(fs_name(0x5846_5342), "xfs");
    assert_eq!(fs_name(1), "unknown");
    for done in [fsync(&dir), syncfs(&dir)] {
        assert_eq!(done, Ok(()));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn dirty_pages_are_counted_until_flushed() {
    let (_temp, dir) = scratch();
    let file = file_with(&dir, b"f", &[1; 64 * 1024]);
    match dirty_pages(&file) {
        Ok(pages) => assert!(pages > 0),
        Err(errno) => return assert_eq!(errno, Errno::ENOSYS),
    }
    start_writeback(&file).expect("start");
    fdatasync(&file).expect("fdatasync");
    assert_eq!(dirty_pages(&file), Ok(0));
}

#[cfg(target_os = "linux")]
#[test]
fn different_files_share_nothing() {
    let (_temp, dir) = scratch();
    let (a, b) = (
        file_with(&dir, b"a", &[1; 50_000]),
        file_with(&dir, b"b", &[1; 50_000]),
    );
    assert_eq!(shares_extents(&a, &b), Ok(false));
    assert_eq!(shares_extents(&a, &a), Ok(true));
    fallocate(&a, 0, 0, 60_000).expect("fallocate");
    assert_eq!(stat_fd(&a).map(|stat| stat.size), Ok(60_000));
    assert_eq!(shares_extents(&a, &b), Ok(false));
    assert_eq!(fallocate(&a, -1, 0, 1), Err(Errno::EINVAL));
}

#[cfg(target_os = "linux")]
#[test]
fn a_lease_is_refused_while_a_writable_mapping_lives() {
    let (_temp, dir) = scratch();
    let writer = file_with(&dir, b"f", &[0; 4096]);
    let reader = open_file_at(&dir, b"f", Open::READ).expect("open");
    assert_eq!(lease_free(&reader), Ok(false));
    // SAFETY: a fresh mapping of one page of an open file, of which no Rust reference is made.
    let page = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            4096,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &writer,
            0,
        )
    }
    .expect("mmap");
    drop(writer);
    assert_eq!(lease_free(&reader), Ok(false));
    // SAFETY: the mapping made above, which nothing refers to.
    unsafe { rustix::mm::munmap(page, 4096) }.expect("munmap");
    assert_eq!(lease_free(&reader), Ok(true));
    assert!(open_file_at(&dir, b"f", Open::WRITE).is_ok());
}
