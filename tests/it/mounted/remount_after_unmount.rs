//! A remount of a tree or a branch directly after an unmount, while the daemon is still closing its
//! store.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::branch::support::{create, is_mounted, verb};
use crate::common::command::TOOL_SECONDS;
use crate::common::mount::VERB_SECONDS;
use crate::common::strace::Strace;
use crate::common::{Rig, Variant, for_each_variant, run_limited, scratch, skip, succeeds, tool};

for_each_variant! { reflink =>
    a_mount_right_after_an_unmount_waits, a_branch_right_after_an_unmount_is_mounted,
}
for_each_variant! { xfs => who_uses_a_branch_for_a_moment_is_waited_for }

/// The delay of each sync of the daemon, in microseconds.
const SLOW: &str = "delay_enter=700000";
const SYNCS: &str = "fsync,fdatasync,syncfs";

/// Runs umount(8) with a daemon that ends slowly.
fn unmounted(rig: &Rig, at: &Path) -> Option<Strace> {
    let log = scratch();
    let strace = Strace::start(rig.mount.pid(), SYNCS, SLOW, &log.path().join("log"))?;
    succeeds(tool("umount", &[] as &[&str]).arg(at), TOOL_SECONDS);
    Some(strace)
}

fn a_mount_right_after_an_unmount_waits(v: Variant) {
    let mut rig = v.start();
    fs::write(rig.path().join("f"), "1").unwrap();
    rig.mount.checkpoint();
    let dir = rig.path().to_owned();
    let Some(_slow) = unmounted(&rig, &dir) else {
        return skip("strace is not installed");
    };
    rig.mount.remount();
    assert_eq!(fs::read(rig.view(1).join("f")).unwrap(), b"1");
}

fn a_branch_right_after_an_unmount_is_mounted(v: Variant) {
    let rig = v.start();
    let branch = create(&rig, "one");
    fs::write(branch.join("f"), "1").unwrap();
    let Some(slow) = unmounted(&rig, &branch) else {
        return skip("strace is not installed");
    };
    let (done, said) = verb(&rig, &["branch", "mount", "one"]);
    drop(slow);
    assert!(done, "{said}");
    assert!(is_mounted(&branch), "it is no longer mounted");
    assert_eq!(fs::read(branch.join("f")).unwrap(), b"1");
    let (done, said) = verb(&rig, &["branch", "mount", "one"]);
    assert!(!done && said.contains("already mounted"), "{said}");
    // A branch that a process still uses is rejected, and the error names the process.
    let mut user = Command::new("sleep")
        .arg("600")
        .current_dir(&branch)
        .spawn()
        .unwrap();
    succeeds(tool("umount", &["-l"]).arg(&branch), TOOL_SECONDS);
    let (done, said) = verb(&rig, &["branch", "mount", "one"]);
    assert!(
        !done && said.contains(&format!("(pid {})", user.id())),
        "{said}"
    );
    user.kill().unwrap();
    user.wait().unwrap();
    let (done, said) = verb(&rig, &["branch", "mount", "one"]);
    assert!(done, "{said}");
}

/// Failed before: `umount` of a parent failed in a full test run because its branch was in use, by
/// copies of open files in a child between fork(2) and exec(2).
fn who_uses_a_branch_for_a_moment_is_waited_for(v: Variant) {
    let mut rig = v.start();
    let branch = create(&rig, "one");
    let tree = rig.path().to_owned();
    for (dir, unmounted) in [(&branch, &tree), (&tree, &tree)] {
        if !is_mounted(unmounted) {
            rig.mount.remount();
        }
        let mut user = Command::new("sleep")
            .arg("600")
            .current_dir(dir)
            .spawn()
            .unwrap();
        let mut umount = tool(env!("CARGO_BIN_EXE_ckptfs"), &["umount"]);
        umount.arg(unmounted).stderr(Stdio::piped());
        let umount = thread::spawn(move || run_limited(&mut umount, VERB_SECONDS));
        // Longer than the daemon retries umount(2) before it searches for users.
        thread::sleep(Duration::from_millis(900));
        user.kill().unwrap();
        user.wait().unwrap();
        let ended = umount.join().unwrap();
        assert!(ended.status.success(), "{}: {ended:?}", dir.display());
    }
    rig.mount.remount();
}
