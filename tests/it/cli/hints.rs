//! The next step in a message is useful.

use std::fs;
use std::process::Command;

use super::mistakes::{edited, run};
use super::support::Sandbox;

/// Failed before: after a merge was reverted by hand, `merge` printed "the tree has everything from
/// fix", without a way to repeat it.
#[test]
fn a_merge_that_was_taken_back_by_hand_is_said_to_be_done_already() {
    let sandbox = edited();
    run(&sandbox, &["branch", "create", "fix"]).ok();
    sandbox.file("p@fix/new.js", "new");
    run(&sandbox, &["merge", "fix"]).ok();
    let new = sandbox.path.join("p/new.js");
    fs::remove_file(&new).expect("the call succeeds");
    let already =
        "nothing to merge: fix was merged already (operation 3), and has nothing new since\n";
    let again = "to merge it again, take that merge back first: ckptfs undo --to 2\n";
    // Empty merges are recorded, but the message names the merge that changed something.
    for args in [
        &["merge", "fix"][..],
        &["merge", "fix"],
        &["merge", "-n", "fix"],
    ] {
        run(&sandbox, args).is(0, already, again);
    }
    sandbox.ckptfs_in("p", &["umount", "."]).ok();
    sandbox.ckptfs(&["mount", "p"]).ok();
    run(&sandbox, &["branch", "mount", "fix"]);
    let json = run(&sandbox, &["merge", "fix", "--json"]).ok().json();
    assert_eq!(json["merged_by"], 3, "{json}");
    // The hint works.
    run(&sandbox, &["undo", "--to", "2"]).ok();
    run(&sandbox, &["merge", "fix"]).ok();
    assert!(new.exists());
    // A branch without changes was merged by no operation.
    run(&sandbox, &["branch", "create", "idle"]).ok();
    run(&sandbox, &["merge", "idle"]).is(
        0,
        "nothing to merge: the tree has everything from idle\n",
        "",
    );
    // The other direction.
    sandbox.file("p/later", "later");
    run(&sandbox, &["branch", "update", "fix"]).ok();
    fs::remove_file(sandbox.path.join("p@fix/later")).expect("the call succeeds");
    let said = run(&sandbox, &["branch", "update", "fix"]).ok().out();
    assert!(
        said.starts_with("nothing to update: fix was updated already (its operation "),
        "{said}"
    );
}

/// Failed before: `mount /proc` reported a damaged store, and in a control group a store was
/// created.
#[test]
fn an_interface_of_the_kernel_is_not_mounted() {
    let sandbox = Sandbox::new();
    for (dir, kind) in [("/proc", "proc"), ("/sys", "sysfs"), ("/dev/pts", "devpts")] {
        let message = format!(
            "Error: {dir} is on {kind}, an interface of the kernel, and no history can be kept in it\n"
        );
        let hint =
            "Hint: mount a directory on a filesystem for files, such as XFS, btrfs or ext4\n";
        sandbox
            .ckptfs(&["mount", dir])
            .is(1, "", &[&message, hint].concat());
    }
}

/// Failed before: hints repeated the error.
#[test]
fn a_hint_is_no_repetition_of_the_error() {
    let sandbox = edited();
    let link = sandbox.path.join("p/link");
    std::os::unix::fs::symlink("a.txt", link).expect("a link");
    std::os::unix::fs::symlink(".", sandbox.path.join("p/up")).expect("a link");
    let fifo = Command::new("mkfifo")
        .arg(sandbox.path.join("p/fifo"))
        .status();
    assert!(fifo.expect("mkfifo").success());
    fs::create_dir(sandbox.path.join("p/dir")).expect("a directory");
    run(&sandbox, &["checkpoint"]).ok();
    for (args, hint) in [
        (
            &["gc", "--keep-daily", "x"][..],
            "for example: ckptfs gc --keep-daily 7",
        ),
        (
            &["config", "set", "retention.keep-daily", "x"],
            "for example: ckptfs config set retention.keep-daily 7",
        ),
        (
            &["config", "set", "mount.io", "x"],
            "for example: ckptfs config set mount.io auto",
        ),
        (
            &["restore", "-n", "--only-by", "nosuch"],
            "`ckptfs status --by process` lists what changed since the newest checkpoint",
        ),
        (
            &["show", "2:link"],
            "`ls -l .snapshots/2/link` shows what it is",
        ),
        (
            &["show", "2:fifo"],
            "`ls -l .snapshots/2/fifo` shows what it is",
        ),
        (
            &["show", "2:up/a.txt"],
            "`readlink -f .snapshots/2/up/a.txt` shows where it leads",
        ),
    ] {
        let ran = run(&sandbox, args);
        assert!(
            ran.code == 1 && ran.err().ends_with(&format!("\nHint: {hint}\n")),
            "{args:?}: {ran:?}"
        );
    }
}

/// Failed before: the hint for `remove` was `more`, which the help does not list, and other words
/// had no hint.
#[test]
fn a_word_of_another_program_leads_to_a_verb_that_is_listed() {
    let sandbox = Sandbox::new();
    for (typed, shown) in [
        (&["remove"][..], "delete ID"),
        (&["forget"], "delete ID, or gc to delete by rules"),
        (&["info"], "status"),
        (&["usage"], "du"),
        (&["backup"], "export ID DEST"),
        (&["cat"], "show ID:FILE"),
        (&["version"], "--version"),
        (&["branch", "merge"], "merge NAME"),
    ] {
        let ran = sandbox.ckptfs(typed);
        let hint = format!("\nHint: in ckptfs this is: ckptfs {shown}\n");
        assert!(ran.code == 2 && ran.err().ends_with(&hint), "{ran:?}");
        for hidden in ["'more'", "'man'", "''"] {
            assert!(!ran.err().contains(&format!("exists: {hidden}")), "{ran:?}");
        }
    }
}
