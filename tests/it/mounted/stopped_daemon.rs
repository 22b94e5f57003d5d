//! A stopped daemon (`kill -STOP`, a debugger, a frozen control group): waiting commands report it,
//! and no data is lost.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::mount::mount_table;
use crate::common::process::until_stopped;
use crate::common::wait::wait_until;
use crate::common::{MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { xfs =>
    verbs_that_wait_for_a_stopped_daemon_name_it,
    a_stopped_daemon_is_ended_by_force,
}

/// Stops a process until it is dropped.
struct Stopped(Pid);

impl Stopped {
    fn of(pid: u32) -> Stopped {
        let number = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process(number, Signal::STOP).unwrap();
        let stopped = Stopped(number);
        until_stopped(pid);
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Starts a verb with its stderr in a file.
fn start(mut command: Command, said: &std::path::Path) -> Child {
    command
        .stdout(Stdio::null())
        .stderr(File::create(said).unwrap())
        .spawn()
        .unwrap()
}

fn rig(v: Variant) -> (Rig, tempfile::TempDir) {
    let rig = v.start_with(MountOpts::new(v.io), |root| {
        fs::write(root.join("f"), "1").unwrap();
    });
    rig.mount.checkpoint();
    (rig, tempfile::tempdir().unwrap())
}

fn verbs_that_wait_for_a_stopped_daemon_name_it(v: Variant) {
    let (mut rig, said) = rig(v);
    let (at, pid) = (rig.path().to_owned(), rig.mount.pid());
    let line = format!(
        "Warning: the daemon of {0} (ckptfs, pid {pid}) is stopped and does not answer; to continue it: kill -CONT {pid}; to end it: ckptfs umount --force {0}\n",
        at.display()
    );
    let verbs: [&[&str]; 4] = [
        &["status"],
        &["checkpoint"],
        &["log", "--json"],
        &["umount"],
    ];
    let stopped = Stopped::of(pid);
    let mut waiting: Vec<(Child, String, bool)> = Vec::new();
    for verb in verbs {
        // The warning is not for programs.
        let tells = !verb.contains(&"--json");
        let to = said.path().join(verb[0]);
        // `umount` would end the daemon that the others wait for.
        if verb[0] != "umount" {
            waiting.push((
                start(rig.mount.command(verb), &to),
                to.display().to_string(),
                tells,
            ));
        }
    }
    // A verb in another directory that names the mount.
    let mut elsewhere = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
    elsewhere
        .arg("show")
        .arg("-C")
        .arg(&at)
        .arg("1")
        .current_dir("/");
    let to = said.path().join("elsewhere");
    waiting.push((start(elsewhere, &to), to.display().to_string(), true));
    wait_until("each verb reports the cause of its wait", || {
        let told = |(_, to, tells): &(Child, String, bool)| {
            !tells || fs::read_to_string(to).is_ok_and(|text| text == line)
        };
        waiting.iter().all(told)
    });
    drop(stopped);
    for (mut child, to, tells) in waiting {
        assert!(child.wait().unwrap().success(), "{to}");
        let text = fs::read_to_string(to).unwrap();
        assert_eq!(text.contains("is stopped"), tells, "{text}");
    }

    let stopped = Stopped::of(pid);
    let to = said.path().join("umount");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
    command.arg("umount").arg(&at).current_dir("/");
    let mut umount = start(command, &to);
    wait_until("umount reports the cause of its wait", || {
        fs::read_to_string(&to).is_ok_and(|text| text == line)
    });
    drop(stopped);
    assert!(umount.wait().unwrap().success());
    rig.mount.remount();
    assert_eq!(fs::read_to_string(rig.view(1).join("f")).unwrap(), "1");
}

fn a_stopped_daemon_is_ended_by_force(v: Variant) {
    let (mut rig, said) = rig(v);
    let at = rig.path().to_owned();
    let stopped = Stopped::of(rig.mount.pid());
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
    command
        .args(["umount", "--force"])
        .arg(&at)
        .current_dir("/");
    let to = said.path().join("force");
    let mut force = start(command, &to);
    wait_until("it has ended", || force.try_wait().unwrap().is_some());
    let (status, text) = (force.wait().unwrap(), fs::read_to_string(&to).unwrap());
    assert!(
        status.success() && text.contains("its daemon has ended"),
        "{text}"
    );
    assert!(!mount_table("self").contains(&*at.to_string_lossy()));
    // The process ID may have been reused.
    std::mem::forget(stopped);
    rig.mount.remount();
    assert_eq!(fs::read_to_string(rig.view(1).join("f")).unwrap(), "1");
}
