//! Reported and actually freed space.

use serde_json::{Value, json};

use super::story::{ids, objects, rounds, views};
use crate::common::space::free;
use crate::common::tree::assert_tree_is;
use crate::common::wait::{seen, wait_until};
use crate::common::{TreeOpts, Variant, for_each_variant};

for_each_variant! { xfs => each_rule_is_told_and_pins_and_tags_stay, the_history_is_kept_below_its_size }
for_each_variant! { reflink => the_plan_is_what_comes_free, du_tells_what_deleting_one_frees }

/// Size of a whole file of the story.
const UNIT: usize = 2 << 20;
/// Tolerance for metadata, and for extents that btrfs keeps whole.
const GRAIN: u64 = 256 << 10;

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

fn gone(report: &Value) -> Vec<u64> {
    report["gone"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| number(&one["id"]))
        .collect()
}

fn the_plan_is_what_comes_free(v: Variant) {
    let rig = v.start();
    rounds(&rig.mount, 10, UNIT);
    rig.mount.ok(&["tag", "3", "stays"]);
    rig.mount.ok(&["pin", "5"]);
    let kept = views(&rig.mount);
    let plan = rig.mount.json(&["gc", "--keep-last", "2", "--dry-run"]);
    assert_eq!(gone(&plan), [1, 2, 4, 6, 7, 8]);
    assert_eq!(ids(&rig.mount).len(), 10, "a dry run deletes nothing");
    let before = free(rig.image.path());
    let done = rig.mount.json(&["gc", "--keep-last", "2"]);
    assert_eq!(
        (&done["gone"], &done["freed_bytes"], &done["kept"]),
        (&plan["gone"], &plan["freed_bytes"], &plan["kept"])
    );
    let planned = number(&plan["freed_bytes"]);
    assert!(planned > 6 * UNIT as u64, "{plan}");
    let mut freed = 0;
    wait_until("the planned bytes are free", || {
        freed = free(rig.image.path()).saturating_sub(before);
        seen(freed.abs_diff(planned) <= GRAIN, (freed, planned))
    });
    println!("{v:?}: {planned} bytes were planned, {freed} were freed");
    assert_eq!(ids(&rig.mount), [3, 5, 9, 10]);
    for (id, tree) in kept.iter().filter(|(id, _)| ids(&rig.mount).contains(id)) {
        assert_tree_is(&rig.view(*id), tree, &TreeOpts::default());
    }
    // Nothing is left to do, and no damage is found.
    let again = rig.mount.json(&["gc", "--keep-last", "2"]);
    assert_eq!(
        (
            gone(&again).len(),
            number(&again["freed_bytes"]),
            number(&again["leftovers"])
        ),
        (0, 0, 0),
        "{again}"
    );
    let wrong = rig.mount.json(&["verify", "--deep"]);
    assert_eq!(wrong["findings"], json!([]));
}

fn du_tells_what_deleting_one_frees(v: Variant) {
    let rig = v.start();
    rounds(&rig.mount, 6, UNIT);
    let mut told = Vec::new();
    for id in [3, 1, 2, 6, 5] {
        let all = rig.mount.json(&["du"]);
        let one = rig.mount.json(&["du", &id.to_string()])["checkpoints"][0].clone();
        assert!(
            all["checkpoints"].as_array().unwrap().contains(&one),
            "{all} {one}"
        );
        let (before, exclusive) = (free(rig.image.path()), number(&one["exclusive_bytes"]));
        // Both ways: deleted immediately, or deleted with undo and freed later.
        if id % 2 == 0 {
            rig.mount.ok(&["delete", "--now", &id.to_string()]);
        } else {
            rig.mount.ok(&["delete", &id.to_string()]);
            let report = rig.mount.json(&["gc"]);
            assert_eq!(
                (&report["gone"][0]["why"], &report["freed_bytes"]),
                (&json!("deleted"), &json!(exclusive)),
                "{report}"
            );
        }
        let mut freed = 0;
        wait_until(
            &format!("the bytes that du reports as exclusive to {id} are free: {exclusive}"),
            || {
                freed = free(rig.image.path()).saturating_sub(before);
                freed.abs_diff(exclusive) <= GRAIN
            },
        );
        told.push((id, exclusive, freed));
    }
    println!("{v:?}: checkpoint, exclusive, freed: {told:?}");
    assert!(
        told.iter()
            .any(|(_, exclusive, _)| *exclusive > UNIT as u64),
        "{told:?}"
    );
    let all = rig.mount.json(&["du"]);
    assert_eq!(number(&all["unneeded_bytes"]), 0, "{all}");
}

fn each_rule_is_told_and_pins_and_tags_stay(v: Variant) {
    let rig = v.start();
    rounds(&rig.mount, 6, 4096);
    rig.mount.ok(&["tag", "2", "v1"]);
    rig.mount.ok(&["pin", "1", "--reason", "first"]);
    let all = rig.mount.json(&["gc"]);
    assert_eq!(
        (gone(&all).len(), &all["kept"][2]),
        (0, &json!({"id": 3, "rules": ["no-rule"]})),
        "without a rule nothing is deleted"
    );
    let report = rig
        .mount
        .json(&["gc", "--dry-run", "--keep-last", "2", "--keep-daily", "1"]);
    assert_eq!(gone(&report), [3, 4]);
    let kept = json!([
        {"id": 1, "rules": ["pinned"]},
        {"id": 2, "rules": ["tagged"]},
        {"id": 5, "rules": ["last"]},
        {"id": 6, "rules": ["newest", "last", "daily"]},
    ]);
    assert_eq!(report["kept"], kept);
    // Rules of the configuration apply; the command line overrides them.
    rig.mount.ok(&["config", "set", "retention.keep-last", "3"]);
    assert_eq!(gone(&rig.mount.json(&["gc", "-n"])), [3]);
    assert_eq!(
        gone(&rig.mount.json(&["gc", "-n", "--keep-last=1"])),
        [3, 4, 5]
    );
    let text = rig.mount.ok(&["gc", "-n", "--verbose", "--keep-last=1"]);
    assert!(
        text.contains("stays 1  pinned\n") && text.contains("would go 3  "),
        "{text}"
    );
    rig.mount.ok(&["gc", "--yes", "--keep-last=1"]);
    assert_eq!(ids(&rig.mount), [1, 2, 6]);
}

fn the_history_is_kept_below_its_size(v: Variant) {
    let rig = v.start();
    rounds(&rig.mount, 8, UNIT);
    let history = number(&rig.mount.json(&["du"])["history_bytes"]);
    let max = history / 2;
    let report = rig.mount.json(&["gc", "--max-size", &max.to_string()]);
    let went = gone(&report);
    assert!(
        !went.is_empty() && went.len() < 7 && went[0] == 1,
        "the oldest are deleted, and no more than necessary: {report}"
    );
    assert!(
        report["gone"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["why"] == "max-size"),
        "{report}"
    );
    let expected = history - number(&report["freed_bytes"]);
    // XFS frees the extents of a removed file later (inode inactivation); until then shared extents
    // still seem shared.
    let left = || number(&rig.mount.json(&["du"])["history_bytes"]);
    wait_until("the reported bytes are freed", || {
        seen(left().abs_diff(expected) <= GRAIN, (left(), expected))
    });
    let left = left();
    assert!(left <= max, "{left} of {max}: {report}");
    let kept_one_more = left + number(&report["gone"].as_array().unwrap().last().unwrap()["bytes"]);
    assert!(
        kept_one_more > max,
        "one deletion less would have been enough"
    );
    // Pinned checkpoints are kept, and `status` warns about the size.
    for id in ids(&rig.mount) {
        rig.mount.ok(&["pin", &id.to_string()]);
    }
    let report = rig.mount.json(&["gc", "--max-size", "4096"]);
    let over = number(&report["over_bytes"]);
    assert!(
        gone(&report).is_empty() && over.abs_diff(left - 4096) <= GRAIN,
        "{left}: {report}"
    );
    let warnings = rig.mount.status_json()["warnings"].to_string();
    assert!(warnings.contains("over retention.max-size"), "{warnings}");
    rig.mount.json(&["gc", "--max-size", "1T"]);
    assert_eq!(rig.mount.status_json()["warnings"], json!([]));
    assert!(!objects(rig.path()).is_empty());
}
