//! Deduplication of captured versions: shared objects, reported sizes, and no other changes.

use std::fs;

use super::story::{OPEN, apart, assert_whole, came_free, places, rewrite, tell, trees};
use crate::common::wait::{seen, wait_longer};
use serde_json::Value;

use crate::common::command::check;
use crate::common::space::free;
use crate::common::{Rig, Variant, for_each_variant};

for_each_variant! { all =>
    what_is_there_twice_is_shared_and_nothing_else_changes,
    the_sealer_shares_what_is_known,
    what_comes_free_after_it_is_told_right,
}

fn what_is_there_twice_is_shared_and_nothing_else_changes(v: Variant) {
    let mut rig = tell(v, "off");
    let (before, was, dirty) = (trees(&rig.mount), places(rig.path()), rig.mount.dirty());
    assert!(apart(rig.path()) > 5, "no content is stored twice");
    let plan = rig.mount.json(&["gc", "--dedup", "--dry-run"]);
    assert!(plan["shared"]["files"].as_u64() > Some(5), "{plan}");
    assert_eq!(places(rig.path()), was, "a dry run changes nothing");
    let space = free(rig.image.path());
    let done = rig.mount.json(&["gc", "--dedup"]);
    assert_eq!(
        (&done["shared"], &done["freed_bytes"]),
        (&plan["shared"], &plan["freed_bytes"]),
        "{plan} {done}"
    );
    let open = |name: &str| name.starts_with(OPEN);
    let now = places(rig.path());
    assert!(
        was.keys().any(|name| open(name))
            && was
                .iter()
                .all(|(name, place)| !open(name) || now[name] == *place),
        "captures of the open epoch are unchanged"
    );
    let linked = done["projects"][0]["linked"]["files"].as_u64().unwrap();
    let moved = was.keys().filter(|name| name.ends_with(".m")).count();
    if v.fs.has_reflink() {
        assert_eq!((apart(rig.path()), linked), (0, 0), "{done}");
        assert_eq!(
            done["projects"][0]["left_out"],
            serde_json::Value::Null,
            "{done}"
        );
    } else {
        // A moved inode is not replaced.
        assert!(apart(rig.path()) <= moved && linked > 5, "{done}");
        assert_eq!(
            done["projects"][0]["left"],
            serde_json::json!({ "no-reflink": moved }),
            "{done}"
        );
    }
    let freed = done["freed_bytes"].as_u64().unwrap();
    came_free(rig.image.path(), space, freed);
    assert_eq!(
        (trees(&rig.mount), rig.mount.dirty()),
        (before.clone(), dirty.clone())
    );
    assert_whole(&rig.mount);
    let again = rig.mount.json(&["gc", "--dedup"]);
    assert_eq!(
        (
            &again["shared"]["files"],
            &again["projects"][0]["hashed"]["files"]
        ),
        (&0.into(), &0.into()),
        "{again}"
    );
    the_same_without_an_index(&mut rig, &again);
    assert_eq!((trees(&rig.mount), rig.mount.dirty()), (before, dirty));
}

/// A store with a rebuilt index yields the same report.
fn the_same_without_an_index(rig: &mut Rig, again: &Value) {
    rig.mount.umount();
    let (status, found) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!(status, 0, "{found}");
    fs::remove_dir_all(rig.path().join(".ckptfs/index")).unwrap();
    rig.mount.remount();
    let rebuilt = rig.mount.json(&["gc", "--dedup"]);
    for what in ["captured", "hashed", "unique", "already", "shared", "left"] {
        assert_eq!(
            rebuilt["projects"][0][what], again["projects"][0][what],
            "{rebuilt} {again}"
        );
    }
}

fn the_sealer_shares_what_is_known(v: Variant) {
    let rig = tell(v, "hash");
    let before = trees(&rig.mount);
    wait_longer("the sealer has finished", 120, || {
        let sealer = rig.mount.stats()["sealer"].clone();
        seen(sealer["caught_up"] == true, sealer)
    });
    let status = rig.mount.status_json();
    assert!(status["shared"]["files"].as_u64() > Some(5), "{status}");
    let told = rig.mount.ok(&["status"]);
    assert!(
        told.contains("shared with identical files since the mount"),
        "{told}"
    );
    if v.fs.has_reflink() {
        assert_eq!(apart(rig.path()), 0);
    }
    let done = rig.mount.json(&["gc", "--dedup"]);
    assert_eq!(
        (
            &done["shared"]["files"],
            &done["projects"][0]["hashed"]["files"]
        ),
        (&0.into(), &0.into()),
        "{done}"
    );
    assert_eq!(trees(&rig.mount), before);
    assert_whole(&rig.mount);
}

/// Extents shared by versions are freed with the last of them, as `du` and `gc` report.
fn what_comes_free_after_it_is_told_right(v: Variant) {
    let rig = tell(v, "off");
    rig.mount.ok(&["gc", "--dedup"]);
    // The live tree shares no extents with a version.
    let kept = trees(&rig.mount);
    let space = free(rig.image.path());
    let told = rig.mount.json(&["du"]);
    let exclusive: u64 = told["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["exclusive_bytes"].as_u64().unwrap())
        .sum();
    let history = told["history_bytes"].as_u64().unwrap();
    assert!(exclusive < history, "{told}");
    let plan = rig.mount.json(&["gc", "--keep-last", "1", "--dry-run"]);
    let done = rig.mount.json(&["gc", "--keep-last", "1"]);
    let freed = done["freed_bytes"].as_u64().unwrap();
    assert_eq!(plan["freed_bytes"], done["freed_bytes"]);
    let came = came_free(rig.image.path(), space, freed);
    assert!(
        freed > 500_000 && came < freed + freed / 2 + (1 << 20),
        "{came} bytes were freed, {freed} were reported"
    );
    assert_eq!(trees(&rig.mount)[&3], kept[&3]);
    assert_whole(&rig.mount);
    // Freed objects are not a source; equal new content is handled as new.
    rewrite(
        &rig.path().join("again"),
        &crate::common::space::noise(super::story::LARGE, 100),
    );
    let id = rig.mount.checkpoint();
    rewrite(&rig.path().join("again"), b"other");
    rig.mount.checkpoint();
    rig.mount.ok(&["gc", "--dedup"]);
    assert_eq!(
        fs::read(rig.view(id).join("again")).unwrap(),
        crate::common::space::noise(super::story::LARGE, 100)
    );
    assert_whole(&rig.mount);
}
