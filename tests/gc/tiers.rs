//! Tiers: what they drop, what they leave, and who says so.

use std::fs;

use serde_json::{Value, json};

use super::common::mount::wait_until;
use super::common::tree::assert_tree_is;
use super::common::{Mount, Rig, TreeOpts, Variant, for_each_variant};
use super::story::{free, noise, objects, views};

for_each_variant! { reflink => a_tier_drops_what_it_says_and_nothing_else }

const UNIT: usize = 1 << 20;

/// Old enough for a tier that keeps things for a millisecond.
const KEEP: &str = "1ms";

pub fn configure(mount: &Mount, paths: &str, keep: &str) {
    let store = mount.status_json()["store"].as_str().expect("a path").to_owned();
    fs::write(format!("{store}/ckptfs.toml"), format!("[[tiers]]\npaths = {paths}\nkeep = \"{keep}\"\n")).unwrap();
}

/// A tree with things that can be made again, changed and removed between checkpoints.
fn history(rig: &Rig) {
    let root = rig.path();
    fs::create_dir_all(root.join("app/node_modules/lib")).unwrap();
    fs::create_dir_all(root.join("src")).unwrap();
    for round in 0..4_u64 {
        fs::write(root.join("app/node_modules/lib/changed.js"), noise(UNIT, round)).unwrap();
        fs::write(root.join(format!("app/node_modules/lib/made{round}.js")), noise(UNIT, 100 + round)).unwrap();
        if round > 0 {
            fs::remove_file(root.join(format!("app/node_modules/lib/made{}.js", round - 1))).unwrap();
        }
        fs::write(root.join("src/main.c"), noise(UNIT, 200 + round)).unwrap();
        fs::write(root.join("a.tmp"), noise(UNIT, 300 + round)).unwrap();
        assert_eq!(rig.mount.checkpoint(), round + 1);
    }
}

fn a_tier_drops_what_it_says_and_nothing_else(v: Variant) {
    let rig = v.start();
    history(&rig);
    rig.mount.ok(&["pin", "2"]);
    let kept = views(&rig.mount);
    configure(&rig.mount, r#"["node_modules", "*.tmp"]"#, KEEP);
    let plan = rig.mount.json(&["gc", "--dry-run"]);
    let tier = &plan["tiers"][0];
    // Of 1: changed, a.tmp; made0 too, which 2 does not show any more. Of 2: pinned. Of 3: changed, made2, a.tmp.
    assert_eq!((&tier["versions"], &tier["paths"]), (&json!(6), &json!(["node_modules", "*.tmp"])), "{plan}");
    let before = free(rig.image.path());
    let count = objects(rig.path()).len();
    let done = rig.mount.json(&["gc"]);
    assert_eq!((&done["tiers"], &done["freed_bytes"]), (&plan["tiers"], &plan["freed_bytes"]));
    let planned = tier["bytes"].as_u64().unwrap();
    wait_until("what the plan told is free", 60, || free(rig.image.path()).saturating_sub(before).abs_diff(planned) <= 256 << 10);
    assert!(planned >= 6 * UNIT as u64, "{plan}");
    println!("{v:?}: {planned} bytes, {count} objects before, {} after", objects(rig.path()).len());
    // What is not in a tier, what is pinned, and what the live tree has is whole.
    for (id, tree) in &kept {
        let view = rig.view(*id);
        let dropped = |path: &str| fs::read(view.join(path)).map_err(|error| error.raw_os_error());
        for path in tree.keys().filter_map(|path| path.to_str()) {
            let there = fs::symlink_metadata(view.join(path)).unwrap_or_else(|error| panic!("{id}: {path}: {error}"));
            assert_eq!(there.len(), fs::symlink_metadata(view.join(path)).unwrap().len());
        }
        let gone = [1, 3].contains(id);
        assert_eq!(dropped("a.tmp").is_err_and(|errno| errno == Some(libc::ENODATA)), gone, "{id}");
        assert_eq!(dropped("app/node_modules/lib/changed.js").is_err_and(|errno| errno == Some(libc::ENODATA)), gone, "{id}");
        assert_eq!(dropped("src/main.c").unwrap(), noise(UNIT, 200 + id - 1), "{id}");
        if !gone {
            assert_tree_is(&view, tree, &TreeOpts::default());
        }
    }
    said(&rig);
    // Nothing is wrong, and nothing is left to do.
    let wrong = rig.mount.json(&["verify", "--deep"]);
    assert_eq!(wrong["findings"], json!([]));
    let again = rig.mount.json(&["gc"]);
    assert_eq!((&again["freed_bytes"], &again["tiers"][0]["versions"], &again["leftovers"]), (&json!(0), &json!(0), &json!(0)), "{again}");
}

/// Checkpoints 1 and 3 say that something was dropped of them, also after the daemon was killed, and to who has no daemon.
fn said(rig: &Rig) {
    let say = |log: Value| -> Vec<u64> {
        let marked = log.as_array().unwrap().iter().filter(|one| one["has_dropped"] == json!(true));
        marked.map(|one| one["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(say(rig.mount.log_json()), [3, 1]);
    let shown = rig.mount.json(&["show", "1"]);
    assert_eq!(shown["dropped"], json!({"paths": ["a.tmp", "app/node_modules"], "files": 3, "bytes": 3 * UNIT}), "{shown}");
    assert_eq!(rig.mount.json(&["show", "2"])["dropped"], Value::Null);
    assert!(rig.mount.ok(&["log"]).contains("(some dropped)"));
    assert!(rig.mount.ok(&["show", "3"]).contains("3 files (3.0 MiB) of which a tier has dropped the content"), "{}", rig.mount.ok(&["show", "3"]));
    let cat = rig.mount.run(&["cat", "1:a.tmp"]);
    let told = String::from_utf8_lossy(&cat.stderr).into_owned();
    assert!(!cat.status.success() && told.contains("dropped by a tier") && told.contains("ckptfs show 1"), "{told}");
}
