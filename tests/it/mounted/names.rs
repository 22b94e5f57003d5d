//! Alternative names of checkpoints: their times (`--snapdir-names=gmt`), and ZFS's
//! `.zfs/snapshot`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::support::{errno, get, names, put, sh};
use crate::common::wait::{seen, wait_until};
use crate::common::{MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { xfs =>
    each_checkpoint_has_its_time_for_a_name, the_newest_of_a_second_has_its_name, a_time_is_nobody_s_to_give,
}
for_each_variant! { reflink =>
    the_zfs_name_is_the_snapshot_directory, what_the_tree_has_of_the_zfs_name_itself_is_what_is_there,
}
for_each_variant! { xfs => many_times_are_listed_once_each }

fn timed(v: Variant) -> Rig {
    v.start_with(MountOpts::new(v.io).arg("--snapdir-names=gmt"), |dir| {
        put(dir.join("f"), "0");
    })
}

fn dir(rig: &Rig) -> std::path::PathBuf {
    rig.path().join(".snapshots")
}

/// Returns the time name of a checkpoint, from `log`.
fn time(rig: &Rig, id: u64) -> String {
    let log = rig.mount.log_json();
    let all = log.as_array().expect("a list");
    let one = all.iter().find(|one| one["id"] == id).expect("it exists");
    let created: jiff::Timestamp = one["created"]
        .as_str()
        .expect("text")
        .parse()
        .expect("time");
    created.strftime("@GMT-%Y.%m.%d-%H.%M.%S").to_string()
}

fn times(rig: &Rig) -> Vec<String> {
    let mut all = names(dir(rig));
    all.retain(|name| name.starts_with("@GMT-"));
    all
}

/// Waits until the next checkpoint has a later second than the last.
fn next_second() {
    std::thread::sleep(Duration::from_millis(1010));
}

/// Makes checkpoints until a pair has the same second without a third; returns the older and the
/// newer.
fn two_in_a_second(rig: &Rig) -> (u64, u64) {
    wait_until("two in a second", || {
        next_second();
        let pair = (rig.mount.checkpoint(), rig.mount.checkpoint());
        let times = (time(rig, pair.0), time(rig, pair.1));
        seen(times.0 == times.1, times).map(|()| pair)
    })
}

fn each_checkpoint_has_its_time_for_a_name(v: Variant) {
    let mut rig = timed(v);
    let first = rig.mount.checkpoint();
    next_second();
    put(rig.path().join("f"), "1");
    let second = rig.mount.checkpoint();
    put(rig.path().join("f"), "2");
    let (a, b) = (time(&rig, first), time(&rig, second));
    let look = |rig: &Rig| {
        assert_eq!(times(rig), [a.clone(), b.clone()]);
        let (a, b) = (dir(rig).join(&a), dir(rig).join(&b));
        assert!(a.is_dir() && !a.is_symlink(), "an ordinary directory");
        assert_eq!(
            (get(a.join("f")), get(b.join("f"))),
            ("0".into(), "1".into())
        );
        let number = fs::metadata(rig.view(first).join("f")).unwrap().ino();
        assert_ne!(fs::metadata(a.join("f")).unwrap().ino(), number);
        assert_eq!(errno(fs::write(a.join("f"), "x")), libc::EROFS);
    };
    look(&rig);
    // Open files and directories of a view survive the daemon.
    let held = fs::File::open(dir(&rig).join(&a)).unwrap();
    rig.mount.replace_worker();
    look(&rig);
    let inside = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
    assert_eq!(get(Path::new(&inside).join("f")), "0");
    drop(held);
    // A branch has the same mount options.
    rig.mount.ok(&["branch", "create", "b", "--at", "1"]);
    let branch = rig.mount.path().with_file_name("project@b");
    fs::create_dir(branch.join(".snapshots/made")).unwrap();
    let of_branch = names(branch.join(".snapshots"));
    assert!(
        of_branch.iter().any(|name| name.starts_with("@GMT-")),
        "{of_branch:?}"
    );
    rig.mount.ok(&["branch", "drop", "b"]);
    rig.mount.umount();
    rig.mount.remount();
    look(&rig);
    // The option is valid in the store's configuration and on the command line; without it there
    // are no time names.
    rig.mount.umount();
    let project = rig.image.path().join("project");
    let plain = crate::common::Mount::start(&project, &MountOpts::new(v.io));
    assert_eq!(names(project.join(".snapshots")), ["1", "2", "latest"]);
    assert_eq!(errno(fs::metadata(dir(&rig).join(&a))), libc::ENOENT);
    plain.ok(&["config", "set", "mount.snapdir-names", "gmt"]);
    drop(plain);
    let told = crate::common::Mount::start(&project, &MountOpts::new(v.io));
    look(&rig);
    drop(told);
}

fn the_newest_of_a_second_has_its_name(v: Variant) {
    let rig = timed(v);
    let (older, newer) = two_in_a_second(&rig);
    let name = time(&rig, older);
    assert_eq!(times(&rig).iter().filter(|one| **one == name).count(), 1);
    put(rig.path().join("f"), "1");
    let shown = || fs::metadata(dir(&rig).join(&name)).map(|found| found.ino());
    let of_newer = shown().unwrap();
    assert_eq!(get(dir(&rig).join(&name).join("f")), "0");
    rig.mount.ok(&["delete", &newer.to_string()]);
    let of_older = shown().unwrap();
    assert_ne!(of_older, of_newer, "the next one has the name immediately");
    rig.mount.ok(&["undo"]);
    assert_eq!(
        shown().unwrap(),
        of_newer,
        "and the newest has it again after the undo"
    );
    rig.mount.ok(&["delete", &newer.to_string()]);
    rig.mount.ok(&["delete", &older.to_string()]);
    assert_eq!(errno(shown()), libc::ENOENT);
    assert!(!times(&rig).contains(&name));
    rig.mount.ok(&["gc", "--keep-last", "100"]);
    assert_eq!(errno(shown()), libc::ENOENT);
}

fn a_time_is_nobody_s_to_give(v: Variant) {
    let rig = timed(v);
    let id = rig.mount.checkpoint();
    let name = time(&rig, id);
    let (at, other) = (
        dir(&rig).join(&name),
        dir(&rig).join("@GMT-2001.02.03-04.05.06"),
    );
    assert_eq!(errno(fs::create_dir(&at)), libc::EEXIST);
    assert_eq!(errno(fs::create_dir(&other)), libc::EINVAL);
    assert_eq!(errno(fs::remove_dir(&at)), libc::EPERM);
    assert_eq!(errno(fs::remove_dir(&other)), libc::ENOENT);
    assert_eq!(errno(fs::remove_file(&at)), libc::EISDIR);
    for (from, to) in [(&at, &other), (&at, &rig.path().join("mine"))] {
        assert_eq!(errno(fs::rename(from, to)), libc::EROFS);
    }
    fs::create_dir(rig.path().join("mine")).unwrap();
    assert_eq!(
        errno(fs::rename(rig.path().join("mine"), &other)),
        libc::EROFS
    );
    assert_eq!(names(dir(&rig)), ["1", name.as_str(), "latest"]);
    // An invalid time is an ordinary tag.
    for odd in ["@GMT-2001.2.3-4.5.6", "@GMT-2001.02.30-04.05.06", "@GMT-x"] {
        fs::create_dir(dir(&rig).join(odd)).unwrap();
        fs::remove_dir(dir(&rig).join(odd)).unwrap();
    }
    // An existing tag takes precedence.
    rig.mount
        .ok(&["tag", &id.to_string(), "@GMT-2001.02.03-04.05.06"]);
    assert_eq!(fs::read_link(&other).unwrap(), Path::new("1"));
    rig.mount.ok(&["tag", &id.to_string(), &name]);
    assert_eq!(fs::read_link(&at).unwrap(), Path::new("1"));
    assert_eq!(times(&rig), ["@GMT-2001.02.03-04.05.06", name.as_str()]);
    fs::remove_file(&at).unwrap();
    assert!(
        !at.is_symlink() && get(at.join("f")) == "0",
        "the name stands for the time again"
    );
}

/// Imported checkpoints have their original times, and their listing does not fit into one reply.
fn many_times_are_listed_once_each(v: Variant) {
    const DAYS: i64 = 600;
    let image = crate::common::Image::of(v.fs);
    let series = image.dir("series");
    let first = jiff::civil::date(2020, 1, 1);
    let days = (0..DAYS).map(|day| first.saturating_add(jiff::Span::new().days(day)));
    for day in days.clone() {
        fs::create_dir(series.join(day.to_string())).unwrap();
    }
    sh(
        image.path(),
        &format!("TZ=UTC {} import series", env!("CARGO_BIN_EXE_ckptfs")),
    );
    let dir = image.path().join("series-history");
    let opts = MountOpts::new(v.io).arg("--snapdir-names=gmt");
    let rig = Rig {
        mount: crate::common::Mount::start(&dir, &opts),
        image,
    };
    let wanted: Vec<String> = days
        .map(|day| day.strftime("@GMT-%Y.%m.%d-00.00.00").to_string())
        .collect();
    assert_eq!(times(&rig), wanted);
    // Tags of the same form replace the times in the listing, and a reply without other entries
    // does not end it.
    let tags: Vec<&str> = wanted.iter().map(String::as_str).collect();
    for (id, tags) in (1..).zip(tags.chunks(50)) {
        rig.mount.ok(&[&["tag", &id.to_string()], tags].concat());
    }
    assert_eq!(times(&rig), wanted);
    for tags in tags[..520].chunks(50) {
        rig.mount.ok(&[&["tag", "-d"], tags].concat());
    }
    assert_eq!(times(&rig), wanted);
}

fn the_zfs_name_is_the_snapshot_directory(v: Variant) {
    let rig = v.start();
    put(rig.path().join("f"), "1");
    rig.mount.ok(&["checkpoint", "--tag", "v1"]);
    put(rig.path().join("f"), "2");
    assert_eq!(names(rig.path()), ["f"], "it is found only by its name");
    let zfs = rig.path().join(".zfs");
    assert_eq!(names(&zfs), ["snapshot"]);
    let (there, here) = (zfs.join("snapshot"), dir(&rig));
    assert_eq!(names(&there), ["1", "latest", "v1"]);
    for name in ["1", "latest", "v1"] {
        assert_eq!(get(there.join(name).join("f")), "1");
    }
    let number = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.dev(), found.ino())
    };
    assert_eq!(number(&there), number(&here), "the same directory");
    assert_eq!(number(&there.join("1/f")), number(&here.join("1/f")));
    // As with ZFS, mkdir(2) makes a checkpoint, and rmdir(2) deletes it.
    fs::create_dir(there.join("made")).unwrap();
    assert_eq!(get(here.join("made/f")), "2");
    fs::remove_dir(there.join("made")).unwrap();
    assert_eq!(names(&here), ["1", "latest", "v1"]);
    assert_eq!(errno(fs::write(there.join("1/f"), "x")), libc::EROFS);
    assert_eq!(errno(fs::write(zfs.join("x"), "x")), libc::EROFS);
    assert_eq!(errno(fs::remove_file(&there)), libc::EROFS);
    assert_eq!(errno(fs::metadata(zfs.join("shares"))), libc::ENOENT);
    assert_eq!(errno(fs::create_dir(&zfs)), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(&zfs)), libc::EPERM);
    assert_eq!(
        errno(fs::rename(&zfs, rig.path().join("mine"))),
        libc::EPERM
    );
    let sub = rig.path().join("sub");
    fs::create_dir(&sub).unwrap();
    assert_eq!(
        errno(fs::metadata(sub.join(".zfs"))),
        libc::ENOENT,
        "only in the root directory"
    );
    fs::create_dir(sub.join(".zfs")).unwrap();
    assert_eq!(errno(fs::rename(sub.join(".zfs"), &zfs)), libc::EPERM);
    // The successor accepts the inode number of an open directory.
    let held = fs::File::open(&zfs).unwrap();
    let mut rig = rig;
    rig.mount.replace_worker();
    assert_eq!(
        (names(&zfs), names(&there)[0].as_str()),
        (vec!["snapshot".into()], "1")
    );
    drop(held);
}

fn what_the_tree_has_of_the_zfs_name_itself_is_what_is_there(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir(dir.join(".zfs")).unwrap();
        put(dir.join(".zfs/own"), "1");
    });
    let zfs = rig.path().join(".zfs");
    assert_eq!(
        (names(rig.path()), names(&zfs)),
        (vec![".zfs".into()], vec!["own".into()])
    );
    let id = rig.mount.checkpoint();
    put(zfs.join("own"), "2");
    assert_eq!(get(rig.view(id).join(".zfs/own")), "1");
    fs::remove_file(zfs.join("own")).unwrap();
    fs::remove_dir(&zfs).unwrap();
    assert_eq!(
        names(&zfs),
        ["snapshot"],
        "names that the tree does not have are virtual"
    );
    assert_eq!(get(zfs.join("snapshot/1/.zfs/own")), "1");
    rig.mount.restore(id);
    assert_eq!(
        get(zfs.join("own")),
        "1",
        "a restore brings back the directory of the tree"
    );
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(get(zfs.join("own")), "1");
}
