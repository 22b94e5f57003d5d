//! State preserved by a takeover, one aspect per test.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use crate::common::wait::{same, wait_until};
use crate::common::{MountOpts, Variant, for_each_variant, process};

for_each_variant! { reflink =>
    open_files_go_on,
    an_unlinked_open_file_keeps_its_bytes,
    a_file_opened_after_its_name_went_goes_on,
    views_stay_readable,
    an_open_file_of_a_view_that_was_deleted_is_no_fault,
    without_a_holder_the_mount_dies,
    a_file_that_was_written_before_is_captured_after,
    the_holder_may_die,
    a_second_name_leads_to_the_same_file,
    a_mapping_without_a_handle_is_captured,
    what_the_kernel_was_told_before_is_not_stale_after,
}
for_each_variant! { xfs => five_brief_workers_are_the_last }

/// Handles issued by a dead worker remain usable.
fn open_files_go_on(v: Variant) {
    let mut rig = v.start();
    let path = rig.path().join("dir/file");
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, "0123456789").unwrap();
    let id = rig.mount.checkpoint();
    let mut both = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut appended = OpenOptions::new().append(true).open(&path).unwrap();
    let mut reader = File::open(&path).unwrap();
    let ino = reader.metadata().unwrap().ino();
    rig.mount.replace_worker();
    both.write_all(b"ab").unwrap();
    appended.write_all(b"xyz").unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "ab23456789xyz");
    assert_eq!(
        (
            reader.metadata().unwrap().ino(),
            fs::metadata(&path).unwrap().ino()
        ),
        (ino, ino)
    );
    both.set_len(4).unwrap();
    both.sync_all().unwrap();
    // A new handle of the same inode must use the existing backing id.
    assert_eq!(fs::read(&path).unwrap(), b"ab23");
    rig.mount.replace_worker();
    both.write_all_at(b"Z", 0).unwrap();
    drop((both, appended, reader));
    assert_eq!(fs::read(&path).unwrap(), b"Zb23");
    assert_eq!(
        fs::read(rig.view(id).join("dir/file")).unwrap(),
        b"0123456789"
    );
    assert_eq!(rig.mount.dirty(), ["dir/file"]);
    let after = rig.mount.checkpoint();
    fs::write(&path, "later").unwrap();
    assert_eq!(fs::read(rig.view(after).join("dir/file")).unwrap(), b"Zb23");
    let status = rig.mount.status_json();
    assert_eq!(status["daemon"]["takeovers"], 2);
    assert!(status["daemon"]["taken_over"].is_string(), "{status}");
}

/// An unlinked file has no name by which the next worker could find it.
fn an_unlinked_open_file_keeps_its_bytes(v: Variant) {
    let mut rig = v.start();
    let path = rig.path().join("f");
    fs::write(&path, "past").unwrap();
    let id = rig.mount.checkpoint();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut fresh = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(rig.path().join("g"))
        .unwrap();
    fresh.write_all(b"young").unwrap();
    fs::remove_file(&path).unwrap();
    fs::remove_file(rig.path().join("g")).unwrap();
    for round in 0..2 {
        rig.mount.replace_worker();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all(b"+").unwrap();
        file.sync_all().unwrap();
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, if round == 0 { "+ast" } else { "+ast+" });
        let mut young = [0; 5];
        fresh.read_exact_at(&mut young, 0).unwrap();
        assert_eq!(&young, b"young");
        fresh.set_len(5).unwrap();
    }
    drop((file, fresh));
    assert_eq!(fs::read(rig.view(id).join("f")).unwrap(), b"past");
    assert!(fs::read_dir(rig.path()).unwrap().next().is_none());
}

/// Failed before: a file unlinked before it was opened was not held for the next worker. The next
/// file opened got the same handle number, which the kernel then released for both, and further
/// opens of an open file returned EIO.
fn a_file_opened_after_its_name_went_goes_on(v: Variant) {
    let mut rig = v.start();
    let path = |name: &str| rig.path().join(name);
    fs::write(path("past"), "past").unwrap();
    let id = rig.mount.checkpoint();
    fs::write(path("young"), "young").unwrap();
    fs::write(path("other"), "other").unwrap();
    let open_gone = |name: &str, options: &OpenOptions| {
        let known = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(path(name))
            .unwrap();
        fs::remove_file(path(name)).unwrap();
        options
            .open(format!("/proc/self/fd/{}", known.as_raw_fd()))
            .unwrap()
    };
    let past = open_gone("past", OpenOptions::new().read(true));
    let young = open_gone("young", OpenOptions::new().read(true).write(true));
    let other = path("other");
    for _ in 0..2 {
        rig.mount.replace_worker();
        let held = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&other)
            .unwrap();
        for (file, content) in [(&past, b"past".as_slice()), (&young, b"young")] {
            let mut bytes = vec![0; content.len()];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(
                (bytes.as_slice(), file.metadata().unwrap().nlink()),
                (content, 0)
            );
        }
        young.write_all_at(b"y", 0).unwrap();
        young.sync_all().unwrap();
        held.sync_all().unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"other");
    }
    let held = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&other)
        .unwrap();
    drop((past, young));
    wait_until("the files are closed", || {
        same(rig.mount.stats()["open_files"].clone(), 1)
    });
    held.write_all_at(b"O", 0).unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"Other");
    assert_eq!(fs::read(rig.view(id).join("past")).unwrap(), b"past");
}

/// Open files and directories of a view, and paths into it, remain valid.
fn views_stay_readable(v: Variant) {
    let mut rig = v.start();
    fs::create_dir_all(rig.path().join("a/b")).unwrap();
    fs::write(rig.path().join("a/b/f"), "then").unwrap();
    fs::write(rig.path().join("a/b/kept"), "kept").unwrap();
    let id = rig.mount.checkpoint();
    fs::write(rig.path().join("a/b/f"), "now").unwrap();
    fs::remove_file(rig.path().join("a/b/kept")).unwrap();
    let view = rig.view(id);
    let mut open = File::open(view.join("a/b/f")).unwrap();
    let dir = File::open(view.join("a/b")).unwrap();
    let below = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir));
    rig.mount.replace_worker();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "then");
    assert_eq!(fs::read_to_string(format!("{below}/kept")).unwrap(), "kept");
    let mut names: Vec<_> = fs::read_dir(&below)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["f", "kept"]);
    assert_eq!(fs::read_to_string(view.join("a/b/f")).unwrap(), "then");
}

/// The file cannot be read any more; nothing else is affected.
fn an_open_file_of_a_view_that_was_deleted_is_no_fault(v: Variant) {
    let mut rig = v.start();
    fs::write(rig.path().join("f"), "then").unwrap();
    let id = rig.mount.checkpoint();
    fs::write(rig.path().join("f"), "now").unwrap();
    let last = rig.mount.checkpoint();
    let mut open = File::open(rig.view(id).join("f")).unwrap();
    rig.mount.ok(&["delete", "--now", &id.to_string()]);
    rig.mount.replace_worker();
    assert!(open.read(&mut [0; 4]).is_err());
    drop(open);
    rig.mount.replace_worker();
    let log = fs::read_to_string(rig.path().join(".ckptfs/daemon.log")).unwrap();
    let warning = log
        .lines()
        .find(|line| line.contains("cannot be taken over"));
    assert_eq!(warning, None);
    assert_eq!(fs::read_to_string(rig.view(last).join("f")).unwrap(), "now");
}

/// Negative control for all other tests.
fn without_a_holder_the_mount_dies(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).arg("--no-holder"), |_| {});
    let path = rig.path().join("f");
    fs::write(&path, "x").unwrap();
    assert!(rig.mount.status_json()["daemon"]["holder"].is_null());
    rig.mount.kill();
    let error = fs::write(&path, "y").unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::NOTCONN.raw_os_error()),
        "{error}"
    );
    rig.mount.remount();
    assert_eq!(fs::read(&path).unwrap(), b"x");
}

/// Content written through a handle of a dead worker is captured by later checkpoints.
fn a_file_that_was_written_before_is_captured_after(v: Variant) {
    let mut rig = v.start();
    let path = rig.path().join("log");
    let file = File::create(&path).unwrap();
    let mut views = Vec::new();
    for round in 0..3_u8 {
        file.write_all_at(&[round; 8], u64::from(round) * 8)
            .unwrap();
        rig.mount.replace_worker();
        views.push((rig.mount.checkpoint(), fs::read(&path).unwrap()));
    }
    file.write_all_at(b"later", 0).unwrap();
    drop(file);
    for (id, content) in views {
        assert_eq!(
            fs::read(rig.view(id).join("log")).unwrap(),
            content,
            "checkpoint {id}"
        );
    }
}

/// The holder is needed only when the daemon dies.
fn the_holder_may_die(v: Variant) {
    let mut rig = v.start();
    fs::write(rig.path().join("f"), "x").unwrap();
    rig.mount.kill_holder();
    assert_eq!(fs::read(rig.path().join("f")).unwrap(), b"x");
    wait_until("status reports that no process would take over", || {
        let status = rig.mount.status_json();
        status["daemon"]["holder"].is_null()
            && status["warnings"]
                .to_string()
                .contains("restarts the daemon has died")
    });
    let id = rig.mount.checkpoint();
    rig.mount.kill();
    assert!(fs::write(rig.path().join("g"), "y").is_err());
    rig.mount.remount();
    assert_eq!(fs::read(rig.view(id).join("f")).unwrap(), b"x");
}

/// A worker that cannot start must not be restarted forever: after five short-lived ones the mount
/// is dead, and requests fail instead of waiting. `mount` repairs it.
fn five_brief_workers_are_the_last(v: Variant) {
    let mut rig = v.start();
    fs::write(rig.path().join("f"), "x").unwrap();
    let id = rig.mount.checkpoint();
    let holder = rig.mount.holder_pid().unwrap();
    let (mut killed, children) = (
        std::collections::BTreeSet::new(),
        format!("/proc/{holder}/task/{holder}/children"),
    );
    wait_until("the holder has given up", || {
        let found = fs::read_to_string(&children).unwrap_or_default();
        let workers: Vec<u32> = found
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        workers
            .iter()
            .filter(|pid| killed.insert(**pid))
            .for_each(|pid| process::kill(*pid));
        fs::read_to_string(format!("/proc/{holder}/comm")).is_err()
    });
    assert!((5..=7).contains(&killed.len()), "{killed:?}");
    assert_eq!(
        fs::metadata(rig.path().join("nobody"))
            .unwrap_err()
            .raw_os_error(),
        Some(libc::ENOTCONN)
    );
    rig.mount.kill();
    rig.mount.remount();
    assert_eq!(fs::read(rig.view(id).join("f")).unwrap(), b"x");
}

/// All workers must report the same generation of an inode; otherwise the kernel marks its inode
/// bad, and every handle returns EIO.
fn a_second_name_leads_to_the_same_file(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("first"), "one").unwrap();
        fs::hard_link(dir.join("first"), dir.join("second")).unwrap();
    });
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(rig.path().join("first"))
        .unwrap();
    rig.mount.replace_worker();
    // A name not looked up before.
    assert_eq!(
        fs::metadata(rig.path().join("second")).unwrap().ino(),
        file.metadata().unwrap().ino()
    );
    file.write_all(b"ONE").unwrap();
    assert_eq!(fs::read(rig.path().join("second")).unwrap(), b"ONE");
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "ONE");
}

/// A mapping outlives its handle. The next worker must expect stores through it, also to a file
/// without a past.
fn a_mapping_without_a_handle_is_captured(v: Variant) {
    let mut rig = v.start();
    let path = rig.path().join("map");
    fs::write(&path, [b'a'; 4096]).unwrap();
    let map = crate::takeover::map::SharedMapping::new(
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap(),
        4096,
    );
    map.store(0, 1);
    rig.mount.replace_worker();
    let first = rig.mount.checkpoint();
    map.store(0, 2);
    rig.mount.replace_worker();
    let second = rig.mount.checkpoint();
    map.store(0, 3);
    let stored = |id| {
        u64::from_ne_bytes(
            fs::read(rig.view(id).join("map")).unwrap()[..8]
                .try_into()
                .unwrap(),
        )
    };
    assert_eq!((stored(first), stored(second)), (1, 2));
    assert_eq!(rig.mount.dirty(), ["map"]);
}

/// The kernel keeps cached attributes of an open file over a takeover and updates them on each
/// write.
fn what_the_kernel_was_told_before_is_not_stale_after(v: Variant) {
    let mut rig = v.start();
    let path = rig.path().join("f");
    fs::write(&path, [b'a'; 100]).unwrap();
    let [mut file, writer] = [(); 2].map(|()| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap()
    });
    for round in 0..3_u64 {
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert_eq!(file.metadata().unwrap().len(), 100 + 20 * round);
        writer.write_all_at(&[b'b'; 10], 100 + 20 * round).unwrap();
        rig.mount.replace_worker();
        assert_eq!(
            (
                file.seek(SeekFrom::End(0)).unwrap(),
                fs::metadata(&path).unwrap().len()
            ),
            (110 + 20 * round, 110 + 20 * round)
        );
        writer.write_all_at(&[b'c'; 10], 110 + 20 * round).unwrap();
        assert_eq!(
            (
                file.seek(SeekFrom::End(0)).unwrap(),
                fs::metadata(&path).unwrap().len()
            ),
            (120 + 20 * round, 120 + 20 * round)
        );
    }
}
