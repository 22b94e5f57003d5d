//! The sealer hashes captured versions in the background, across kills and remounts, without
//! visible effects.

use std::fs;

use super::story::{Story, caught_up, kinds, objects};
use crate::common::command::check;
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { reflink => what_was_captured_is_hashed_also_over_kills, without_it_a_deep_check_hashes_what_it_reads, an_unmount_hashes_what_is_left }

fn what_was_captured_is_hashed_also_over_kills(v: Variant) {
    let mut story = Story::tell(v, 2);
    for _ in 0..3 {
        // At whatever point it is.
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
        "hashing is not a change"
    );
    for (id, copy) in (1..).zip(&story.copies) {
        crate::common::assert_same_tree(
            &story.rig.view(id),
            copy,
            &crate::common::TreeOpts::default(),
        );
    }
    // Hashed versions are not hashed again.
    let done = story.mount().stats()["sealer"]["objects"].as_u64();
    story.mount().umount();
    story.mount().remount();
    caught_up(&story.rig.mount);
    assert!(done > Some(0));
    assert_eq!(story.mount().stats()["sealer"]["objects"], 0);
}

/// Failed before: `verify --deep` read versions without a hash and recorded none, so later damage
/// was not found.
fn without_it_a_deep_check_hashes_what_it_reads(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).arg("--seal=off"), |_| {});
    for round in 0..3 {
        fs::write(rig.path().join("f"), format!("round {round}")).unwrap();
        rig.mount.checkpoint();
    }
    assert_eq!(rig.mount.stats()["sealer"]["mode"], "off");
    let unhashed = |arguments: &[&str]| {
        let (status, report) = check(rig.path(), arguments);
        assert_eq!((status, &report["versions"]), (0, &2.into()), "{report}");
        report["unhashed"].as_u64().expect("a number")
    };
    assert_eq!(unhashed(&["verify"]), 2);
    assert_eq!(unhashed(&["verify", "--deep"]), 0);
    assert_eq!(unhashed(&["verify"]), 0);
    rig.mount.umount();
    let damaged = &objects(rig.path())[0];
    let mut content = fs::read(damaged).unwrap();
    content[0] ^= 1;
    fs::write(damaged, content).unwrap();
    rig.mount.remount();
    let (status, report) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!(
        (status, kinds(&report)),
        (4, vec!["object-changed".to_owned()]),
        "{report}"
    );
}

fn an_unmount_hashes_what_is_left(v: Variant) {
    let mut rig = v.start();
    fs::write(rig.path().join("f"), "was").unwrap();
    rig.mount.checkpoint();
    // A version of the open epoch, which the sealer skips.
    fs::write(rig.path().join("f"), "is").unwrap();
    assert_eq!(check(rig.path(), &["verify"]).1["unhashed"], 1);
    rig.mount.umount();
    let (status, report) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!((status, &report["unhashed"]), (0, &0.into()), "{report}");
}
