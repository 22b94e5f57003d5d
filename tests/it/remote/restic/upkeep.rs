//! Retention of unpushed checkpoints, pruning of the repository, and damage to it.

use std::fs;

use serde_json::json;

use super::{SECONDS, User, pulled};
use crate::common::command::{run_limited, sh};
use crate::common::tree::{assert_same, tree};
use crate::common::{MountOpts, Rig, Variant, for_each_variant, sample_tree};

for_each_variant! { xfs => by_rules }

fn by_rules(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    let user = User::new();
    let checkpoint = |n: u32| {
        sh(
            rig.path(),
            &format!("echo {n} > n; head -c 200000 /dev/urandom > random"),
        );
        rig.mount.checkpoint();
    };
    (1..=3).for_each(checkpoint);
    user.push(&rig, &[]);
    (4..=6).for_each(checkpoint);
    let kept = || {
        rig.mount
            .log_json()
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["id"].clone())
            .collect::<Vec<_>>()
    };
    // 3 is pinned, because the next push starts from it. 6 is the newest.
    let gc = ["gc", "--keep-last", "1", "--keep-unpushed", "home"];
    user.json(rig.path(), &gc);
    assert_eq!(kept(), [6, 5, 4, 3].map(|id| json!(id)));
    user.push(&rig, &[]);
    user.json(rig.path(), &gc);
    assert_eq!(kept(), [json!(6)], "the pin has moved");
    assert_eq!(
        user.log(&rig),
        [6, 5, 4, 3, 2, 1],
        "checkpoints that were deleted here still exist there"
    );
    let into = rig.path().parent().expect("the image").join("into");
    user.pull(&rig, "2", &into);
    assert_eq!(fs::read_to_string(into.join("n")).expect("read"), "2\n");
    let prune = ["remote", "prune", "home", "--keep-last", "2"];
    let planned = user.json(rig.path(), &[&prune[..], &["-n"]].concat());
    assert_eq!(
        (&planned["forgotten"], user.log(&rig).len()),
        (&json!([1, 2, 3, 4]), 6)
    );
    let done = user.json(rig.path(), &prune);
    assert!(done["unneeded_bytes"].as_u64() > Some(700_000), "{done}");
    assert_eq!(user.log(&rig), [6, 5]);
    forgotten_by_number(&rig, &user);
    user.pull(&rig, "latest", &into);
    assert_same(&pulled(&into), &tree(rig.path()));
    // Without its parent checkpoint, a push reads every file and is equally complete.
    rig.mount.ok(&["pin", "-d", "6"]);
    checkpoint(7);
    rig.mount.ok(&["delete", "6", "--yes"]);
    let sent = &user.push(&rig, &[])[0];
    assert_eq!(
        (&sent["from"], &sent["files_kept"]),
        (&json!(null), &json!(0))
    );
    user.pull(&rig, "7", &into);
    assert_same(&pulled(&into), &tree(rig.path()));
}

/// Forgets the second of two snapshots by its id.
fn forgotten_by_number(rig: &Rig, user: &User) {
    let told = user.json(rig.path(), &["remote", "log", "home"]);
    let number = told[1]["snapshot"].as_str().expect("a number");
    let forget = |number: &str, more: &[&str]| {
        let all = [&["remote", "forget", "home", number], more].concat();
        user.json(rig.path(), &all)["forgotten"].clone()
    };
    assert_eq!(forget(number, &["-n"]), json!([number]));
    assert_eq!(user.log(rig), [6, 5]);
    assert_eq!(forget(&number[..12], &[]), json!([number]));
    assert_eq!(forget(number, &[]), json!([]), "it is forgotten");
    assert_eq!(user.log(rig), [6]);
    let short = ["remote", "forget", "home", &number[..7]];
    let said = crate::common::fails(&mut user.command(rig.path(), &short), SECONDS);
    assert!(said.contains("too short"), "{said}");
}

for_each_variant! { xfs => damage_is_found }

fn damage_is_found(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    let user = User::new();
    rig.mount.checkpoint();
    user.push(&rig, &[]);
    let verify = |more: &[&str]| {
        let all = [&["verify", "--remote", "home"], more].concat();
        run_limited(&mut user.command(rig.path(), &all), SECONDS)
            .status
            .code()
    };
    assert_eq!((verify(&[]), verify(&["--deep"])), (Some(0), Some(0)));
    let packs = sh(&user.repository(), "find data -type f -size +1k | sort");
    let pack = user
        .repository()
        .join(packs.lines().next().expect("a pack"));
    let mut bytes = fs::read(&pack).expect("read");
    bytes[20] ^= 1;
    fs::write(&pack, bytes).expect("written");
    assert_eq!(verify(&["--deep"]), Some(4));
    fs::remove_file(&pack).expect("removed");
    assert_eq!(verify(&[]), Some(4));
}
