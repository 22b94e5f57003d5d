//! The number of changes that `log` prints for each checkpoint equals the number that `diff`
//! prints.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use super::mistakes::{edited, run};
use super::support::Sandbox;

/// Failed before: `log` counted files that were changed and changed back.
#[test]
fn log_counts_what_diff_tells() {
    let sandbox = edited();
    sandbox.file("p/a.txt", "one\n");
    let mut touch = sandbox.hermetic("touch", "p");
    touch.args(["-r", ".snapshots/1/a.txt", "a.txt"]);
    assert_eq!(sandbox.run(touch).code, 0);
    run(&sandbox, &["checkpoint"]).ok();
    fs::rename(sandbox.path.join("p/a.txt"), sandbox.path.join("p/b.txt")).expect("a rename");
    sandbox.file("p/c.txt", "c");
    run(&sandbox, &["checkpoint"]).ok();
    run(&sandbox, &["restore", "1"]).ok();
    for id in [2, 3, 4] {
        log_counts_as_diff(&sandbox, id);
    }
}

/// Returns the number of changes on a checkpoint's line, after comparing it with `diff`.
fn log_counts_as_diff(sandbox: &Sandbox, id: u64) -> usize {
    let from = run(sandbox, &["show", "--json", &id.to_string()])
        .ok()
        .json()["parent"]
        .to_string();
    let told = run(sandbox, &["diff", "--json", &from, &id.to_string()])
        .json()
        .as_array()
        .map(Vec::len)
        .expect("a list");
    let log = run(sandbox, &["log"]).ok().out();
    let line = log
        .lines()
        .find(|line| line.starts_with(&format!("{id} ")))
        .expect("a line");
    assert!(
        line.contains(&format!(" {told} change")),
        "{told} from {from}: {line}"
    );
    told
}

/// A count is cached for the checkpoint and its parent. The parent changes when a checkpoint
/// between them is deleted or restored.
#[test]
fn log_counts_anew_when_the_checkpoint_before_goes_or_comes_back() {
    let sandbox = edited();
    run(&sandbox, &["checkpoint"]).ok();
    sandbox.file("p/b.txt", "b");
    run(&sandbox, &["checkpoint"]).ok();
    assert_eq!([2, 3].map(|id| log_counts_as_diff(&sandbox, id)), [1, 1]);
    run(&sandbox, &["delete", "2"]).ok();
    assert_eq!(log_counts_as_diff(&sandbox, 3), 2);
    run(&sandbox, &["undo"]).ok();
    assert_eq!([2, 3].map(|id| log_counts_as_diff(&sandbox, id)), [1, 1]);
    run(&sandbox, &["restore", "1"]).ok();
    sandbox.file("p/c.txt", "c");
    run(&sandbox, &["checkpoint"]).ok();
    assert_eq!(
        [3, 4, 5].map(|id| log_counts_as_diff(&sandbox, id)),
        [1, 0, 1]
    );
}

/// A cached count is discarded when content turns out to be lost: after a write past the mount,
/// equality cannot be proved.
#[test]
fn log_counts_anew_what_cannot_be_told_any_more() {
    let sandbox = Sandbox::new();
    sandbox.file("p/a.txt", "one\n");
    let below = File::open(sandbox.path.join("p")).expect("the directory");
    sandbox.ckptfs(&["mount", "p"]).ok();
    run(&sandbox, &["checkpoint"]).ok();
    for mode in [0o600, 0o644] {
        fs::set_permissions(
            sandbox.path.join("p/a.txt"),
            fs::Permissions::from_mode(mode),
        )
        .expect("a change of mode");
    }
    run(&sandbox, &["checkpoint"]).ok();
    assert_eq!(log_counts_as_diff(&sandbox, 2), 0);
    fs::write(
        format!("/proc/self/fd/{}/a.txt", below.as_raw_fd()),
        "past the mount\n",
    )
    .expect("a write");
    assert_eq!(log_counts_as_diff(&sandbox, 2), 1);
}
