//! Attributes of open files reflect every write at once, and a store through a mapping within a
//! second.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::support::Mapping;
use crate::common::command::run_limited;
use crate::common::mount::VERB_SECONDS;
use crate::common::{Image, Io, MountOpts, Variant, for_each_variant};

for_each_variant! { reflink =>
    the_end_is_exact_after_a_write_by_anybody, the_end_is_exact_while_others_ask, an_append_is_seen_at_once_by_all, size_and_times_are_exact_after_a_write,
    a_file_that_is_cut_or_stretched_has_its_size_at_once, after_a_restore_nothing_is_stale, the_time_of_a_store_is_seen_within_a_second,
    who_writes_past_the_mount_is_seen_at_once,
}

/// The attribute timeout after a store, and a margin for clock ticks.
const STORE_SEEN_MAX: Duration = Duration::from_millis(1050);
/// The attribute timeout afterwards is an eighth of this, which is longer than the following steps
/// take.
const REST: Duration = Duration::from_millis(1600);

/// Returns a file that has been open for reading and writing for long enough that the kernel caches
/// its attributes.
fn rested(path: &Path) -> File {
    fs::write(path, [b'a'; 100]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    std::thread::sleep(REST);
    assert_eq!(file.metadata().unwrap().len(), 100);
    file
}

fn opened(path: &Path) -> File {
    let mut how = OpenOptions::new();
    how.read(true).write(true).open(path).unwrap()
}

fn end(mut file: &File) -> u64 {
    file.seek(SeekFrom::End(0)).unwrap()
}

/// PostgreSQL writes the next block at the reported end of the file.
fn the_end_is_exact_after_a_write_by_anybody(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    let file = rested(&path);
    let (both, writer) = (
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap(),
        OpenOptions::new().write(true).open(&path).unwrap(),
    );
    fs::hard_link(&path, rig.path().join("g")).unwrap();
    let named = OpenOptions::new()
        .read(true)
        .write(true)
        .open(rig.path().join("g"))
        .unwrap();
    let mut size = end(&file);
    for round in 0..100 {
        let other = [&both, &writer, &named, &file][round % 4];
        other.write_all_at(b"0123456789", size).unwrap();
        size += 10;
        assert_eq!(
            [end(&file), end(&both), end(&writer), end(&named)],
            [size; 4],
            "round {round}"
        );
    }
    for round in 0..5 {
        let mut other = Command::new("sh");
        run_limited(
            other
                .args(["-c", "printf 0123456789 >>\"$1\"", "sh"])
                .arg(&path),
            VERB_SECONDS,
        );
        size += 10;
        assert_eq!(
            (end(&file), fs::metadata(&path).unwrap().len()),
            (size, size),
            "process {round}"
        );
    }
}

/// A GETATTR reply sent before a concurrent write must not be cached.
fn the_end_is_exact_while_others_ask(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    let file = rested(&path);
    let writer = opened(&path);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fs::metadata(&path)
                        .and_then(|_| File::open(&path)?.metadata())
                        .unwrap();
                }
            });
        }
        let ends = (1..=2000).map(|round| {
            writer.write_all_at(&[b'x'; 10], 90 + 10 * round).unwrap();
            (end(&file), 100 + 10 * round)
        });
        let wrong: Vec<_> = ends.filter(|(told, is)| told != is).collect();
        done.store(true, Ordering::Relaxed);
        assert!(
            wrong.is_empty(),
            "{} of 2000 ends are wrong: {wrong:?}",
            wrong.len()
        );
    });
}

fn an_append_is_seen_at_once_by_all(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    let file = rested(&path);
    let mut appended = [(); 3].map(|()| {
        OpenOptions::new()
            .read(true)
            .append(true)
            .open(&path)
            .unwrap()
    });
    for round in 0..99_u64 {
        appended[(round % 3) as usize]
            .write_all(b"0123456789")
            .unwrap();
        let size = 110 + 10 * round;
        assert_eq!((end(&file), file.metadata().unwrap().len()), (size, size));
        assert_eq!(
            appended
                .each_ref()
                .map(|file| file.metadata().unwrap().len()),
            [size; 3]
        );
    }
}

fn size_and_times_are_exact_after_a_write(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    let file = rested(&path);
    let other = opened(&path);
    let mut before = file.metadata().unwrap();
    for round in 0..50_u64 {
        other.write_all_at(b"x", 99 + round).unwrap();
        let (now, named) = (file.metadata().unwrap(), fs::metadata(&path).unwrap());
        let times = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
        assert_eq!((now.len(), named.len()), (100 + round, 100 + round));
        assert!(
            times(&now) > times(&before),
            "round {round}: a write does not change the times"
        );
        assert_eq!(times(&now), times(&named));
        before = now;
    }
}

fn a_file_that_is_cut_or_stretched_has_its_size_at_once(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    let file = rested(&path);
    let other = opened(&path);
    for round in 0..30_u64 {
        other.set_len(50 + round).unwrap();
        assert_eq!(
            (end(&file), file.metadata().unwrap().len()),
            (50 + round, 50 + round)
        );
        rustix::fs::fallocate(&other, rustix::fs::FallocateFlags::empty(), 0, 5000 + round)
            .unwrap();
        assert_eq!(
            (end(&file), file.metadata().unwrap().len()),
            (5000 + round, 5000 + round)
        );
        File::create(&path).unwrap();
        assert_eq!((end(&file), file.metadata().unwrap().len()), (0, 0));
    }
}

fn after_a_restore_nothing_is_stale(v: Variant) {
    let rig = v.start();
    let (written, marked) = (rig.path().join("written"), rig.path().join("marked"));
    let (open, dressed) = (rested(&written), rested(&marked));
    fs::set_permissions(&marked, fs::Permissions::from_mode(0o640)).unwrap();
    let id = rig.mount.checkpoint();
    for round in 0..3 {
        open.write_all_at(&[b'b'; 300], 0).unwrap();
        fs::set_permissions(&marked, fs::Permissions::from_mode(0o600)).unwrap();
        let _known = (
            open.metadata().unwrap(),
            dressed.metadata().unwrap(),
            fs::metadata(&written).unwrap(),
            fs::metadata(&marked).unwrap(),
        );
        rig.mount.restore(id);
        assert_eq!(
            (
                fs::metadata(&written).unwrap().len(),
                fs::read(&written).unwrap()
            ),
            (100, vec![b'a'; 100]),
            "round {round}"
        );
        let modes =
            [fs::metadata(&marked), dressed.metadata()].map(|found| found.unwrap().mode() & 0o7777);
        assert_eq!(modes, [0o640; 2], "round {round}");
    }
}

/// A store changes the mtime of the backing file, which the kernel does not associate with the
/// mounted file.
fn the_time_of_a_store_is_seen_within_a_second(v: Variant) {
    if v.io == Io::Daemon {
        // In a daemon mount, stores are in the kernel's page cache, and change the mtime at
        // writeback.
        return;
    }
    let image = Image::of(v.fs);
    let opts = MountOpts {
        mountpoint: Some(image.dir("mounted")),
        ..MountOpts::new(v.io)
    };
    let rig = v.start_on(image, opts, |_| {});
    let (path, below) = (rig.path().join("f"), rig.image.path().join("project/f"));
    let file = rested(&path);
    file.set_len(4096).unwrap();
    let mapping = Mapping::writable(&file, 4096);
    drop(file);
    let times = |path: &Path| {
        fs::metadata(path)
            .map(|found| (found.mtime(), found.mtime_nsec()))
            .unwrap()
    };
    for round in 0..6_u8 {
        mapping.sync();
        if round % 3 == 0 {
            std::thread::sleep(REST);
        }
        let before = times(&path);
        mapping.write(0, &[round]);
        let stored = Instant::now();
        loop {
            let (asked, seen) = (Instant::now(), times(&path));
            if seen != before {
                break;
            }
            assert!(
                asked - stored < STORE_SEEN_MAX,
                "round {round}: a store does not change the time"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(times(&path), times(&below), "round {round}");
    }
}

/// A write past the mount causes no invalidation, so the kernel may cache no attributes.
fn who_writes_past_the_mount_is_seen_at_once(v: Variant) {
    if v.io == Io::Daemon {
        return;
    }
    let mut past = None;
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("f"), [b'a'; 100]).unwrap();
        past = Some(OpenOptions::new().write(true).open(dir.join("f")).unwrap());
    });
    let past = past.expect("it was opened before the mount");
    let path = rig.path().join("f");
    let file = opened(&path);
    std::thread::sleep(REST);
    for round in 0..10 {
        past.write_all_at(&[b'b'; 10], 100 + 10 * round).unwrap();
        assert_eq!(
            (end(&file), fs::metadata(&path).unwrap().len()),
            (110 + 10 * round, 110 + 10 * round)
        );
    }
}
