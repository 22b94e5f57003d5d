//! Volumes created from a remote.

use std::fs;

use serde_json::{Value, json};

use crate::common::remotes::{Remotes, small_tree, tree_of_volume};
use crate::common::succeeds;
use crate::common::tree::assert_same;
use crate::volumes::support::{Rig, SECONDS, unavailable};

/// Starts a driver with remotes.
fn start(remotes: &Remotes) -> Rig {
    let file = remotes.file().display().to_string();
    Rig::start_on(crate::common::Fs::Xfs, &["--remotes", &file])
}

/// Pushes a volume, like a user.
fn push(rig: &Rig, remotes: &Remotes, volume: &str) {
    let mut push = rig.ckptfs(&["--volume", volume, "push", "home"]);
    succeeds(push.env("CKPTFS_REMOTES", remotes.file()), SECONDS);
}

#[test]
fn a_volume_begins_as_one_that_a_remote_has() {
    if unavailable() {
        return;
    }
    let remotes = Remotes::new();
    let first = start(&remotes);
    first.create("data", json!({}));
    let at = first.mount("data", "a");
    small_tree(&at);
    let old = tree_of_volume(&at);
    first.ok(&["--volume", "data", "checkpoint", "-t", "v1"]);
    fs::write(at.join("plain.txt"), "new").unwrap();
    let new = tree_of_volume(&at);
    first.ok(&["--volume", "data", "checkpoint"]);
    push(&first, &remotes, "data");
    drop(first);

    let second = start(&remotes);
    let from = |from: &str| json!({"remote": "home", "from": from});
    second.create("newest", from("data"));
    second.create("newest", from("data"));
    let mut sized = from("data");
    sized["checkpoint"] = json!("v1");
    sized["size"] = json!("300M");
    second.create("sized", sized);
    for (name, expected) in [("newest", &new), ("sized", &old)] {
        assert_same(&tree_of_volume(&second.mount(name, "b")), expected);
    }
    assert_eq!(second.status("sized")["parent"], "home:data@1");
    let listed = second.ok(&["volumes", "ls"]);
    assert!(listed.contains("from home:data@2"), "{listed}");
    assert_eq!(second.ok(&["--volume", "newest", "checkpoint"]), "1\n");
    // Two volumes of one name, from two stores, are distinguished.
    let mut stores: Vec<String> = Vec::new();
    second.create("data", json!({}));
    second.ok(&["--volume", "data", "checkpoint"]);
    push(&second, &remotes, "data");
    for one in remotes.log("home") {
        stores.push(one["store"].as_str().expect("a store").to_owned());
    }
    stores.dedup();
    assert_eq!(stores.len(), 2);
    let said = second.error("Create", &json!({"Name": "which", "Opts": from("data")}));
    assert!(stores.iter().all(|store| said.contains(store)), "{said}");
    second.create("of-a-store", from(&stores[0]));
}

#[test]
fn what_a_remote_has_not_leaves_nothing() {
    if unavailable() {
        return;
    }
    let remotes = Remotes::new();
    let rig = start(&remotes);
    rig.create("data", json!({}));
    fs::write(rig.mount("data", "a").join("f"), "here").unwrap();
    rig.ok(&["--volume", "data", "checkpoint"]);
    let refused = |options: Value| rig.error("Create", &json!({"Name": "new", "Opts": options}));
    for (options, expected) in [
        (
            json!({"remote": "homer", "from": "data"}),
            "there are: home",
        ),
        (
            json!({"remote": "/tmp/x", "from": "data"}),
            "remote takes the name of a remote",
        ),
        (json!({"remote": "home"}), "from=VOLUME"),
        (
            json!({"remote": "home", "from": "data", "ephemeral": "true"}),
            "at each use",
        ),
        (
            json!({"remote": "home", "from": "data", "source": "/tmp"}),
            "source",
        ),
        (
            json!({"remote": "home", "from": "data"}),
            "home has no volume data",
        ),
    ] {
        let said = refused(options.clone());
        assert!(said.contains(expected), "{options}: {said}");
    }
    push(&rig, &remotes, "data");
    let said = refused(json!({"remote": "home", "from": "data@7"}));
    assert!(
        said.contains("home has no checkpoint 7 of volume data"),
        "{said}"
    );
    // An existing volume of another origin is not overwritten.
    let taken = json!({"Name": "data", "Opts": {"remote": "home", "from": "data"}});
    assert!(rig.error("Create", &taken).contains("already exists"));
    // Damage is detected, and no volume is created.
    let packs = remotes.repository().join("data");
    crate::common::command::sh(
        &packs,
        "find . -type f | while read -r f; do printf x | dd of=\"$f\" bs=1 seek=40 conv=notrunc status=none; done",
    );
    let said = refused(json!({"remote": "home", "from": "data"}));
    assert!(!said.is_empty());
    for dir in ["volumes", "meta", "staging", "images"] {
        let names = fs::read_dir(rig.root.join(dir)).unwrap().flatten();
        let names: Vec<String> = names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with("new"))
            .collect();
        assert!(names.is_empty(), "{dir}: {names:?}");
    }
}
