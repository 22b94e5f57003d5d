//! `status` and `diff --by process`.

use super::support::{WriterRig, as_told, told};
use crate::common::command::sh;
use crate::common::{Io, Variant, for_each_variant};

for_each_variant! { xfs => more_than_eight_are_others }
for_each_variant! { reflink => every_change_has_its_writers, it_is_told_over_checkpoints_and_kills, a_number_that_was_given_away_does_not_inherit }

fn every_change_has_its_writers(v: Variant) {
    let stage = WriterRig::start(v, |dir| {
        sh(
            dir,
            "for f in a b both gone back mode; do echo $f > $f; done; mkdir dir other; echo x > dir/x; echo y > other/y; ln a hard",
        );
    });
    stage.rig.mount.checkpoint();
    stage.does("alice", "add('a', 1); add('both', 1); put('new', 1); unlink('gone'); mkdir('made'); put('made/one', 1); rename('dir', 'moved')");
    stage.does("bob", "add('b', 1); add('both', 2); put('made/two', 2); chmod(0600, 'mode'); symlink('b', 'link'); put('other/z', 1)");
    stage.does(
        "carol",
        "unlink('back'); put('back', 'other'); add('new', 2); rename('other/z', 'other/w')",
    );
    assert_eq!(
        stage.told(),
        told(&[
            ("a", &["alice"]),
            ("hard", &["alice"]),
            ("b", &["bob"]),
            ("both", &["alice", "bob"]),
            ("gone", &["alice"]),
            ("new", &["alice", "carol"]),
            ("made", &["alice"]),
            ("made/one", &["alice"]),
            ("made/two", &["bob"]),
            ("moved", &["alice"]),
            ("mode", &["bob"]),
            ("link", &["bob"]),
            ("back", &["carol"]),
            ("other/w", &["bob", "carol"]),
        ])
    );
    // A program with many processes: each file is attributed to the one that wrote it.
    let id = stage.rig.mount.checkpoint().to_string();
    sh(
        stage.rig.path(),
        "git init -q . && git add a b && git -c user.name=n -c user.email=e commit -qm m",
    );
    let by = as_told(&stage.rig.mount.json(&["diff", &id, "--by", "process"]));
    assert!(
        !by.is_empty()
            && by
                .values()
                .all(|names| !names.is_empty() && names.iter().all(|name| name.starts_with("git"))),
        "{by:?}"
    );
}

fn it_is_told_over_checkpoints_and_kills(v: Variant) {
    let mut stage = WriterRig::start(v, |dir| {
        drop(sh(dir, "echo a > a; echo b > b; mkdir d; echo c > d/c"))
    });
    let first = stage.rig.mount.checkpoint().to_string();
    stage.does(
        "alice",
        "add('a', 1); put('n', 1); mkdir('nd'); put('nd/x', 1)",
    );
    stage.rig.mount.kill();
    stage.rig.mount.remount();
    assert_eq!(
        stage.told(),
        told(&[
            ("a", &["alice"]),
            ("n", &["alice"]),
            ("nd", &["alice"]),
            ("nd/x", &["alice"])
        ])
    );
    stage.does("bob", "add('b', 1); put('nd/y', 1)");
    let second = stage.rig.mount.checkpoint().to_string();
    // A file made in one epoch and renamed in a later one is attributed to both.
    stage.does(
        "carol",
        "rename('n', 'm'); rename('nd', 'md'); add('a', 2); rename('d/c', 'd/e')",
    );
    stage.rig.mount.kill();
    stage.rig.mount.remount();
    let all = [
        ("a", &["alice", "carol"][..]),
        ("b", &["bob"]),
        ("m", &["alice", "carol"]),
        ("md", &["alice", "carol"]),
        ("md/x", &["alice"]),
        ("md/y", &["bob"]),
        ("d/e", &["carol"]),
    ];
    assert_eq!(
        as_told(&stage.rig.mount.json(&["diff", &first, "--by", "process"])),
        told(&all)
    );
    let then = as_told(
        &stage
            .rig
            .mount
            .json(&["diff", &first, &second, "--by", "process"]),
    );
    let before = [
        ("a", &["alice"][..]),
        ("b", &["bob"]),
        ("n", &["alice"]),
        ("nd", &["alice"]),
        ("nd/x", &["alice"]),
        ("nd/y", &["bob"]),
    ];
    assert_eq!(then, told(&before));
}

/// A new file often reuses the inode number that was freed last.
fn a_number_that_was_given_away_does_not_inherit(v: Variant) {
    let stage = WriterRig::start(v, |dir| drop(sh(dir, "echo a > a; mkdir d")));
    stage.rig.mount.checkpoint();
    for round in 0..4 {
        stage.does("alice", "put('d/tmp', 1)");
        stage.does("bob", "add('d/tmp', 2); unlink('d/tmp')");
        stage.does("carol", &format!("put('d/of-carol-{round}', 3)"));
    }
    let carols = stage.told();
    assert_eq!(carols.len(), 4, "{carols:?}");
    assert!(
        carols.values().all(|names| names.iter().eq(["carol"])),
        "{carols:?}"
    );
}

fn more_than_eight_are_others(v: Variant) {
    let stage = WriterRig::start(v, |dir| drop(sh(dir, "echo a > a")));
    stage.rig.mount.checkpoint();
    let names: Vec<String> = (0..10).map(|number| format!("w{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        stage.does(name, "add('a', 1)");
        let told = &stage.told()["a"];
        assert_eq!(
            (told.len(), told.contains("others")),
            ((number + 1).min(9), number >= 8),
            "{told:?}"
        );
    }
    assert!(
        stage.rig.mount.status_json()["io"]
            == if v.io == Io::Passthrough {
                "passthrough"
            } else {
                "daemon"
            }
    );
}
