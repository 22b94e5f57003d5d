//! Tests of the calls in combination, on a real directory: in `CKPTFS_TEST_DIR`, or in /var/tmp,
//! which is on a disk filesystem but not necessarily one with reflink.

mod content;

use std::fs::File;
use std::os::fd::OwnedFd;

use super::name::make_device;
use super::*;

/// Creates a directory for one test, and opens it.
fn scratch() -> (tempfile::TempDir, OwnedFd) {
    let parent = std::env::var_os("CKPTFS_TEST_DIR").unwrap_or_else(|| "/var/tmp".into());
    let temp = tempfile::Builder::new()
        .prefix("ckptfs-sys-")
        .tempdir_in(parent)
        .expect("tempdir");
    let dir = open_root(temp.path()).expect("open_root");
    (temp, dir)
}

/// Creates a file with this content, open for reading and writing.
fn file_with(dir: &OwnedFd, name: &[u8], content: &[u8]) -> File {
    let file = create_file_at(dir, name, Access::READ_WRITE, 0o644).expect("create");
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
    assert!(open_file_at(&dir, b"fifo", Access::READ).is_ok());
    assert_eq!(
        open_file_at(&dir, b"fifo", Access::WRITE).err(),
        Some(Errno::ENXIO)
    );
    symlink_at(b"/etc/passwd", &dir, b"link").expect("symlink");
    assert_eq!(
        open_file_at(&dir, b"link", Access::READ).err(),
        Some(Errno::ELOOP)
    );
    assert_eq!(
        create_file_at(&dir, b"link", Access::WRITE, 0o600).err(),
        Some(Errno::EEXIST)
    );
    assert_eq!(readlink_at(&dir, b"link"), Ok(b"/etc/passwd".to_vec()));
    assert_eq!(readlink_at(&dir, b"fifo"), Err(Errno::EINVAL));
    let path = open_path_at(&dir, b"link").expect("path");
    assert_eq!(stat_fd(&path).map(|stat| stat.kind), Ok(Kind::Symlink));
    assert_eq!(reopen(&path, Access::READ).err(), Some(Errno::ELOOP));
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
        assert!(open(b"a/f", OpenKind::File(Access::READ)).is_ok());
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
        content(&reopen(&path, Access::READ).expect("reopen")),
        b"first"
    );
    let emptied = reopen(
        &path,
        Access {
            truncate: true,
            ..Access::WRITE
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
        content(&open_file_at(&dir, b"a", Access::READ).expect("a")),
        b"B"
    );
    rename_at(&dir, b"a", &dir, b"b", RenameMode::Replace).expect("replace");
    assert_eq!(stat_at(&dir, b"a"), Err(Errno::ENOENT));
    assert_eq!(
        content(&open_file_at(&dir, b"b", Access::READ).expect("b")),
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
    // Each has a separate value: setting the link's did not change its target.
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
