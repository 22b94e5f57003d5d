//! Copies, clones, and the kernel's information about the content of a file.

use super::*;

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
        open_file_at(&dir, b"two", Access::READ).expect("open")
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
    let second = open_file_at(&dir, b"lock", Access::READ_WRITE).expect("open");
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
    let reader = open_file_at(&dir, b"f", Access::READ).expect("open");
    assert_eq!(lease_free(&reader), Ok(false));
    // SAFETY: a fresh mapping of one page of an open file, without a Rust reference to it.
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
    // SAFETY: the mapping made above, without references to it.
    unsafe { rustix::mm::munmap(page, 4096) }.expect("munmap");
    assert_eq!(lease_free(&reader), Ok(true));
    assert!(open_file_at(&dir, b"f", Access::WRITE).is_ok());
}
