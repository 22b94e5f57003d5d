//! The daemon runs `gc` automatically if the configuration enables it.

use std::fs;

use super::story::{ids, rounds};
use crate::common::wait::{same, wait_until};
use crate::common::{Mount, MountOpts, Variant, for_each_variant};

for_each_variant! { xfs =>
    the_daemon_thins_out_by_itself,
    what_was_made_on_request_neither_goes_nor_counts,
}

fn deleted(mount: &Mount) -> Vec<u64> {
    let listed = mount.json(&["log", "--deleted"]);
    let listed = listed.as_array().unwrap().iter().rev();
    listed.map(|one| one["id"].as_u64().unwrap()).collect()
}

fn the_daemon_thins_out_by_itself(v: Variant) {
    let rig = v.start();
    let config = |key: &str, value: &str| {
        let set = rig
            .mount
            .command(&["config", "set", key, value])
            .output()
            .unwrap();
        assert!(set.status.success(), "{set:?}");
        String::from_utf8_lossy(&set.stderr).into_owned()
    };
    rounds(&rig.mount, 5, 4096);
    config("retention.manual", "true");
    let told = config("retention.keep-last", "2");
    assert!(
        told.contains("with these rules `ckptfs gc` deletes 3 checkpoints: 1, 2, 3"),
        "{told}"
    );
    assert_eq!(ids(&rig.mount).len(), 5, "rules alone delete nothing");
    let told = config("retention.auto", "1s");
    assert!(
        told.contains("runs gc every 1s, deletes 3 checkpoints: 1, 2, 3"),
        "{told}"
    );
    wait_until("two are left", || same(ids(&rig.mount), [4, 5]));
    // The deleted checkpoints are hidden, not freed, and can be restored; `undo` selects only
    // operations of users.
    wait_until("the others can be restored", || {
        same(deleted(&rig.mount), [1, 2, 3])
    });
    config("retention.auto", "1h");
    let newest = &rig.mount.json(&["ops", "-n", "3"])[2];
    assert_eq!(
        (&newest["what"], &newest["by_rule"]),
        (&"delete".into(), &true.into())
    );
    rig.mount.ok(&["tag", "5", "mine"]);
    rig.mount.ok(&["undo"]);
    let tags = &rig.mount.log_json()[0]["tags"];
    assert_eq!(
        (tags, ids(&rig.mount)),
        (&serde_json::json!([]), vec![4, 5])
    );
    let asked_for =
        rig.mount.json(&["ops"]).as_array().unwrap().last().unwrap()["number"].to_string();
    let refused = rig.mount.run(&["undo", "--op", &asked_for]);
    assert!(
        !refused.status.success(),
        "it would remove a checkpoint without --force"
    );
    rig.mount
        .ok(&["undo", "--op", &newest["number"].to_string()]);
    assert_eq!(ids(&rig.mount), [1, 4, 5]);
    assert_eq!(
        fs::read_to_string(rig.view(1).join("dir0/small")).unwrap(),
        "small 0\n"
    );
    // A later configuration applies immediately. Deleted checkpoints are freed when `keep-undone`
    // expires.
    config("retention.keep-last", "1");
    config("retention.keep-undone", "1s");
    config("retention.auto", "1s");
    wait_until("one is left", || same(ids(&rig.mount), [5]));
    wait_until("the others are freed", || {
        same(deleted(&rig.mount), Vec::<u64>::new())
    });
}

/// Failed before: with `retention.keep-daily 7` and `retention.auto 1h`, all checkpoints with a
/// note except the newest were freed ten seconds after the mount.
fn what_was_made_on_request_neither_goes_nor_counts(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io).arg("--auto-every=200ms"), |_| {});
    rig.mount.ok(&["config", "set", "retention.keep-last", "2"]);
    let of = |reason: &str| -> Vec<u64> {
        let listed = rig.mount.log_json();
        let of = |one: &&serde_json::Value| one["reason"].to_string().contains(reason);
        let listed = listed.as_array().unwrap().iter().rev().filter(of);
        listed.map(|one| one["id"].as_u64().unwrap()).collect()
    };
    let mut asked = Vec::new();
    for round in 0..4 {
        asked.push(rig.mount.checkpoint());
        fs::write(rig.path().join("changed"), round.to_string()).unwrap();
        wait_until("an automatic checkpoint exists", || {
            let made = of("interval");
            same(made.last() > asked.last(), true)
        });
    }
    rig.mount.ok(&["config", "set", "retention.auto", "1s"]);
    wait_until("two automatic checkpoints are left", || {
        same(of("interval").len(), 2)
    });
    assert_eq!(of("asked"), asked);
}
