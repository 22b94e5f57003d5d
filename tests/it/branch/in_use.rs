//! A branch in use by a process is not dropped.

use std::process::{Child, Stdio};

use super::support::{create, is_mounted, place, refused};
use crate::common::wait::wait_until;
use crate::common::{Rig, Variant, for_each_variant};

for_each_variant! { xfs =>
    a_branch_that_is_shown_elsewhere_is_in_use, a_branch_goes_though_a_namespace_has_a_copy_of_its_mount,
}

/// Starts `ckptfs branch run NAME -- sh`, which runs until its stdin is closed.
fn run_in(rig: &Rig, name: &str) -> Child {
    let script = "echo > by-run; cat";
    let child = rig
        .mount
        .command(&["branch", "run", name, "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let at = place(rig, name).join("by-run");
    wait_until("the command runs", || at.exists());
    child
}

/// Failed before: umount(2) of the branch's mount does not show other mounts of it. The drop waited
/// for half a minute, and the branch remained mounted only over the project path of the command.
fn a_branch_that_is_shown_elsewhere_is_in_use(v: Variant) {
    let rig = v.start();
    let mut child = run_in(&rig, "try");
    // Only the command uses it.
    let message = refused(&rig, &["branch", "drop", "try"], "branch-in-use");
    assert!(message.contains("is in use"), "{message}");
    assert!(is_mounted(&place(&rig, "try")));
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    wait_until("its namespace is gone", || {
        let dropped = rig.mount.run(&["branch", "drop", "try"]);
        dropped.status.success()
    });
    assert!(!place(&rig, "try").exists());
    // Unless forced.
    let mut child = run_in(&rig, "force");
    rig.mount.ok(&["branch", "drop", "--force", "force"]);
    assert!(!place(&rig, "force").exists());
    drop(child.stdin.take());
    child.wait().expect("it ends");
}

/// The mount namespace of a command in one branch has copies of the mounts of all others. Failed
/// before: none of these could be dropped while it ran.
fn a_branch_goes_though_a_namespace_has_a_copy_of_its_mount(v: Variant) {
    let rig = v.start();
    let other = create(&rig, "other");
    let mut child = run_in(&rig, "try");
    let started = std::time::Instant::now();
    rig.mount.ok(&["branch", "drop", "other"]);
    assert!(!other.exists());
    assert!(
        started.elapsed().as_secs() < 25,
        "the drop waits for the copies of other processes"
    );
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
}
