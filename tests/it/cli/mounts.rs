//! Mounting and unmounting: messages, and leftovers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use super::mounted::{mounted, project};
use crate::common::wait::{same, seen, wait_longer, wait_until};

#[test]
fn mounting_twice_is_refused() {
    let sandbox = mounted();
    fs::create_dir(sandbox.path.join("q")).expect("mkdir");
    let hint = "Hint: to see it: ckptfs -C [DIR]/p status; to end it: ckptfs umount [DIR]/p\n";
    sandbox.ckptfs(&["mount", "p"]).is(
        1,
        "",
        &format!("Error: [DIR]/p is already mounted\n{hint}"),
    );
    sandbox.ckptfs(&["mount", "p", "q"]).is(
        1,
        "",
        &format!("Error: [DIR]/p is already mounted\n{hint}"),
    );
    let inside = "Error: [DIR]/p/src is inside the mount at [DIR]/p, whose checkpoints include it: a restore there would change the store here\nHint: unmount it first: ckptfs umount [DIR]/p\n";
    sandbox.ckptfs(&["mount", "p/src"]).is(1, "", inside);
    let ran = sandbox.ckptfs(&["umount", "p/src"]);
    ran.is(
        1,
        "",
        "Error: p/src is inside a mount, but is not one\nHint: ckptfs umount [DIR]/p\n",
    );
    assert_eq!(sandbox.mounts().len(), 1);
}

#[test]
fn a_mount_that_ends_while_a_verb_looks_for_the_store_is_no_error() {
    let sandbox = mounted();
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "1\n", "");
    sandbox.ckptfs(&["umount", "p"]).ok();
    // The mount table is read late, after the mount in question was detached.
    let late =
        "strace -qf -o /dev/null -P /proc/self/mountinfo -e inject=openat:delay_enter=50000:when=1";
    let comes_and_goes = "while test -d p; do mount --bind p p; sleep 0.02; umount -l p; done";
    let script = format!(
        "({comes_and_goes}) & \
         for try in $(seq 8); do {late} ckptfs -C p log || break; done; \
         kill $!; wait; umount -l p || true"
    );
    let mut command = sandbox.hermetic("sh", ".");
    command.args(["-c", &script]);
    let ran = sandbox.run(command);
    assert_eq!(ran.out().lines().count(), 8, "{}", ran.err());
}

#[test]
fn another_mountpoint_serves_and_both_directories_find_the_daemon() {
    let sandbox = project();
    fs::create_dir(sandbox.path.join("m")).expect("mkdir");
    sandbox.ckptfs(&["mount", "p", "m"]).ok();
    assert_eq!(
        fs::read_to_string(sandbox.path.join("m/README.md")).expect("read"),
        "hello\n"
    );
    sandbox.ckptfs_in("m", &["checkpoint"]).is(0, "1\n", "");
    sandbox.ckptfs_in("p/src", &["checkpoint"]).is(0, "2\n", "");
    sandbox
        .ckptfs(&["umount", "p"])
        .is(0, "", "[DIR]/m is unmounted\n");
    assert!(sandbox.mounts().is_empty() && sandbox.daemons().is_empty());
}

#[test]
fn a_mount_whose_daemon_died_is_named_and_repaired() {
    let sandbox = mounted();
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "1\n", "");
    sandbox.kill_daemons();
    let stale = "Error: the daemon of the mount at [DIR]/p has died\nHint: to repair it: ckptfs mount [DIR]/p\n";
    sandbox.ckptfs(&["-C", "p", "status"]).is(1, "", stale);
    let doctor = sandbox.ckptfs(&["doctor", "p"]).out();
    assert!(doctor.contains("warn  stale mounts"), "{doctor}");
    let ran = sandbox.ckptfs(&["mount", "p"]).ok();
    assert!(
        ran.err().starts_with("removed 1 dead mount first\n"),
        "{}",
        ran.err()
    );
    assert_eq!(sandbox.mounts().len(), 1);
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "2\n", "");
    sandbox.kill_daemons();
    sandbox
        .ckptfs(&["umount", "p"])
        .is(0, "", "[DIR]/p is unmounted\n");
    assert_eq!(
        fs::read_to_string(sandbox.path.join("p/README.md")).expect("the plain directory"),
        "hello\n"
    );
}

#[test]
fn the_daemon_holds_nothing_of_its_caller() {
    let sandbox = project();
    let mut command = sandbox.hermetic("bash", "p");
    // The pipe ends, and the lock is released, only when no process has them open.
    command.args(["-c", "exec 9>../out/lock; flock 9; ckptfs mount ../p 2>&1 | cat; exec 9>&-; flock -n ../out/lock echo free"]);
    let ran = sandbox.run(command).ok();
    assert!(ran.out().ends_with("free\n"), "{}", ran.out());
    let daemons = sandbox.daemons();
    assert_eq!(daemons.len(), 2, "the holder and its worker");
    for daemon in &daemons {
        let process = format!("/proc/{daemon}");
        assert_eq!(
            fs::read_link(format!("{process}/cwd")).expect("cwd"),
            Path::new("/")
        );
        let target = |fd: u32| fs::read_link(format!("{process}/fd/{fd}")).expect("descriptor");
        assert_eq!(
            (target(0), target(1)),
            ("/dev/null".into(), "/dev/null".into())
        );
        assert!(target(2).ends_with("daemon.log"), "{:?}", target(2));
        let stat = fs::read_to_string(format!("{process}/stat")).expect("stat");
        let session = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(3))
            .expect("session");
        assert!(
            daemons.iter().any(|pid| pid.to_string() == session),
            "they have their own session"
        );
    }
}

#[test]
fn a_busy_mount_is_kept_and_its_user_named_until_lazy() {
    let sandbox = mounted();
    let file = fs::File::open(sandbox.path.join("p/README.md")).expect("open");
    let mut user = sandbox
        .hermetic("sleep", "")
        .arg("600")
        .stdin(Stdio::from(file))
        .spawn()
        .expect("sleep");
    let ran = sandbox.ckptfs(&["umount", "p"]);
    let named = format!("sleep (pid {}) has", user.id());
    let lazily = sandbox.ckptfs(&["umount", "--lazy", "p"]);
    let while_used = sandbox.daemons().len();
    let status = sandbox.ckptfs_in("p", &["status"]);
    user.kill().expect("kill");
    user.wait().expect("wait");
    assert_eq!(ran.code, 1);
    assert!(
        ran.err().starts_with("Error: [DIR]/p is in use: ") && ran.err().contains(&named),
        "{}",
        ran.err()
    );
    assert!(
        ran.err().contains("ckptfs umount --lazy [DIR]/p"),
        "{}",
        ran.err()
    );
    lazily.is(
        0,
        "",
        "[DIR]/p is unmounted; the daemon exits when the last open file is closed\n",
    );
    assert_eq!(while_used, 2, "the daemon and its holder");
    assert!(
        status
            .err()
            .contains(&format!("{named} [DIR]/p/README.md open")),
        "{}",
        status.err()
    );
    wait_until("the daemon exits with the last user", || {
        same(sandbox.daemons(), Vec::<u32>::new())
    });
}

/// Uses a bind mount, not a new mount namespace, whose copy of the mount table would contain the
/// mounts of all other tests.
#[test]
fn an_unmount_tells_for_whom_the_daemon_goes_on() {
    let sandbox = mounted();
    fs::create_dir(sandbox.path.join("q")).expect("mkdir");
    let mut bind = sandbox.hermetic("mount", "");
    bind.args(["--bind", "p", "q"]);
    sandbox.run(bind).ok();
    let ran = sandbox.ckptfs(&["umount", "p"]);
    let while_mounted = sandbox.daemons().len();
    let mut other = sandbox.hermetic("umount", "");
    other.arg("q");
    sandbox.run(other).ok();
    assert_eq!(ran.code, 0, "{}", ran.err());
    let told = ran.err().contains("[DIR]/p is unmounted here; process ")
        && ran.err().contains(" has it mounted too, at [DIR]/q, and");
    assert!(told, "{}", ran.err());
    assert_eq!(while_mounted, 2, "the daemon and its holder");
    wait_longer("the daemon exits after the last unmount", 120, || {
        same(sandbox.daemons(), Vec::<u32>::new())
    });
}

#[test]
fn a_signal_unmounts_in_an_orderly_way() {
    let sandbox = mounted();
    sandbox.ckptfs_in("p", &["checkpoint"]).ok();
    let pid = sandbox.daemons()[0].to_string();
    let mut kill = sandbox.hermetic("kill", "");
    kill.arg(&pid);
    sandbox.run(kill).ok();
    wait_until("the daemon ends", || {
        let left = (sandbox.daemons(), sandbox.mounts());
        seen(left.0.is_empty() && left.1.is_empty(), left)
    });
    assert!(!sandbox.path.join("p/.ckptfs/control.sock").exists());
}

#[test]
fn the_plain_umount_ends_the_daemon_too() {
    let sandbox = mounted();
    let mut umount = sandbox.hermetic("umount", "");
    umount.arg("p");
    sandbox.run(umount).ok();
    wait_until("the daemon ends", || {
        same(sandbox.daemons(), Vec::<u32>::new())
    });
    sandbox.ckptfs(&["mount", "p"]).ok();
}

#[test]
fn the_control_socket_is_private_and_reached_through_the_mount() {
    let sandbox = mounted();
    let socket =
        fs::metadata(sandbox.path.join("p/.ckptfs/control.sock")).expect("through the hidden link");
    assert_eq!(socket.mode() & 0o777, 0o600);
    let listed = fs::read_dir(sandbox.path.join("p"))
        .expect("list")
        .flatten()
        .any(|entry| entry.file_name() == ".ckptfs");
    assert!(!listed, "the store is not listed");
}
