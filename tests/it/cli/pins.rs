//! Pinned checkpoints, and authors of checkpoints.

use super::support::Sandbox;

/// A mounted project with two checkpoints.
fn two() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/a.txt", "one\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
        .ckptfs_in("p", &["checkpoint", "-t", "v1"])
        .is(0, "1\n", "");
    sandbox.file("p/a.txt", "two\n");
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "2\n", "");
    sandbox
}

#[test]
fn a_pinned_checkpoint_is_not_deleted_by_whomever() {
    let sandbox = two();
    sandbox
        .ckptfs_in("p", &["pin", "v1", "--reason", "the audit"])
        .is(0, "checkpoint 1 is pinned: the audit\n", "");
    let refused = || {
        let says =
            "Error: checkpoint 1 is pinned (the audit)\nHint: to unpin it: ckptfs pin -d 1\n";
        sandbox.ckptfs_in("p", &["delete", "1"]).is(1, "", says);
        assert!(
            std::fs::remove_dir(sandbox.path.join("p/.snapshots/1")).is_err(),
            "rmdir(2) does not bypass a pin"
        );
    };
    refused();
    let pinned = |args: &[&str]| -> Vec<String> {
        let found = sandbox
            .ckptfs_in("p", &[&["log", "--pinned", "--json"], args].concat())
            .json();
        found
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["pinned"].as_str().expect("a reason").to_owned())
            .collect()
    };
    assert_eq!(pinned(&[]), ["the audit"]);
    let log = sandbox.ckptfs_in("p", &["log"]).ok().out();
    assert!(
        log.lines()
            .nth(1)
            .is_some_and(|line| line.contains("(pinned: the audit)")),
        "{log}"
    );
    let show = sandbox.ckptfs_in("p", &["show", "1"]).ok().out();
    assert!(show.contains("pinned     yes: the audit\n"), "{show}");
    // A pin survives kill -9 and an orderly unmount, and can be read without a daemon.
    sandbox.kill_daemons();
    sandbox.ckptfs(&["mount", "p"]).ok();
    refused();
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert_eq!(pinned(&[]), ["the audit"]);
    sandbox.ckptfs(&["mount", "p"]).ok();
    refused();
    sandbox
        .ckptfs_in("p", &["pin", "-d", "1"])
        .is(0, "checkpoint 1 is not pinned\n", "");
    sandbox.ckptfs_in("p", &["log", "--pinned"]).is(
        1,
        "",
        "Error: no checkpoint matches\nHint: to list all of them: ckptfs log\n",
    );
    assert!(
        sandbox
            .ckptfs_in("p", &["delete", "1"])
            .ok()
            .out()
            .starts_with("deleted checkpoint 1 [v1]")
    );
    let said = sandbox.ckptfs_in("p", &["ops", "--all"]).ok().out();
    assert!(
        said.contains("  pin 1") && said.contains("  unpin 1"),
        "{said}"
    );
}

#[test]
fn a_checkpoint_is_found_by_its_author() {
    let sandbox = two();
    let (uid, _) = ckptfs_sys::ids();
    let found = |who: &str| {
        sandbox
            .ckptfs_in("p", &["log", "--author", who, "--json"])
            .json()
            .as_array()
            .map_or(0, Vec::len)
    };
    let uid = uid.to_string();
    assert_eq!((found(&uid), found("4294967294")), (2, 0));
    if uid == "0" {
        assert_eq!(found("root"), 2);
    }
    // From the index, from the journal's tail, and without a daemon.
    sandbox.kill_daemons();
    sandbox.ckptfs(&["mount", "p"]).ok();
    assert_eq!(found(&uid), 2);
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert_eq!(found(&uid), 2);
    std::fs::remove_dir_all(sandbox.path.join("p/.ckptfs/index")).expect("the index is a cache");
    sandbox.ckptfs(&["mount", "p"]).ok();
    assert_eq!(found(&uid), 2);
    let unknown = sandbox.ckptfs_in("p", &["log", "--author", "no such user"]);
    unknown.is(1, "", "Error: there is no user \"no such user\"\nHint: a number works too: ckptfs log --author 1000\n");
}
