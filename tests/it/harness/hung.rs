//! A filesystem whose daemon never replies: callers block until the connection is aborted.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::mount::{MountFlags, mount};

use crate::common::command::try_run_limited;
use crate::common::mount::{abort, minor_of};
use crate::common::pool::FuseMounts;
use crate::common::run_dir::script;
use crate::common::wait::{WAIT, wait_until};
use crate::common::{Fs, RunDir, scratch, skip, succeeds, tool};

/// Mounts a FUSE filesystem on `point` without a daemon. It hangs while the returned descriptor is
/// open.
fn hung_mount(point: &Path) -> File {
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .expect("/dev/fuse can be opened");
    let options = std::ffi::CString::new(format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    ))
    .unwrap();
    // The source is not a path, because programs look up the device of each mount.
    mount(
        format!("ckptfs-test#{}", point.display()),
        point,
        "fuse",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .expect("a FUSE filesystem can be mounted");
    device
}

fn cannot_mount() -> Option<String> {
    if Path::new("/dev/fuse").exists() {
        Fs::Tmpfs.unavailable()
    } else {
        Some("/dev/fuse does not exist".to_owned())
    }
}

fn stat_hangs(point: &Path) {
    let problem = try_run_limited(tool("stat", &["--file-system"]).arg(point), 1).unwrap_err();
    assert!(problem.contains("did not end"), "{problem}");
}

#[test]
fn an_abort_frees_who_waits_for_a_hung_mount() {
    if let Some(reason) = cannot_mount() {
        return skip(&reason);
    }
    let run = RunDir::get();
    let slot = run.slot("hung");
    let point = slot.join("with a blank");
    fs::create_dir(&point).unwrap();
    let _device = hung_mount(&point);
    assert!(minor_of(&point).is_some());
    let waiting = std::thread::spawn({
        let point = point.clone();
        move || fs::read_dir(point).map(drop)
    });
    stat_hangs(&point);
    assert!(!waiting.is_finished());
    abort(&point);
    wait_until("the waiting thread got an error", || waiting.is_finished());
    assert!(waiting.join().unwrap().is_err());
    umount(&point);
    assert_eq!(minor_of(&point), None);
    fs::remove_dir_all(slot).unwrap();
}

/// Failed before: the driver's harness aborted connections by number after the unmount. Mounts of
/// other tests had received these numbers: one of a few hundred ended at once.
#[test]
fn a_number_that_another_filesystem_has_now_is_no_copy() {
    if let Some(reason) = cannot_mount() {
        return skip(&reason);
    }
    let run = RunDir::get();
    let slot = run.slot("hung");
    let points = ["one", "other"].map(|name| slot.join(name));
    points
        .iter()
        .for_each(|point| fs::create_dir(point).unwrap());
    let one = hung_mount(&points[0]);
    let minor = minor_of(&points[0]).unwrap();
    let copies = FuseMounts::of(minor);
    assert!(copies.are_left());
    umount(&points[0]);
    drop(one);
    assert!(!copies.are_left());
    // The kernel assigns the lowest free number; another test may receive it.
    for _ in 0..50 {
        let _other = hung_mount(&points[1]);
        let taken = minor_of(&points[1]) == Some(minor);
        let left = copies.are_left();
        umount(&points[1]);
        assert!(!left, "{minor}");
        if taken {
            break;
        }
    }
    fs::remove_dir_all(slot).unwrap();
}

fn umount(point: &Path) {
    succeeds(tool("umount", &["-l"]).arg(point), 60);
}

#[test]
fn the_script_removes_a_run_directory_with_a_hung_mount() {
    if let Some(reason) = cannot_mount() {
        return skip(&reason);
    }
    let base = scratch();
    let run: PathBuf = base.path().join("ckptfs-run-hung");
    let point = run.join("mnt");
    fs::create_dir_all(&point).unwrap();
    let _device = hung_mount(&point);
    stat_hangs(&point);
    let started = Instant::now();
    succeeds(tool("bash", &[script("cleanup.sh")]).arg(&run), 120);
    assert!(!run.exists());
    assert!(started.elapsed() < WAIT);
}

/// The script removes whole trees as root, so it must reject any other directory.
#[test]
fn the_script_refuses_what_is_no_run_directory() {
    let base = scratch();
    let output = tool("bash", &[script("cleanup.sh")])
        .arg(base.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(base.path().exists());
}
