//! The sealer: what is captured is hashed in the background, over kills and remounts, and nobody
//! notices.

use std::fs;

use super::story::{Story, caught_up};
use crate::common::command::check;
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { reflink => what_was_captured_is_hashed_also_over_kills, without_it_nothing_is_hashed_and_nothing_else_changes }

fn what_was_captured_is_hashed_also_over_kills(v: Variant) {
    let mut story = Story::tell(v, 2);
    for _ in 0..3 {
        // Wherever it is just then.
        story.mount().kill();
        story.mount().remount();
        story.change();
        story.checkpoint();
    }
    caught_up(&story.rig.mount);
    let dir = story.dir();
    let before = story.mount().status_json()["dirty"].clone();
    let (status, report) = check(&dir, &["verify", "--deep"]);
    assert_eq!((status, &report["unhashed"]), (0, &0.into()), "{report}");
    assert!(report["versions"].as_u64() > Some(20), "{report}");
    assert_eq!(
        story.mount().status_json()["dirty"],
        before,
        "to be hashed is no change"
    );
    for (id, copy) in (1..).zip(&story.copies) {
        crate::common::assert_same_tree(
            &story.rig.view(id),
            copy,
            &crate::common::TreeOpts::default(),
        );
    }
    // What is hashed is not hashed again.
    let done = story.mount().json(&["stats"])["sealer"]["objects"].as_u64();
    story.mount().umount();
    story.mount().remount();
    caught_up(&story.rig.mount);
    assert!(done > Some(0));
    assert_eq!(story.mount().json(&["stats"])["sealer"]["objects"], 0);
}

fn without_it_nothing_is_hashed_and_nothing_else_changes(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io).arg("--seal=off"), |_| {});
    for round in 0..3 {
        fs::write(rig.path().join("f"), format!("round {round}")).unwrap();
        rig.mount.checkpoint();
    }
    assert_eq!(rig.mount.json(&["stats"])["sealer"]["mode"], "off");
    let (status, report) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!(
        (status, &report["unhashed"], &report["versions"]),
        (0, &2.into(), &2.into()),
        "{report}"
    );
}
