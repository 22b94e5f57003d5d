//! Combined verbs, and defaults of verbs.

use std::fs;

use super::history::three;

/// Verbs that replaced others give the same results.
#[test]
fn few_verbs_do_what_many_did() {
    let sandbox = three();
    let verb = |arguments: &[&str]| sandbox.ckptfs_in("p", arguments).ok().out();
    assert_eq!(verb(&["tag"]), verb(&["log", "--tag", "*"]));
    verb(&["tag", "2", "x", "y"]);
    assert_eq!(
        verb(&["tag", "-m", "x", "z"]),
        "checkpoint 2 is tagged y, z\n"
    );
    assert_eq!(
        verb(&["tag", "-d", "y", "z"]).lines().last(),
        Some("checkpoint 2 has no tag")
    );
    verb(&["pin", "2", "-r", "why"]);
    assert!(verb(&["pin"]).contains("(pinned: why)"));
    assert_eq!(verb(&["pin", "-d", "2"]), "checkpoint 2 is not pinned\n");
    assert!(verb(&["status", "-v"]).contains("requests"));
    assert_eq!(sandbox.ckptfs_in("p", &["tag", "2"]).code, 2);
    sandbox.ckptfs(&["umount", "p"]).ok();
    verb(&["verify", "--repair"]);
}

/// Defaults without a checkpoint: `restore PATH` selects the newest version that differs, `restore
/// ID:PATH` that checkpoint. `diff` and `show` select the newest checkpoint, and accept paths.
#[test]
fn what_is_not_said_is_the_newest() {
    let sandbox = three();
    sandbox.file("p/a.txt", "gone wrong\n");
    sandbox.file("p/sub/new", "");
    let verb = |arguments: &[&str]| sandbox.ckptfs_in("p", arguments);
    verb(&["diff"]).is(0, "M a.txt\nA sub/new\n", "");
    verb(&["diff", "--", "sub"]).is(0, "A sub/new\n", "");
    verb(&["diff", "a.txt"]).is(0, "M a.txt\n", "");
    verb(&["diff", "a.tx"]).is(
        1,
        "",
        "Error: there is no checkpoint \"a.tx\"\nHint: `ckptfs log` lists all checkpoints\n",
    );
    verb(&["diff", "1", "3", "--", "sub", "nothing"]).is(0, "M sub/deep/b.txt\n", "");
    assert!(
        verb(&["diff", "-p", "--", "a.txt"])
            .ok()
            .out()
            .contains("+gone wrong\n")
    );
    assert!(verb(&["show"]).ok().out().contains("v2"));
    verb(&["show", "v1:a.txt"]).is(0, "one\n", "");
    verb(&["show", "1:sub"]).is(0, "deep\n", "");
    // An unmodified file receives the version before the newest checkpoint, a modified one that of
    // the newest.
    let restored = |arguments: &[&str], file: &str, content: &str| {
        verb(arguments).ok();
        let path = sandbox.path.join("p").join(file);
        assert_eq!(
            fs::read_to_string(path).expect("a file"),
            content,
            "{arguments:?}"
        );
    };
    restored(&["restore", "a.txt"], "a.txt", "one\ntwo\n");
    restored(&["restore", "sub/deep/b.txt"], "sub/deep/b.txt", "b\n");
    // The same edit again: the guard of the previous restore contains it but is not another
    // version.
    for _ in 0..2 {
        sandbox.file("p/a.txt", "gone wrong\n");
        restored(&["restore", "a.txt"], "a.txt", "one\ntwo\n");
    }
    restored(&["rollback", "1:a.txt"], "a.txt", "one\n");
    fs::remove_dir_all(sandbox.path.join("p/sub")).expect("rm");
    restored(&["restore", "sub", "a.txt"], "sub/deep/b.txt", "b\n");
    sandbox.file("p/young", "");
    verb(&["checkpoint"]).ok();
    let refused = verb(&["restore", "sub/deep/none"]);
    refused.is(1, "", "Error: there is no checkpoint \"sub/deep/none\"\nHint: `ckptfs log` lists all checkpoints\n");
}
