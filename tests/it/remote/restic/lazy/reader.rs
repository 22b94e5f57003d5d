//! The process that reads the remote for a daemon: it has resource limits, and the daemon survives
//! its death.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::RemoteMount;
use super::content_cache::pushed;
use crate::common::process::{start_of, until_stopped};
use crate::common::wait::wait_until;
use crate::common::{Mount, Variant, for_each_variant};

/// Returns the remote readers of a daemon.
fn readers(mount: &Mount) -> Vec<u32> {
    let daemon = format!("PPid:\t{}\n", mount.pid());
    let is_reader = |pid: &u32| {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        // A zombie has no command line.
        status.contains(&daemon) && read("cmdline").starts_with(b"ckptfs\0remote-reader\0home\0")
    };
    let processes = fs::read_dir("/proc").expect("read").flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_reader)
        .collect()
}

fn reader(mount: &Mount) -> u32 {
    let readers = readers(mount);
    assert_eq!(readers.len(), 1, "{readers:?}");
    readers[0]
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("not 0");
    kill_process(pid, signal).expect("sent");
}

for_each_variant! { xfs => the_end_of_its_reader_is_not_that_of_the_daemon }

fn the_end_of_its_reader_is_not_that_of_the_daemon(v: Variant) {
    let (rig, user) = pushed(v);
    let lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let (mount, daemon) = (&lazy.mount, lazy.mount.pid());
    let is_same = |name: &str| {
        let [here, there] =
            [mount.path(), rig.path()].map(|path| fs::read(path.join(name)).expect("read"));
        assert!(here == there, "{name}");
    };
    assert_eq!(readers(mount), [0; 0], "it is started on demand");
    is_same("1");
    let first = reader(mount);
    is_same("2");
    assert_eq!(reader(mount), first);
    let limits = fs::read_to_string(format!("/proc/{first}/limits")).expect("read");
    let data = limits
        .lines()
        .find(|line| line.starts_with("Max data size"));
    let data: Vec<_> = data.expect("there").split_whitespace().collect();
    assert_eq!(data[3], (4_u64 << 30).to_string(), "{limits}");
    // After a crash, another process retries once.
    signal(first, Signal::ABORT);
    is_same("3");
    let second = reader(mount);
    assert_ne!(second, first);
    assert_eq!(mount.pid(), daemon, "another worker serves");
}

for_each_variant! { xfs => a_reader_that_does_not_answer_is_followed_by_another }

fn a_reader_that_does_not_answer_is_followed_by_another(v: Variant) {
    let (rig, user) = pushed(v);
    let lazy = RemoteMount::impatient(v, &user, &rig, &["--no-fetch"]);
    let (mount, path) = (&lazy.mount, lazy.mount.path());
    fs::read(path.join("1")).expect("read");
    let first = reader(mount);
    signal(first, Signal::STOP);
    until_stopped(first);
    let error = fs::read(path.join("2")).expect_err("no data arrives");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let said = lazy.warnings();
    assert!(said.contains("nothing has come for 2 s"), "{said}");
    wait_until("the stopped reader has ended", || start_of(first).is_none());
    wait_until("the next open works", || fs::read(path.join("2")).is_ok());
    assert_ne!(reader(mount), first);
}

for_each_variant! { xfs => a_reader_ends_with_its_daemon }

fn a_reader_ends_with_its_daemon(v: Variant) {
    let (rig, user) = pushed(v);
    let mut lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    let read = |path: &Path, name: &str| assert!(fs::read(path.join(name)).is_ok(), "{name}");
    read(&path, "1");
    let first = reader(&lazy.mount);
    lazy.mount.replace_worker();
    wait_until("it exits with the worker", || start_of(first).is_none());
    read(&path, "2");
    let second = reader(&lazy.mount);
    lazy.mount.umount();
    assert_eq!(start_of(second), None, "it exits before the mount does");
    lazy.mount.remount();
    // The reader also exits when nothing is left to fetch.
    drop(lazy);
    let lazy = RemoteMount::mount(v, &user, &rig, &[]);
    lazy.wait_all();
    wait_until("all content is local", || readers(&lazy.mount).is_empty());
}
