//! A checkpoint of a remote becomes a checkpoint of a local branch.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::kinds::{Kind, Server};
use super::{SECONDS, User, bucket, pulled};
use crate::common::command::{fails, sh};
use crate::common::tree::{Tree, assert_same, tree};
use crate::common::{MountOpts, Variant, for_each_variant, sample_tree};
use crate::export::support::history;
use crate::remote::proxy::Proxy;

for_each_variant! { xfs => a_branch_becomes_what_was_pushed }

/// Pulls several checkpoints onto one branch, with some pulls killed, and one onto a branch of
/// another tree.
fn a_branch_becomes_what_was_pushed(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    let history = history(&rig);
    let user = User::new();
    user.push(&rig, &[]);
    let live = tree(rig.path());
    let pull = |dir: &Path, id: u64| {
        let id = id.to_string();
        user.json(dir, &["pull", "home", &id, "--branch", "old"])
    };
    let would = user.json(rig.path(), &["pull", "home", "1", "--branch", "old", "-n"]);
    assert!(would["checkpoint"].is_null() && would["dry_run"] == true);
    assert!(
        rig.mount
            .json(&["branch", "list"])
            .as_array()
            .expect("a list")
            .is_empty()
    );
    let (second, expected) = &history[1];
    let made = pull(rig.path(), *second);
    let path = PathBuf::from(made["path"].as_str().expect("a path"));
    // The checkpoint is local: only entries that every branch recreates are made.
    assert_eq!(
        (&made["base"], &made["removed"]),
        (&(*second).into(), &0.into()),
        "{made}"
    );
    assert!(made["made"].as_u64() < Some(5), "{made}");
    assert_same(&tree(&path), expected);
    for (id, expected) in history.iter().rev() {
        let made = pull(rig.path(), *id);
        assert!(made["base"].is_null(), "{made}");
        assert_same(&tree(&path), expected);
        let shown = user.json(&path, &["show", &made["checkpoint"].to_string()]);
        let note = format!("checkpoint {id} of home");
        assert!(
            shown["note"].as_str().expect("a note").starts_with(&note),
            "{shown}"
        );
    }
    // The previous contents are in a checkpoint.
    fs::write(path.join("mine"), "mine\n").expect("written");
    for round in 0..5 {
        let mut killed = user.command(rig.path(), &["pull", "home", "2", "--branch", "old"]);
        let mut killed = killed.spawn().expect("runs");
        std::thread::sleep(Duration::from_millis(400 + 60 * round));
        killed.kill().expect("killed");
        killed.wait().expect("ended");
    }
    pull(rig.path(), 2);
    assert_same(&tree(&path), &history[1].1);
    let found = sh(&path, "cat .snapshots/*/mine | sort -u");
    assert_eq!(found.trim(), "mine");
    assert_same(&tree(rig.path()), &live);
    in_another_tree(v, &user, &history[2]);
}

for_each_variant! { xfs => what_was_moved_is_not_fetched }

/// Nor are copied files, hard links, or the unchanged parts of a modified file.
fn what_was_moved_is_not_fetched(v: Variant) {
    let Some(server) = Server::start(Kind::Moto) else {
        return;
    };
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            "mkdir d; for n in $(seq 8); do head -c 300000 /dev/urandom > d/$n; done
            head -c 20000000 /dev/urandom > large; ln d/8 linked
            head -c 20000000 /dev/urandom > base",
        );
    });
    rig.mount.checkpoint();
    sh(
        rig.path(),
        "mv d moved; cp large moved/copy; mv large other; touch other; echo 1 > new
        echo 1 | dd of=base bs=1 seek=10000000 conv=notrunc",
    );
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let user = User::in_bucket(server.port);
    user.push(&rig, &[]);
    let into = rig.path().parent().expect("the image").join("into");
    user.pull(&rig, "1", &into);
    user.json(rig.path(), &["pull", "home", "1", "--branch", "old"]);
    let proxy = Proxy::start(server.port, |_| true);
    user.add(&bucket(proxy.port));
    user.pull(&rig, "2", &into);
    assert_same(&pulled(&into), &expected);
    let made = user.json(rig.path(), &["pull", "home", "2", "--branch", "old"]);
    let path = Path::new(made["path"].as_str().expect("a path"));
    assert_same(&tree(path), &expected);
    let received = proxy.passed().received;
    eprintln!("{received} bytes received");
    // Each pull fetches one blob of the modified file, of at most 8 MiB, and its readahead.
    assert!(received < 26_000_000, "{received} bytes");
}

/// The other tree is unrelated to the pushed one.
fn in_another_tree(v: Variant, user: &User, (id, expected): &(u64, Tree)) {
    let other = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("else"), "else").expect("written");
    });
    other.mount.checkpoint();
    let id = id.to_string();
    let made = user.json(other.path(), &["pull", "home", &id, "--branch", "old"]);
    let path = PathBuf::from(made["path"].as_str().expect("a path"));
    assert_same(&tree(&path), expected);
    let said = fails(
        &mut user.command(other.path(), &["pull", "home", "77", "--branch", "new"]),
        SECONDS,
    );
    assert!(said.contains("has no checkpoint 77"), "{said}");
    assert_eq!(
        other
            .mount
            .json(&["branch", "list"])
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}
